// The official Ollama client for JavaScript: chat, generate, streams, structured output and tools.
import { Ollama } from "ollama";
import { MODEL, PERSON, QUESTION, WEATHER, WEATHER_QUESTION, assert, client_url, run } from "./checks.mjs";

const client = () => new Ollama({ host: client_url });
const messages = [{ role: "user", content: QUESTION }];
const tool = { type: "function", function: { name: "get_weather", description: "Weather", parameters: WEATHER } };

await run({
  async chat() {
    const answer = await client().chat({ model: MODEL, messages, options: { seed: 1 } });
    assert(answer.message.content.trim() && answer.done);
  },
  async stream() {
    let text = "";
    for await (const part of await client().chat({ model: MODEL, messages, stream: true })) text += part.message.content;
    assert(text.trim());
  },
  async generate() {
    const answer = await client().generate({ model: MODEL, prompt: QUESTION, options: { num_predict: 64 } });
    assert(answer.response.trim());
  },
  async structured() {
    const asked = [{ role: "user", content: "Ada Lovelace is 36 years old." }];
    const answer = await client().chat({ model: MODEL, messages: asked, format: PERSON });
    assert(Number.isInteger(JSON.parse(answer.message.content).age));
  },
  async tool_loop() {
    const asked = [{ role: "user", content: WEATHER_QUESTION }];
    const { message } = await client().chat({ model: MODEL, messages: asked, tools: [tool], options: { seed: 1 } });
    assert(message.tool_calls[0].function.arguments.city);
    asked.push(message, { role: "tool", content: "18 degrees, sunny" });
    const after = await client().chat({ model: MODEL, messages: asked, tools: [tool], options: { seed: 1 } });
    assert(after.message.content || after.message.tool_calls);
  },
  async models() {
    const { models } = await client().list();
    const { models: running } = await client().ps();
    assert(models[0].name.startsWith(MODEL) && running.length > 0);
    assert((await client().show({ model: MODEL })).capabilities.includes("tools"));
    assert((await client().pull({ model: MODEL })).status === "success");
  },
});

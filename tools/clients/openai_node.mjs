// The official OpenAI client for JavaScript.
import OpenAI from "openai";
import { MODEL, PERSON, QUESTION, WEATHER, assert, client_url, run } from "./checks.mjs";

const client = () => new OpenAI({ baseURL: `${client_url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const tool = { type: "function", function: { name: "get_weather", parameters: WEATHER } };

await run({
  async chat() {
    const answer = await client().chat.completions.create({ model: MODEL, messages, seed: 1 });
    assert(answer.choices[0].message.content.trim());
  },
  async stream() {
    let text = "";
    for await (const chunk of await client().chat.completions.create({ model: MODEL, messages, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    assert(text.trim());
  },
  async structured() {
    const format = { type: "json_schema", json_schema: { name: "person", schema: PERSON, strict: true } };
    const asked = [{ role: "user", content: "Ada Lovelace is 36 years old." }];
    const answer = await client().chat.completions.create({ model: MODEL, messages: asked, response_format: format });
    assert(Number.isInteger(JSON.parse(answer.choices[0].message.content).age));
  },
  async tools() {
    const asked = [{ role: "user", content: "What is the weather in Paris?" }];
    const options = { model: MODEL, messages: asked, tools: [tool], tool_choice: "required" };
    const answer = await client().chat.completions.create(options);
    assert(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments).city);
  },
  async responses() {
    const answer = await client().responses.create({ model: MODEL, input: QUESTION });
    assert(answer.output_text.trim());
  },
});

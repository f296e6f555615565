// The official Anthropic client for JavaScript: messages, streams, tools, its tool runner, and prefilled answers.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { MODEL, QUESTION, WEATHER, WEATHER_QUESTION, assert, client_url, run } from "./checks.mjs";

const client = () => new Anthropic({ baseURL: client_url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const asked = [{ role: "user", content: WEATHER_QUESTION }];
const options = { model: MODEL, max_tokens: 128 };
const tool = { name: "get_weather", description: "Weather of a city", input_schema: WEATHER };

await run({
  async messages() {
    const answer = await client().messages.create({ ...options, messages });
    assert(answer.content[0].text.trim());
  },
  async stream() {
    const message = await client().messages.stream({ ...options, messages }).finalMessage();
    assert(message.content[0].text.trim());
  },
  async tools() {
    const answer = await client().messages.create({ ...options, messages: asked, tools: [tool], tool_choice: { type: "any" } });
    assert(answer.content.find((block) => block.type === "tool_use").input.city);
  },
  async tool_runner() {
    const cities = [];
    const weather = betaZodTool({
      name: "get_weather",
      description: "Weather of a city",
      inputSchema: z.object({ city: z.string() }),
      run: ({ city }) => {
        cities.push(city);
        return "18 degrees, sunny";
      },
    });
    const runner = client().beta.messages.toolRunner({ ...options, messages: asked, tools: [weather], max_iterations: 3 });
    const answer = await runner;
    assert(cities.length > 0 && answer.content.length > 0);
  },
  async prefill() {
    const start = "def add(a, b):\n    return";
    const code = [{ role: "user", content: "Add two numbers." }, { role: "assistant", content: start }];
    const answer = await client().messages.create({ ...options, messages: code });
    assert(answer.content[0].text.trim() && !answer.content[0].text.includes("def add"));
  },
});

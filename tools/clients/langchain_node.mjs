// LangChain.js: an agent's tool loop over each of the three APIs.
import { ChatAnthropic } from "@langchain/anthropic";
import { ChatOllama } from "@langchain/ollama";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";
import { MODEL, QUESTION, WEATHER_QUESTION, assert, client_url, run } from "./checks.mjs";

const common = { model: MODEL, maxRetries: 0 };
const openai = () => new ChatOpenAI({ ...common, apiKey: "none", configuration: { baseURL: `${client_url}/v1` } });
const anthropic = () => new ChatAnthropic({ ...common, apiKey: "none", anthropicApiUrl: client_url, maxTokens: 128 });
const ollama = () => new ChatOllama({ ...common, baseUrl: client_url });

async function answered(model) {
  let text = "";
  for await (const chunk of await model.stream(QUESTION)) text += chunk.text;
  assert(text.trim());
}

async function looped(model) {
  const cities = [];
  const weather = tool(
    ({ city }) => {
      cities.push(city);
      return "18 degrees, sunny";
    },
    { name: "get_weather", description: "Weather of a city", schema: z.object({ city: z.string() }) },
  );
  const agent = createAgent({ model, tools: [weather] });
  const { messages } = await agent.invoke({ messages: [{ role: "user", content: WEATHER_QUESTION }] });
  assert(cities.length > 0 && messages.at(-1).type === "ai");
}

await run({
  openai_stream: () => answered(openai()),
  openai_tool_loop: () => looped(openai()),
  anthropic_stream: () => answered(anthropic()),
  anthropic_tool_loop: () => looped(anthropic()),
  ollama_stream: () => answered(ollama()),
  ollama_tool_loop: () => looped(ollama()),
});

// Vercel's AI SDK with three providers: openai (responses), openai-compatible (chat) and anthropic (messages).
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { MODEL, PERSON, QUESTION, WEATHER, assert, client_url, run } from "./checks.mjs";

const openai = createOpenAI({ baseURL: `${client_url}/v1`, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "gesso",
  baseURL: `${client_url}/v1`,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: `${client_url}/v1`, apiKey: "none" });
const weather = tool({ description: "Weather", inputSchema: jsonSchema(WEATHER) });
const asked = { prompt: "What is the weather in Paris?", tools: { get_weather: weather }, toolChoice: "required" };

async function streamed(model) {
  let text = "";
  for await (const part of streamText({ model, prompt: QUESTION, maxRetries: 0 }).textStream) text += part;
  assert(text.toLowerCase().includes("gesso"));
}

async function called(model) {
  const { toolCalls } = await generateText({ model, ...asked, maxRetries: 0 });
  assert(toolCalls[0].toolName === "get_weather" && typeof toolCalls[0].input.city === "string");
}

async function looped(model) {
  const cities = [];
  const execute = async ({ city }) => {
    cities.push(city);
    return "18 degrees, sunny";
  };
  const tools = { get_weather: tool({ description: "Weather", inputSchema: jsonSchema(WEATHER), execute }) };
  const answer = await generateText({ model, prompt: asked.prompt, tools, stopWhen: stepCountIs(3), maxRetries: 0 });
  assert(cities[0] === "Paris" && answer.steps.length > 1);
}

await run({
  async openai() {
    const answer = await generateText({ model: openai(MODEL), prompt: QUESTION, topP: 0.9, maxRetries: 0 });
    assert(answer.text.toLowerCase().includes("gesso"));
  },
  openai_stream: () => streamed(openai(MODEL)),
  openai_tools: () => called(openai(MODEL)),
  openai_tool_loop: () => looped(openai(MODEL)),
  compatible_stream: () => streamed(compatible(MODEL)),
  compatible_tools: () => called(compatible(MODEL)),
  compatible_tool_loop: () => looped(compatible(MODEL)),
  async compatible_object() {
    const options = { model: compatible(MODEL), schema: jsonSchema(PERSON), prompt: "Ada Lovelace is 36 years old." };
    const { object } = await generateObject({ ...options, maxRetries: 0 });
    assert(Number.isInteger(object.age) && typeof object.name === "string");
  },
  anthropic_stream: () => streamed(anthropic(MODEL)),
  anthropic_tools: () => called(anthropic(MODEL)),
  anthropic_tool_loop: () => looped(anthropic(MODEL)),
});

"""LlamaIndex over Ollama's API: chat, and the tool loop of an agent."""

import asyncio

from checks import MODEL, QUESTION, WEATHER_QUESTION, is_text, run
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama


def model(url):
    return Ollama(model=MODEL, base_url=url, request_timeout=300, context_window=1024)


def chat(url):
    is_text(model(url).chat([ChatMessage(role="user", content=QUESTION)]).message.content)


def stream(url):
    is_text("".join(part.delta or "" for part in model(url).stream_chat([ChatMessage(role="user", content=QUESTION)])))


def complete(url):
    is_text(model(url).complete(QUESTION).text)


def tool_loop(url):
    cities = []

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return "18 degrees, sunny"

    async def answer():
        agent = FunctionAgent(tools=[get_weather], llm=model(url))
        return await agent.run(WEATHER_QUESTION)

    asyncio.run(answer())
    assert cities, "the agent called no tool"


run(chat, stream, complete, tool_loop)

"""LlamaIndex over OpenAI's and Ollama's API: texts, streams, and the tool loop of an agent."""

import asyncio

from checks import KEY, MODEL, QUESTION, WEATHER_QUESTION, is_introduction, run
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

MESSAGES = [ChatMessage(role="user", content=QUESTION)]


def openai(url):
    return OpenAILike(
        model=MODEL,
        api_base=f"{url}/v1",
        api_key=KEY,
        context_window=1024,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )


def ollama(url):
    return Ollama(model=MODEL, base_url=url, request_timeout=300, context_window=1024)


def chat(model):
    is_introduction(model.chat(MESSAGES).message.content)


def stream(model):
    is_introduction("".join(part.delta or "" for part in model.stream_chat(MESSAGES)))


def complete(model):
    is_introduction(model.complete(QUESTION).text)


def tool_loop(model):
    cities = []

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return "18 degrees, sunny"

    async def answer():
        agent = FunctionAgent(tools=[get_weather], llm=model)
        return await agent.run(WEATHER_QUESTION)

    result = asyncio.run(answer())
    assert cities[0] == "Paris" and [call.tool_name for call in result.tool_calls][0] == "get_weather", cities


def openai_chat(url):
    chat(openai(url))


def openai_stream(url):
    stream(openai(url))


def openai_complete(url):
    complete(openai(url))


def openai_tool_loop(url):
    tool_loop(openai(url))


def ollama_chat(url):
    chat(ollama(url))


def ollama_stream(url):
    stream(ollama(url))


def ollama_complete(url):
    complete(ollama(url))


def ollama_tool_loop(url):
    tool_loop(ollama(url))


run(
    openai_chat, openai_stream, openai_complete, openai_tool_loop,
    ollama_chat, ollama_stream, ollama_complete, ollama_tool_loop,
)  # fmt: skip

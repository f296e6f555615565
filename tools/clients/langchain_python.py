"""LangChain: its OpenAI integration over chat completions and responses, and an agent's tool loop over three APIs."""

import base64

from checks import (
    KEY,
    MODEL,
    PERSON,
    QUESTION,
    SEEING_MODEL,
    WEATHER,
    WEATHER_QUESTION,
    data_url,
    differ,
    is_person,
    is_text,
    is_weather,
    run,
)  # fmt: skip
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}


def model(url, **more):
    return ChatOpenAI(**{"base_url": f"{url}/v1", "api_key": KEY, "model": MODEL, "max_retries": 0, **more})


def chat(url):
    is_text(model(url).invoke(QUESTION).content)


def stream(url):
    is_text("".join(str(chunk.content) for chunk in model(url).stream(QUESTION)))


def structured(url):
    schema = {"title": "person", "description": "A person", **PERSON}
    is_person(model(url).with_structured_output(schema, method="json_schema").invoke("Ada Lovelace is 36 years old."))


def tools(url):
    bound = model(url).bind_tools([TOOL], tool_choice="get_weather")
    is_weather(bound.invoke(WEATHER_QUESTION).tool_calls[0]["args"])


def responses(url):
    is_text(model(url, use_responses_api=True).invoke(QUESTION).text)


def responses_tools(url):
    bound = model(url, use_responses_api=True).bind_tools([TOOL], tool_choice="get_weather")
    is_weather(bound.invoke(WEATHER_QUESTION).tool_calls[0]["args"])


def responses_stream(url):
    chunks = list(model(url, use_responses_api=True).stream(QUESTION))
    is_text("".join(chunk.text for chunk in chunks))


def loop(model):
    cities = []

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return "18 degrees, sunny"

    agent = create_agent(model, tools=[get_weather])  # a graph of langgraph
    messages = agent.invoke({"messages": [("user", WEATHER_QUESTION)]})["messages"]
    assert cities and messages[-1].type == "ai", messages


def openai_tool_loop(url):
    loop(model(url))


def responses_tool_loop(url):
    loop(model(url, use_responses_api=True))


def anthropic_tool_loop(url):
    loop(ChatAnthropic(base_url=url, api_key=KEY, model=MODEL, max_tokens=128, max_retries=0))


def ollama_tool_loop(url):
    loop(ChatOllama(base_url=url, model=MODEL))


def anthropic_stream(url):
    anthropic = ChatAnthropic(base_url=url, api_key=KEY, model=MODEL, max_tokens=128, max_retries=0)
    is_text("".join(chunk.text for chunk in anthropic.stream(QUESTION)))


def ollama_stream(url):
    is_text("".join(chunk.text for chunk in ChatOllama(base_url=url, model=MODEL).stream(QUESTION)))


def ollama_structured(url):
    schema = {"title": "person", "description": "A person", **PERSON}
    bound = ChatOllama(base_url=url, model=MODEL).with_structured_output(schema, method="json_schema")
    is_person(bound.invoke("Ada Lovelace is 36 years old."))


def images(url):
    seeing = model(url, model=SEEING_MODEL, max_tokens=16, seed=1, use_responses_api=False)

    def by_url(file):
        image = {"type": "image_url", "image_url": {"url": data_url(file)}}
        return seeing.invoke([("user", [image, {"type": "text", "text": "Which colour?"}])]).content

    def by_base64(file):
        image = {"type": "image", "base64": base64.b64encode(file).decode(), "mime_type": "image/png"}
        return seeing.invoke([("user", [image, {"type": "text", "text": "Which colour?"}])]).content

    differ(by_url)
    differ(by_base64)


def responses_images(url):
    seeing = model(url, model=SEEING_MODEL, max_tokens=16, use_responses_api=True, extra_body={"seed": 1})

    def ask(file):
        image = {"type": "image", "base64": base64.b64encode(file).decode(), "mime_type": "image/png"}
        return seeing.invoke([("user", [image, {"type": "text", "text": "Which colour?"}])]).text

    differ(ask)


run(
    chat, stream, structured, tools, openai_tool_loop, responses, responses_tools, responses_stream,
    responses_tool_loop, anthropic_stream, anthropic_tool_loop, ollama_stream, ollama_structured, ollama_tool_loop,
    seeing=[images, responses_images],
)  # fmt: skip

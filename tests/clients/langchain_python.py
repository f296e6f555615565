"""LangChain's OpenAI integration, over chat completions and over responses."""

from checks import KEY, MODEL, PERSON, QUESTION, WEATHER, is_person, is_text, is_weather, run
from langchain_openai import ChatOpenAI

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}


def model(url, **more):
    return ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=MODEL, max_retries=0, **more)


def chat(url):
    is_text(model(url).invoke(QUESTION).content)


def stream(url):
    is_text("".join(str(chunk.content) for chunk in model(url).stream(QUESTION)))


def structured(url):
    schema = {"title": "person", "description": "A person", **PERSON}
    is_person(model(url).with_structured_output(schema, method="json_schema").invoke("Ada Lovelace is 36 years old."))


def tools(url):
    bound = model(url).bind_tools([TOOL], tool_choice="get_weather")
    is_weather(bound.invoke("What is the weather in Paris?").tool_calls[0]["args"])


def responses(url):
    is_text(model(url, use_responses_api=True).invoke(QUESTION).text)


def responses_tools(url):
    bound = model(url, use_responses_api=True).bind_tools([TOOL], tool_choice="get_weather")
    is_weather(bound.invoke("What is the weather in Paris?").tool_calls[0]["args"])


def responses_stream(url):
    chunks = list(model(url, use_responses_api=True).stream(QUESTION))
    is_text("".join(chunk.text for chunk in chunks))


run(chat, stream, structured, tools, responses, responses_tools, responses_stream)

"""LiteLLM as a client of the OpenAI and the Anthropic dialect."""

import litellm
from checks import KEY, MODEL, PERSON, QUESTION, WEATHER, is_person, is_text, is_weather, run

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}


def openai(url):
    return {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": KEY}


def chat(url):
    is_text(litellm.completion(messages=MESSAGES, **openai(url)).choices[0].message.content)


def stream(url):
    chunks = litellm.completion(messages=MESSAGES, stream=True, **openai(url))
    is_text("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


def structured(url):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    messages = [{"role": "user", "content": "Ada Lovelace is 36 years old."}]
    answer = litellm.completion(messages=messages, response_format=schema, **openai(url))
    is_person(answer.choices[0].message.content)


def tools(url):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = litellm.completion(messages=messages, tools=[TOOL], tool_choice="required", **openai(url))
    is_weather(answer.choices[0].message.tool_calls[0].function.arguments)


def responses(url):
    assert litellm.responses(input=QUESTION, **openai(url)).output


def anthropic(url):
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=url, api_key=KEY, messages=MESSAGES, max_tokens=128
    )
    is_text(answer.choices[0].message.content)


run(chat, stream, structured, tools, responses, anthropic)

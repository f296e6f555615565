"""LiteLLM as a client of the OpenAI, the Anthropic and the Ollama dialect."""

import litellm
from checks import KEY, MODEL, PERSON, QUESTION, WEATHER, WEATHER_QUESTION, is_person, is_text, is_weather, run

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
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    answer = litellm.completion(messages=messages, tools=[TOOL], tool_choice="required", **openai(url))
    is_weather(answer.choices[0].message.tool_calls[0].function.arguments)


def responses(url):
    assert litellm.responses(input=QUESTION, **openai(url)).output


def anthropic(url):
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=url, api_key=KEY, messages=MESSAGES, max_tokens=128
    )
    is_text(answer.choices[0].message.content)


def ollama(url):
    answer = litellm.completion(model=f"ollama/{MODEL}", api_base=url, messages=MESSAGES)
    is_text(answer.choices[0].message.content)


def ollama_chat(url):
    chunks = litellm.completion(model=f"ollama_chat/{MODEL}", api_base=url, messages=MESSAGES, stream=True)
    is_text("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


def ollama_chat_tool_loop(url):
    options = {"model": f"ollama_chat/{MODEL}", "api_base": url, "tools": [TOOL], "seed": 1}
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    message = litellm.completion(messages=messages, **options).choices[0].message
    is_weather(message.tool_calls[0].function.arguments)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees, sunny"}
    after = litellm.completion(messages=[*messages, message.model_dump(), result], **options).choices[0].message
    assert after.content or after.tool_calls


def overflow(url):
    try:
        litellm.completion(messages=[{"role": "user", "content": "word " * 5000}], **openai(url))
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt longer than the context was accepted")


run(chat, stream, structured, tools, responses, anthropic, ollama, ollama_chat, ollama_chat_tool_loop, overflow)

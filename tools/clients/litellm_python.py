"""LiteLLM over three APIs: OpenAI's as `openai/`, Ollama's as `ollama/` and `ollama_chat/`, and Anthropic's."""

import litellm
from checks import KEY, MODEL, PERSON, QUESTION, WEATHER, WEATHER_QUESTION, is_introduction, is_person, is_weather, run

MESSAGES = [{"role": "user", "content": QUESTION}]
PERSON_MESSAGES = [{"role": "user", "content": "Ada Lovelace is 36 years old."}]
PERSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}


def openai(url):
    return {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": KEY}


def ollama(url):
    return {"model": f"ollama/{MODEL}", "api_base": url}


def ollama_chat(url):
    return {"model": f"ollama_chat/{MODEL}", "api_base": url}


def chat(model):
    is_introduction(litellm.completion(messages=MESSAGES, **model).choices[0].message.content)


def stream(model):
    chunks = litellm.completion(messages=MESSAGES, stream=True, **model)
    is_introduction("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


def structured(model):
    answer = litellm.completion(messages=PERSON_MESSAGES, response_format=PERSON_FORMAT, **model)
    is_person(answer.choices[0].message.content)


def tool_loop(model):
    options = {**model, "tools": [TOOL], "seed": 1}
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    message = litellm.completion(messages=messages, **options).choices[0].message
    is_weather(message.tool_calls[0].function.arguments)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees, sunny"}
    after = litellm.completion(messages=[*messages, message.model_dump(), result], **options).choices[0].message
    assert after.content or after.tool_calls


def openai_chat(url):
    chat(openai(url))


def openai_stream(url):
    stream(openai(url))


def openai_structured(url):
    structured(openai(url))


def openai_tool_loop(url):
    tool_loop(openai(url))


def openai_responses(url):
    answer = litellm.responses(input=QUESTION, **openai(url))
    is_introduction(answer.output[-1].content[0].text)


def openai_overflow(url):
    try:
        litellm.completion(messages=[{"role": "user", "content": "word " * 5000}], **openai(url))
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt longer than the context was accepted")


def ollama_text(url):
    chat(ollama(url))


def ollama_stream(url):
    stream(ollama(url))


def ollama_structured(url):
    structured(ollama(url))


def ollama_chat_text(url):
    chat(ollama_chat(url))


def ollama_chat_stream(url):
    stream(ollama_chat(url))


def ollama_chat_structured(url):
    structured(ollama_chat(url))


def ollama_chat_tool_loop(url):
    tool_loop(ollama_chat(url))


def anthropic(url):
    chat({"model": f"anthropic/{MODEL}", "api_base": url, "api_key": KEY, "max_tokens": 128})


run(
    openai_chat, openai_stream, openai_structured, openai_tool_loop, openai_responses, openai_overflow,
    ollama_text, ollama_stream, ollama_structured,
    ollama_chat_text, ollama_chat_stream, ollama_chat_structured, ollama_chat_tool_loop, anthropic,
)  # fmt: skip

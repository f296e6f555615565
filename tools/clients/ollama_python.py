"""The official Ollama client."""

import ollama
from checks import (
    MODEL,
    PERSON,
    QUESTION,
    SEEING_MODEL,
    WEATHER,
    WEATHER_QUESTION,
    differ,
    is_person,
    is_text,
    is_weather,
    run,
)

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}


def chat(url):
    answer = ollama.Client(host=url).chat(model=MODEL, messages=MESSAGES, options={"seed": 1})
    is_text(answer.message.content)
    assert answer.done and answer.eval_count > 0


def stream(url):
    parts = list(ollama.Client(host=url).chat(model=MODEL, messages=MESSAGES, stream=True))
    is_text("".join(part.message.content or "" for part in parts))
    assert parts[-1].done


def generate(url):
    is_text(ollama.Client(host=url).generate(model=MODEL, prompt="Who are you?", options={"num_predict": 64}).response)


def structured(url):
    messages = [{"role": "user", "content": "Ada Lovelace is 36 years old."}]
    is_person(ollama.Client(host=url).chat(model=MODEL, messages=messages, format=PERSON).message.content)


def tools(url):
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    message = ollama.Client(host=url).chat(model=MODEL, messages=messages, tools=[TOOL]).message
    for call in message.tool_calls or ():  # this dialect cannot require a call
        is_weather(call.function.arguments)
    assert message.tool_calls or message.content


def tool_loop(url):
    client, messages = ollama.Client(host=url), [{"role": "user", "content": WEATHER_QUESTION}]
    message = client.chat(model=MODEL, messages=messages, tools=[TOOL], options={"seed": 1}).message
    is_weather(message.tool_calls[0].function.arguments)
    result = {"role": "tool", "content": "18 degrees, sunny"}  # as in Ollama's examples before tool_name
    after = client.chat(model=MODEL, messages=[*messages, message, result], tools=[TOOL], options={"seed": 1}).message
    assert after.content or after.tool_calls


def models(url):
    client = ollama.Client(host=url)
    assert any(model.model.startswith(MODEL) for model in client.list().models)
    assert client.show(MODEL).details is not None
    assert any(model.model.startswith(MODEL) for model in client.ps().models)
    assert client.pull(MODEL).status == "success"


def errors(url):
    try:
        ollama.Client(host=url).chat(model="no-such-model", messages=MESSAGES)
    except ollama.ResponseError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("an unknown model was accepted")


def images(url):
    client, options = ollama.Client(host=url), {"seed": 1, "num_predict": 16}

    def chat(file):
        message = {"role": "user", "content": "Which colour?", "images": [file]}
        return client.chat(model=SEEING_MODEL, messages=[message], options=options).message.content

    def generate(file):
        return client.generate(model=SEEING_MODEL, prompt="Which colour?", images=[file], options=options).response

    differ(chat)
    differ(generate)
    assert "vision" in client.show(SEEING_MODEL).capabilities


run(chat, stream, generate, structured, tools, tool_loop, models, errors, seeing=[images])

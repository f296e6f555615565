"""The official OpenAI client: chat, streams, structured output, tools, responses, and fields without effect."""

import openai
from checks import (
    KEY,
    MODEL,
    PERSON,
    QUESTION,
    RED,
    SEEING_MODEL,
    WEATHER,
    data_url,
    differ,
    is_person,
    is_text,
    is_weather,
    run,
)  # fmt: skip

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}
RESPONSE_TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def chat(url):
    answer = client(url).chat.completions.create(model=MODEL, messages=MESSAGES, seed=1)
    is_text(answer.choices[0].message.content)
    assert answer.usage.completion_tokens > 0


def stream(url):
    options = {"include_usage": True}
    chunks = list(
        client(url).chat.completions.create(model=MODEL, messages=MESSAGES, seed=1, stream=True, stream_options=options)
    )
    is_text("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    assert chunks[-1].usage.completion_tokens > 0


def sampling_hints(url):
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        seed=1,
        top_p=0.9,
        frequency_penalty=0.5,
        presence_penalty=0.1,
        metadata={"run": "1"},
        store=True,
        extra_body={"top_k": 20, "min_p": 0.05, "skip_special_tokens": True, "prompt_cache_key": "k"},
    )
    is_text(answer.choices[0].message.content)


def structured(url):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    messages = [{"role": "user", "content": "Ada Lovelace is 36 years old."}]
    answer = client(url).chat.completions.create(model=MODEL, messages=messages, response_format=schema, seed=1)
    is_person(answer.choices[0].message.content)


def tools(url):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = {"model": MODEL, "tools": [TOOL], "seed": 1}
    answer = client(url).chat.completions.create(messages=messages, tool_choice="required", **asked)
    message = answer.choices[0].message
    is_weather(message.tool_calls[0].function.arguments)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees, sunny"}
    after = client(url).chat.completions.create(
        messages=[*messages, message.model_dump(exclude_none=True), result], tool_choice="none", **asked
    )
    is_text(after.choices[0].message.content)


def responses(url):
    first = client(url).responses.create(model=MODEL, input=QUESTION)
    is_text(first.output_text)
    again = client(url).responses.create(model=MODEL, input="And what can you do?", previous_response_id=first.id)
    is_text(again.output_text)


def responses_stream(url):
    with client(url).responses.stream(model=MODEL, input=QUESTION) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds


def responses_tools(url):
    answer = client(url).responses.create(
        model=MODEL, input="What is the weather in Paris?", tools=[RESPONSE_TOOL], tool_choice="required"
    )
    is_weather(next(item for item in answer.output if item.type == "function_call").arguments)


def completions_and_models(url):
    assert MODEL in [model.id for model in client(url).models.list()]
    is_text(client(url).completions.create(model=MODEL, prompt="def fib(n):", max_tokens=64, seed=7).choices[0].text)


def errors(url):
    try:
        client(url).chat.completions.create(model="no-such-model", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("an unknown model was accepted")


def images(url):
    def ask(file):
        image = {"type": "image_url", "image_url": {"url": data_url(file), "detail": "low"}}
        messages = [{"role": "user", "content": [image, {"type": "text", "text": "Which colour?"}]}]
        answer = client(url).chat.completions.create(model=SEEING_MODEL, messages=messages, seed=1, max_tokens=16)
        return answer.choices[0].message.content

    differ(ask)
    assert next(iter(client(url).models.list())).vision is True


def responses_images(url):
    def ask(file):
        image = {"type": "input_image", "image_url": data_url(file), "detail": "auto"}
        given = [{"role": "user", "content": [image, {"type": "input_text", "text": "Which colour?"}]}]
        return respond(input=given).output_text

    def respond(**more):
        return client(url).responses.create(model=SEEING_MODEL, max_output_tokens=16, extra_body={"seed": 1}, **more)

    differ(ask)
    image = {"type": "input_image", "image_url": data_url(RED), "detail": "auto"}
    first = respond(input=[{"role": "user", "content": [image]}])
    again = respond(input="Which colour?", previous_response_id=first.id)
    assert again.usage.input_tokens > first.usage.input_tokens


run(
    chat, stream, sampling_hints, structured, tools, responses, responses_stream, responses_tools,
    completions_and_models, errors, seeing=[images, responses_images],
)  # fmt: skip

"""The official Anthropic client: messages, streams, tools, its tool runner, prefilled answers and token counts."""

import base64

import anthropic
from checks import KEY, MODEL, QUESTION, SEEING_MODEL, WEATHER, WEATHER_QUESTION, differ, is_text, is_weather, run

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}


def client(url):
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


def messages(url):
    answer = client(url).messages.create(model=MODEL, max_tokens=128, system="You are helpful.", messages=MESSAGES)
    is_text(answer.content[0].text)
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.usage.output_tokens > 0


def stream(url):
    with client(url).messages.stream(model=MODEL, max_tokens=128, messages=MESSAGES) as events:
        is_text("".join(events.text_stream))
        assert events.get_final_message().usage.output_tokens > 0


def tools(url):
    asked = [{"role": "user", "content": WEATHER_QUESTION}]
    options = {"model": MODEL, "max_tokens": 128, "tools": [TOOL]}
    answer = client(url).messages.create(messages=asked, tool_choice={"type": "any"}, **options)
    call = next(block for block in answer.content if block.type == "tool_use")
    is_weather(call.input)
    assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees, sunny"}
    content = [block.model_dump(exclude_none=True) for block in answer.content]
    turns = [*asked, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    after = client(url).messages.create(messages=turns, **options)
    assert after.content


def streamed_tools(url):
    asked = [{"role": "user", "content": WEATHER_QUESTION}]
    chosen = {"type": "tool", "name": "get_weather"}
    options = {"model": MODEL, "max_tokens": 128, "tools": [TOOL]}
    with client(url).messages.stream(messages=asked, tool_choice=chosen, **options) as events:
        message = events.get_final_message()
    is_weather(next(block for block in message.content if block.type == "tool_use").input)


def tool_runner(url):
    cities = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Return the weather of a city.

        Args:
            city: its name
        """
        cities.append(city)
        return "18 degrees, sunny"

    asked = [{"role": "user", "content": WEATHER_QUESTION}]
    options = {"model": MODEL, "max_tokens": 128, "tools": [get_weather], "max_iterations": 3}
    answer = client(url).beta.messages.tool_runner(messages=asked, **options).until_done()
    assert cities and answer.content


def prefill(url):
    start = "def add(a, b):\n    return"
    asked = [{"role": "user", "content": "Add two numbers."}, {"role": "assistant", "content": start}]
    text = client(url).messages.create(model=MODEL, max_tokens=64, messages=asked).content[0].text
    is_text(text)
    assert "def add" not in text, text


def count_tokens(url):
    assert client(url).messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


def errors(url):
    try:
        client(url).messages.create(model="no-such-model", max_tokens=16, messages=MESSAGES)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    else:
        raise AssertionError("an unknown model was accepted")


def image_of(file):
    data = base64.b64encode(file).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def images(url):
    def ask(file):
        content = [image_of(file), {"type": "text", "text": "Which colour?"}]
        asked = [{"role": "user", "content": content}]
        options = {"model": SEEING_MODEL, "max_tokens": 16, "extra_body": {"seed": 1}}
        return client(url).messages.create(messages=asked, **options).content[0].text

    differ(ask)


def images_of_tools(url):
    def ask(file):
        call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image_of(file)]}
        turns = [
            {"role": "user", "content": "What is the weather in Paris?"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        options = {"model": SEEING_MODEL, "max_tokens": 16, "extra_body": {"seed": 1}}
        return client(url).messages.create(messages=turns, **options).content[0].text

    differ(ask)


run(
    messages, stream, tools, streamed_tools, tool_runner, prefill, count_tokens, errors,
    seeing=[images, images_of_tools],
)  # fmt: skip

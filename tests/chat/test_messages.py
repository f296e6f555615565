"""Invalid messages and tools are named by index and field; a schema is added to the right message."""

import json
from typing import Any

import pytest

from gesso.chat.messages import SCHEMA_INSTRUCTION, check_messages, with_schema
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from tests.chat.test_tokenizer import USER, WEATHER, call


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("Why?", "messages[1]"),
        ({"content": "Why?"}, "messages[1].role"),
        ({"role": "human", "content": "Why?"}, "messages[1].role"),
        ({"role": ["user"], "content": "Why?"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": ["Why?"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": "Why?", "extra": object()}, "messages[1]"),
        ({"role": "user", "content": "Why?", "tool_calls": [call()]}, "messages[1].tool_calls"),
        ({"role": "system", "content": None}, "messages[1].content"),
        ({"role": "assistant", "tool_calls": call()}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [call("")]}, "messages[1].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [call("f{")]}, "messages[1].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [call(arguments="{")]}, "messages[1].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [call(arguments="[1]")]}, "messages[1].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [call(arguments='{"a": NaN}')]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{**call(), "id": ["c1"]}]}, "messages[1].tool_calls[0].id"),
        ({"role": "tool", "content": "wet"}, "messages[1].tool_call_id"),
        ({"role": "tool", "content": "wet", "tool_call_id": "c9"}, "messages[1].tool_call_id"),
        ({"role": "tool", "content": "wet", "name": "no name"}, "messages[1].name"),
    ],
)
def test_invalid_message_is_named_by_index_and_field(tokenizer: Tokenizer, message: Any, place: str) -> None:
    with pytest.raises(InputError) as caught:
        tokenizer.render([USER, message])
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("messages", [None, [], "Why?", USER, 3])
def test_messages_must_be_nonempty_list(tokenizer: Tokenizer, messages: Any) -> None:
    with pytest.raises(InputError, match="^messages: "):
        tokenizer.render(messages)


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ("weather", "tools"),
        ({"name": "f"}, "tools"),
        ([print], "tools[0]"),
        ([WEATHER, {"type": "function"}], "tools[1].name"),
        ([{"type": "function", "function": "f"}], "tools[0].function"),
        ([{"name": "no name"}], "tools[0].name"),
        ([{"name": "f", "description": 3}], "tools[0].description"),
        ([{"name": "f", "parameters": []}, {"name": "f"}], "tools[1].name"),
        ([{"name": "f", "parameters": "none"}], "tools[0].parameters"),
    ],
)
def test_invalid_tool_is_named_by_index_and_field(tokenizer: Tokenizer, tools: Any, place: str) -> None:
    with pytest.raises(InputError) as caught:
        tokenizer.render([USER], tools=tools)
    assert str(caught.value).startswith(place)


def test_messages_of_caller_are_not_changed(tokenizer: Tokenizer) -> None:
    messages: list[dict[str, Any]] = [{"role": "model", "content": None, "tool_calls": [call(arguments='{"a": 1}')]}]
    before = json.dumps(messages)
    tokenizer.render(messages)
    assert json.dumps(messages) == before


def test_schema_is_added_to_the_last_message_that_is_not_by_the_model_or_a_tool() -> None:
    schema = {"type": "object", "properties": {"größe": {"type": "integer"}}}
    added = f"\n{SCHEMA_INSTRUCTION}" + '{"type":"object","properties":{"größe":{"type":"integer"}}}'
    user, model = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}
    assert with_schema([user, user, model], schema) == [user, {"role": "user", "content": "Hi" + added}, model]
    assert user["content"] == "Hi", "the caller's messages are not changed"
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert check_messages(with_schema([parts], schema))[0]["content"] == "Hi" + added
    assert with_schema([user], None) == with_schema([user], True) == [user]
    assert with_schema([model], schema) == [model]


@pytest.mark.parametrize("messages", [None, [], ["x"], [{"role": "user"}], 3])
def test_wrong_messages_are_left_to_their_check(messages: Any) -> None:
    with pytest.raises(InputError, match="messages"):
        check_messages(with_schema(messages, {"type": "object"}))

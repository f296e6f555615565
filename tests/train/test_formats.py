"""Rows of other tools become the conversations that they mean."""

import json

import pytest

from gesso.errors import InputError
from gesso.train.data import Dataset
from gesso.train.formats import from_alpaca, from_sharegpt
from gesso.train.recipe import DataSettings
from gesso.train.rows import tokenise
from tests.train.datasets import CALL, EOS, TOOLS

HUMAN, GPT = {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}
USER, REPLY = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"conversations": [HUMAN, GPT]}, [USER, REPLY]),
        ({"conversations": [USER, REPLY]}, [USER, REPLY]),
        ({"conversations": [{"from": "system", "value": "Be brief."}, HUMAN, GPT]}, [SYSTEM, USER, REPLY]),
        ({"conversations": [HUMAN, GPT, HUMAN, GPT], "system": "Be brief."}, [SYSTEM, USER, REPLY, USER, REPLY]),
        ({"instruction": "Why?", "output": "So."}, [USER, REPLY]),
        ({"instruction": "Why?", "input": "", "output": "So.", "system": "Be brief."}, [SYSTEM, USER, REPLY]),
        ({"instruction": "Why", "input": "now?", "output": "So."}, [{**USER, "content": "Why\n\nnow?"}, REPLY]),
        ({"instruction": "Why?", "output": "So.", "text": "### Instruction: Why? So."}, [USER, REPLY]),
        ({"messages": [USER, REPLY], "prompt": "Why?"}, [USER, REPLY]),
    ],
)
def test_row_has_the_tokens_of_its_messages(row, messages, tokenizer):  # noqa: F811
    assert tokenise(row, tokenizer, EOS) == tokenise({"messages": messages}, tokenizer, EOS)


def test_calls_and_results_of_tools_keep_their_order_and_names(tokenizer):  # noqa: F811
    call = {"from": "function_call", "value": json.dumps({"name": "look", "arguments": {"at": "sky"}})}
    turns = [HUMAN, call, {"from": "observation", "value": "blue"}, GPT]
    row = {"conversations": turns, "tools": json.dumps(TOOLS)}
    result = {"role": "tool", "name": "look", "content": "blue"}
    expected = {"messages": [USER, CALL, result, REPLY], "tools": TOOLS}
    assert tokenise(row, tokenizer, EOS) == tokenise(expected, tokenizer, EOS)
    two = {**call, "value": json.dumps([{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}])}
    results = [{"from": "tool", "value": "1"}, {"from": "tool", "value": "2"}]
    messages = from_sharegpt({"conversations": [HUMAN, two, *results, GPT]})["messages"]
    assert [message.get("name") for message in messages] == [None, None, "a", "b", None]


def test_tools_that_are_no_json_are_rejected():
    with pytest.raises(InputError, match="tools: not JSON"):
        from_sharegpt({"conversations": [HUMAN, GPT], "tools": "look(at)"})


def test_input_without_instruction_is_the_question():
    assert from_alpaca({"instruction": "", "input": "Why?", "output": "So."})["messages"] == [USER, REPLY]


def test_an_alpaca_row_with_its_text_is_a_conversation_in_views_too(tmp_path, tokenizer):  # noqa: F811
    """`cut` shows texts in sections, and only texts."""
    rows = [{"instruction": "Why?", "output": "So. " * 40, "text": "Why? So."}, {"text": "word " * 200}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = DataSettings(files=(str(tmp_path / "rows.jsonl"),), max_length=64, cut=True, on_bad_row="skip")
    dataset = Dataset(settings, tokenizer, EOS)
    assert [row.line for row in dataset.rejected] == [1]

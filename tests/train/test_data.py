"""Training data: only responses are targets, every bad row is named, the order is fixed."""

import gzip
import itertools
import lzma
import random
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train.data import Example, Rejected
from gesso.train.reading import PARALLEL_BYTES
from gesso.train.recipe import DataSettings
from tests.train.datasets import CALL, EOS, REPLY, RESULT, TOOLS, USER, dataset, make_tokenizer, thought, write

# As in some checkpoints: with thinking off, generation starts after an empty thought that the history does not have.
EMPTY_THOUGHT_TEMPLATE = """{{ bos_token }}
{%- for m in messages %}{{ '<|turn>' + m.role + '\n' + m.content + '<turn|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>assistant\n' }}
{%- if not enable_thinking %}{{ '<|channel>thought\n<channel|>' }}{% endif %}{% endif %}"""

# Only special tokens between turns, so that a span that is off by one also ends at a special token.
DENSE_TEMPLATE = """{{ bos_token }}
{%- for m in messages %}{{ '<|turn>' + m.role + '\n' + m.content + '<turn|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>assistant\n' }}{% endif %}"""


def one(tmp_path: Path, tokenizer: Tokenizer, row: Any) -> Example:
    (read,) = dataset(tokenizer, write(tmp_path / "one.jsonl", row)).read()
    assert isinstance(read, Example), read
    return read


def reason(tmp_path: Path, tokenizer: Tokenizer, row: Any, **settings: Any) -> str:
    (read,) = dataset(tokenizer, write(tmp_path / "one.jsonl", row), **settings).read()
    assert isinstance(read, Rejected), read
    return read.reason


def targets(example: Example, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(example.tokens[start:end], special=True) for start, end in example.spans]


# --- targets --------------------------------------------------------------------------------------------------------


def test_completion_and_eos_are_targets_after_bos_and_prompt(tmp_path, tokenizer):
    example = one(tmp_path, tokenizer, {"prompt": "ab", "completion": "cd", "id": 7, "text": None})
    assert list(example.tokens) == [2, *tokenizer.encode("abcd", bos=False), EOS]
    assert example.spans == ((3, 6),)
    assert (Path(example.source).name, example.line) == ("one.jsonl", 1)


@pytest.mark.parametrize("text", ["abc", "<bos>abc", "abc<eos>"])
def test_whole_text_is_target_with_one_bos_and_one_eos(tmp_path, tokenizer, text):
    example = one(tmp_path, tokenizer, {"text": text})
    assert list(example.tokens) == [2, *tokenizer.encode("abc", bos=False), EOS]
    assert example.spans == ((1, 5),)


def test_only_responses_of_a_conversation_are_targets(tmp_path, tokenizer):
    system = {"role": "system", "content": "Be brief."}
    messages = [system, USER, REPLY, {"role": "user", "content": "And?"}, {"role": "model", "content": " No.\n"}]
    example = one(tmp_path, tokenizer, {"messages": messages})
    assert targets(example, tokenizer) == ["So.<turn|>", " No.\n<turn|>"]
    assert (
        tokenizer.decode(example.tokens, special=True) == tokenizer.render(messages, generation_prompt=False).rstrip()
    )


def test_response_starts_where_generation_would_start(tmp_path, tokenizer):
    messages = [USER, REPLY, USER, CALL, RESULT, {"role": "assistant", "content": "Blue."}, USER, REPLY]
    example = one(tmp_path, tokenizer, {"messages": messages, "tools": TOOLS})
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(example.spans) == len(turns) and example.context_only == 0
    for (start, _), index in zip(example.spans, turns, strict=True):
        assert list(example.tokens[:start]) == tokenizer.chat(messages[:index], tools=TOOLS).tokens


def test_tool_call_target_ends_with_its_special_token(tmp_path, tokenizer):
    row = {"messages": [USER, CALL, RESULT, REPLY], "tools": TOOLS}
    call = '<|tool_call>call:look{at:<|"|>sky<|"|>}<tool_call|>'
    assert targets(one(tmp_path, tokenizer, row), tokenizer) == [call + "<|tool_response>", "So.<turn|>"]
    assert targets(one(tmp_path, tokenizer, {"messages": [USER, CALL]}), tokenizer) == [call + "<turn|>"]


@pytest.mark.parametrize("template", [None, DENSE_TEMPLATE])
def test_response_that_would_merge_with_its_prompt_keeps_its_tokens(tmp_path, template):
    tokenizer = make_tokenizer(tmp_path / "model", template)
    newline = {"role": "assistant", "content": "\nSo."}
    example = one(tmp_path, tokenizer, {"messages": [USER, newline]})
    assert list(example.tokens[: example.spans[0][0]]) == tokenizer.chat([USER]).tokens
    assert targets(example, tokenizer) == ["\nSo.<turn|>"]
    # As history it is rendered as "model\n\nSo.", in other tokens, so it can only be context.
    example = one(tmp_path, tokenizer, {"messages": [USER, newline, USER, REPLY]})
    assert list(example.tokens[: example.spans[0][0]]) == tokenizer.chat([USER, newline, USER]).tokens
    assert (targets(example, tokenizer), example.context_only) == (["So.<turn|>"], 1)


def test_last_thought_is_target_with_thinking_on(tmp_path, tokenizer):
    example = one(tmp_path, tokenizer, {"messages": [USER, thought("Hm.", "So.")]})
    assert targets(example, tokenizer) == ["<|channel>thought\nHm.<channel|>So.<turn|>"]
    assert list(example.tokens[: example.spans[0][0]]) == tokenizer.chat([USER], thinking=True).tokens


@pytest.mark.parametrize("first", [thought("Oh.", "So."), REPLY])
def test_responses_before_a_thought_are_context_only(tmp_path, tokenizer, first):
    example = one(tmp_path, tokenizer, {"messages": [USER, first, USER, thought("Hm.", "No.")]})
    assert (targets(example, tokenizer), example.context_only) == (["<|channel>thought\nHm.<channel|>No.<turn|>"], 1)
    assert "Oh." not in tokenizer.decode(example.tokens)


def test_earlier_thought_is_dropped_and_its_answer_is_context_only(tmp_path, tokenizer):
    example = one(tmp_path, tokenizer, {"messages": [USER, thought("Hm.", "No."), USER, REPLY]})
    assert (targets(example, tokenizer), example.context_only) == (["So.<turn|>"], 1)
    assert "<|think|>" not in tokenizer.decode(example.tokens, special=True)


def test_template_with_empty_thought_keeps_it_before_the_last_response(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "model", EMPTY_THOUGHT_TEMPLATE)
    example = one(tmp_path, tokenizer, {"messages": [USER, REPLY, USER, {"role": "assistant", "content": "No."}]})
    start = example.spans[0][0]
    assert list(example.tokens[:start]) == tokenizer.chat([USER, REPLY, USER]).tokens
    assert tokenizer.decode(example.tokens[:start], special=True).endswith("<|channel>thought\n<channel|>")
    assert (targets(example, tokenizer), example.context_only) == (["No.<turn|>"], 1)
    kept = one(tmp_path, tokenizer, {"messages": [USER, thought("Hm.", "So.")]})
    assert targets(kept, tokenizer) == ["<|channel>thought\nHm.<channel|>So.<turn|>"]


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{{ messages | length }}{% for m in messages %}{{ m.content }}<turn|>{% endfor %}", "differently once"),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "without a special token"),
        ("{% for m in messages %}{{ m.content[:2] }}<turn|>{% endfor %}", "leaves out part of messages[1]: 'So.'"),
        ("{{ raise_exception('never') }}", "never"),
    ],
)
def test_template_that_hides_the_response_is_rejected_with_the_reason(tmp_path, template, wanted):
    assert wanted in reason(tmp_path, make_tokenizer(tmp_path / "model", template), {"messages": [USER, REPLY]})


# --- rejected rows --------------------------------------------------------------------------------------------------

BAD_ROWS: list[tuple[Any, str]] = [
    (b"", "empty line"),
    (b"  ", "empty line"),
    (b'{"text": "a"', "not JSON"),
    (b'{"text": "\xff"}', "not UTF-8: byte 0xff at byte 11"),
    (b"[" * 100_000, "not JSON"),
    (b'{"text": "a", "text": "b"}', "'text' is given twice"),
    ([1], "expected a JSON object, got a list"),
    ({}, "has no key"),
    ({"question": "a", "answer": "b"}, "has question, answer"),
    ({"messages": [USER, REPLY], "text": "a"}, "has messages, text"),
    ({"messages": [USER, REPLY], "conversations": []}, "has messages, conversations"),
    ({"instruction": "a"}, "output is missing"),
    ({"output": "a"}, "instruction is missing"),
    ({"instruction": " ", "output": "a"}, "instruction is empty"),
    ({"instruction": "a", "output": ""}, "output is empty"),
    ({"instruction": "a", "output": 3}, "output: expected text, got int"),
    ({"instruction": "a", "output": "b", "system": ["c"]}, "system: expected text"),
    ({"conversation": []}, "'conversation': is 'conversations' meant?"),
    ({"conversations": []}, "at least one turn"),
    ({"conversations": ["Why?"]}, "conversations[0]: expected an object with from and value"),
    ({"conversations": [{"from": "robot", "value": "a"}]}, "conversations[0].from: expected one of system, human"),
    ({"conversations": [{"from": "human", "value": 3}]}, "conversations[0].value: expected text, got int"),
    ({"conversations": [{"from": "gpt", "value": "a"}]}, "expected system or developer or user at the start"),
    ({"conversations": [{"from": "observation", "value": "a"}]}, "without a function_call"),
    ({"conversations": [{"from": "function_call", "value": "look()"}]}, "conversations[0].value: not JSON"),
    ({"conversations": [{"from": "function_call", "value": "[1]"}]}, "JSON object with name and arguments"),
    ({"text": "a", "prompt": "b", "completion": "c"}, "has prompt, completion, text"),
    ({"prompt": "a"}, "completion is missing"),
    ({"completion": "a"}, "prompt is missing"),
    ({"tools": []}, "messages is missing"),
    ({"text": "a", "tools": []}, "has tools, text"),
    ({"prompt": "a", "completions": "b"}, "'completions': is 'completion' meant?"),
    ({"message": [USER, REPLY]}, "'message': is 'messages' meant?"),
    ({"messages": [USER, REPLY], "tool": []}, "'tool': is 'tools' meant?"),
    ({"text": ["a"]}, "text: expected text, got list"),
    ({"prompt": [USER], "completion": [REPLY]}, "prompt: expected text"),
    ({"text": ""}, "text is empty"),
    ({"text": "<eos>"}, "text is empty"),
    ({"prompt": "a", "completion": " \n"}, "completion is empty"),
    ({"text": "a<eos>b"}, "contains <eos> before its end, at token 2"),
    ({"text": "\ud800"}, "surrogate"),
    ({"messages": []}, "at least one message"),
    ({"messages": "Why?"}, "at least one message"),
    ({"messages": [USER, {"role": "assistant", "content": 3}]}, "messages[1].content: expected text"),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, "messages[1].content is empty"),
    ({"messages": [USER, thought("Hm.", "")]}, "messages[1].content is empty"),
    ({"messages": [USER, {"role": "assistant", "content": "a<turn|>b"}]}, "messages[1] contains <turn|>"),
    ({"messages": [USER, REPLY | {"reasoning_content": "Hm."}]}, "messages[1].reasoning_content: unknown"),
    ({"messages": [USER, REPLY | {"content": "a<|channel>b<channel|>c"}]}, "leaves out part of messages[1]"),
    ({"messages": [USER]}, "ends with 'user'"),
    ({"messages": [USER, REPLY, USER]}, "ends with 'user'"),
    ({"messages": [USER, CALL, RESULT]}, "ends with 'tool'"),
    ({"messages": [REPLY]}, "messages[0].role: expected system or developer or user at the start, got 'assistant'"),
    ({"messages": [USER, USER, REPLY]}, "messages[1].role: expected assistant after 'user', got 'user'"),
    ({"messages": [USER, REPLY, REPLY]}, "messages[2].role: expected user after 'assistant'"),
    ({"messages": [USER, CALL, REPLY]}, "expected tool after a tool call"),
    ({"messages": [USER, REPLY, {"role": "tool", "name": "look", "content": ""}, REPLY]}, "got 'tool'"),
    ({"messages": [USER, REPLY, {"role": "system", "content": ""}, REPLY]}, "got 'system'"),
    ({"messages": [USER, {"role": "robot", "content": "a"}]}, "messages[1].role: expected one of"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "wanted"), BAD_ROWS)
def test_bad_row_is_rejected_with_the_reason(tmp_path, tokenizer, row, wanted):
    assert wanted in reason(tmp_path, tokenizer, row)


@pytest.mark.parametrize("row", [{"text": "a"}, {"prompt": "", "completion": "a"}])
def test_response_without_context_is_rejected(tmp_path, row):
    directory = tmp_path / "model"
    make_tokenizer(directory)
    (directory / "tokenizer_config.json").write_text('{"bos_token": null}')
    assert "nothing comes before the response" in reason(tmp_path, Tokenizer.from_directory(directory), row)


def test_row_one_token_too_long_is_rejected_with_its_length(tmp_path, tokenizer):
    row = {"text": "abcd"}  # with bos and eos, six tokens
    assert reason(tmp_path, tokenizer, row, max_length=5) == "too long: 6 tokens, max_length is 5"
    assert dataset(tokenizer, write(tmp_path / "a.jsonl", row), max_length=6).good == 1


def test_every_row_of_every_file_is_read_good_or_bad(tmp_path, tokenizer):
    first = write(tmp_path / "a.jsonl", {"text": "a"}, *(row for row, _ in BAD_ROWS), {"text": "b"})
    second = tmp_path / "b.jsonl"
    second.write_bytes(
        b'\xef\xbb\xbf{"text": "c"}\r\n\r\n{"text": "d"}'
    )  # byte order mark, CRLF, no newline at the end
    rows = dataset(tokenizer, first, str(second))
    read = list(rows.read())
    lines = len(BAD_ROWS) + 2
    assert [(row.source, row.line) for row in read] == [
        *((first, line) for line in range(1, lines + 1)),
        *((str(second), line) for line in (1, 2, 3)),
    ]
    assert rows.rejected == [row for row in read if isinstance(row, Rejected)]
    assert [type(row) for row in read] == [Example, *[Rejected] * len(BAD_ROWS), Example, Example, Rejected, Example]
    assert (rows.rows, rows.good) == (lines + 3, 4)


def test_on_bad_row_stop_names_the_first_twenty_with_file_and_line(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"text": "a"}, *[b"{"] * 30)
    with pytest.raises(InputError) as caught:
        dataset(tokenizer, name, on_bad_row="stop")
    message = str(caught.value)
    assert "30 of 31 rows cannot be used" in message and "and 10 more" in message
    assert [f"{name}:{line}: not JSON" in message for line in range(1, 32)] == [False] + [True] * 20 + [False] * 10


@pytest.mark.parametrize("rows", [[], [b"{"]])
def test_dataset_without_good_rows_is_rejected(tmp_path, tokenizer, rows):
    with pytest.raises(InputError, match="no row to train on"):
        dataset(tokenizer, write(tmp_path / "a.jsonl", *rows)).batches(2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("files", ()), ("files", "a.jsonl"), ("files", ("a.txt",)), ("files", (3,)), ("max_length", 1),
        ("max_length", 8.0), ("max_length", True), ("on_bad_row", "ignore"), ("seed", -1), ("seed", "0"),
    ],
)  # fmt: skip
def test_invalid_data_setting_is_named(setting, value):
    with pytest.raises(InputError, match=f"{setting} must be"):
        DataSettings(**({"files": ("a.jsonl",), "max_length": 8} | {setting: value}))


# --- compressed files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [gzip, lzma])
def test_compressed_file_reads_like_its_content(tmp_path, tokenizer, library):
    plain = write(tmp_path / "a.jsonl", *({"text": "x" * n} for n in range(1, 9)))
    packed = tmp_path / f"a.jsonl.{'gz' if library is gzip else 'xz'}"
    content = Path(plain).read_bytes()
    packed.write_bytes(library.compress(content[:100]) + library.compress(content[100:]))  # two streams, as `cat` makes
    read = dataset(tokenizer, str(packed)).read()
    assert [row.tokens for row in read] == [row.tokens for row in dataset(tokenizer, plain).read()]


def test_zstd_file_of_several_frames_reads_like_its_content(tmp_path, tokenizer):
    zstandard = pytest.importorskip("zstandard")
    plain = write(tmp_path / "a.jsonl", *({"text": "x" * n} for n in range(1, 9)))
    content = Path(plain).read_bytes()
    packed = tmp_path / "a.jsonl.zst"
    packed.write_bytes(zstandard.compress(content[:100]) + zstandard.compress(content[100:]))
    read = dataset(tokenizer, str(packed)).read()
    assert [row.tokens for row in read] == [row.tokens for row in dataset(tokenizer, plain).read()]


@pytest.mark.parametrize(
    "suffix, harm",
    [*itertools.product(("gz", "zst"), ("cut", "other", "tail")), ("xz", "cut"), ("xz", "other")],
)
def test_broken_compressed_file_is_rejected_by_name(tmp_path, tokenizer, suffix, harm):
    """Data after the end of an xz stream is not covered: the library ignores it."""
    libraries = {"gz": "gzip", "xz": "lzma", "zst": "zstandard"}
    compress = pytest.importorskip(libraries[suffix]).compress
    whole = compress(random.Random(0).randbytes(1000))
    packed = tmp_path / f"a.jsonl.{suffix}"
    packed.write_bytes({"cut": whole[:-20], "other": b'{"text": "a"}\n' * 9, "tail": whole + b"no archive"}[harm])
    with pytest.raises(InputError, match=rf"a\.jsonl\.{suffix} cannot be read"):
        dataset(tokenizer, str(packed))


def test_zstd_without_its_package_names_the_package_to_install(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.jsonl.zst").write_bytes(b"(")
    with pytest.raises(InputError, match=r"pip install 'gesso-lm\[train\]'"):
        dataset(tokenizer, str(tmp_path / "a.jsonl.zst"))


def test_missing_temporary_directory_is_named(tmp_path, tokenizer, monkeypatch):
    # Python has cached the real one.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere.*set TMPDIR"):
        dataset(tokenizer, write(tmp_path / "a.jsonl", {"text": "a"}))


def test_missing_data_file_is_named(tmp_path, tokenizer):
    with pytest.raises(InputError, match=r"gone\.jsonl: no such file"):
        dataset(tokenizer, str(tmp_path / "gone.jsonl"))


# --- views ----------------------------------------------------------------------------------------------------------


def test_repeat_sets_passes_over_a_file_per_epoch(tmp_path, tokenizer):
    files = [write(tmp_path / f"{name}.jsonl", {"text": name * 9}) for name in "ab"]
    rows = dataset(tokenizer, *files, repeat=(3, 1))
    seen = [example.source for batch in islice(rows.batches(4), 2) for example in batch]
    assert (seen.count(files[0]), seen.count(files[1])) == (6, 2)


def test_several_processes_read_the_same_rows(tmp_path, tokenizer):
    """They read more than `PARALLEL_BYTES`, most of it in a field that is not trained on."""
    rows = [{"text": f"{n} " * (n % 7 + 1)} for n in range(700)] + [{"text": ""}, {"prompt": "a", "completion": "b"}]
    alone = list(dataset(tokenizer, write(tmp_path / "few.jsonl", *rows)).read())
    note = "x" * (PARALLEL_BYTES // len(rows))
    many = write(tmp_path / "many.jsonl", *({**row, "note": note} for row in rows))
    assert Path(many).stat().st_size > PARALLEL_BYTES
    together = list(dataset(tokenizer, many).read())
    assert [replace(row, source="") for row in together] == [replace(row, source="") for row in alone]

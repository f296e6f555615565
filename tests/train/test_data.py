"""Training data: only responses are targets, every bad row is named, the order is fixed."""

import gzip
import io
import itertools
import json
import lzma
import random
import sys
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from gesso.chat.tokenizer import FILL, Tokenizer
from gesso.errors import InputError
from gesso.train.data import Dataset, Example, Rejected
from gesso.train.data_report import inspect, render
from gesso.train.order import WINDOW, order
from gesso.train.recipe import DataSettings
from tests.tiny import tokenizer_json

EOS = 1
USER = {"role": "user", "content": "Why?"}
REPLY = {"role": "assistant", "content": "So."}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "blue"}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {}}}]
# As in some checkpoints: with thinking off, generation starts after an empty thought that the history does not have.
EMPTY_THOUGHT_TEMPLATE = """{{ bos_token }}
{%- for m in messages %}{{ '<|turn>' + m.role + '\n' + m.content + '<turn|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>assistant\n' }}
{%- if not enable_thinking %}{{ '<|channel>thought\n<channel|>' }}{% endif %}{% endif %}"""

# Only special tokens between turns, so that a span that is off by one also ends at a special token.
DENSE_TEMPLATE = """{{ bos_token }}
{%- for m in messages %}{{ '<|turn>' + m.role + '\n' + m.content + '<turn|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>assistant\n' }}{% endif %}"""


def make_tokenizer(directory: Path, template: str | None = None) -> Tokenizer:
    """Return the tiny tokenizer with one merge, so that the tokens depend on where a text is cut."""
    directory.mkdir(exist_ok=True)
    raw = json.loads(tokenizer_json())
    vocabulary = raw["model"]["vocab"]
    raw["model"]["vocab"] = {piece: i for piece, i in vocabulary.items() if i not in (110, 111)} | {
        "\n": 110,
        "\n\n": 111,
    }
    raw["model"]["merges"] = [["\n", "\n"]]
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def write(path: Path, *rows: Any) -> str:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def dataset(tokenizer: Tokenizer, *files: str, **settings: Any) -> Dataset:
    return Dataset(DataSettings(files=files, **{"max_length": 4096, "on_bad_row": "skip", **settings}), tokenizer, EOS)


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


def thought(text: str, answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"<|channel>thought\n{text}<channel|>{answer}"}


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
    with pytest.raises(InputError, match=r"pip install '.\[train\]'"):
        dataset(tokenizer, str(tmp_path / "a.jsonl.zst"))


def test_missing_temporary_directory_is_named(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere.*set TMPDIR"):
        dataset(tokenizer, write(tmp_path / "a.jsonl", {"text": "a"}))


def test_missing_data_file_is_named(tmp_path, tokenizer):
    with pytest.raises(InputError, match=r"gone\.jsonl: no such file"):
        dataset(tokenizer, str(tmp_path / "gone.jsonl"))


# --- order ----------------------------------------------------------------------------------------------------------


def first_batches(lengths: np.ndarray, batch_size: int, count: int, seed: int = 0, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in islice(order(lengths, batch_size, seed, start), count)]


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 1), (1, 4), (3, 8), (8, 4), (103, 10), (1000, 3), (700, 4)])
def test_order_from_any_start_equals_uninterrupted_order(rows, batch_size):
    lengths = np.random.default_rng(1).integers(2, 500, rows)
    batches = first_batches(lengths, batch_size, 800)
    for start in (*range(0, 120, 7), 255, 256, 257, 332, 333, 334, 700):
        assert first_batches(lengths, batch_size, 5, start=start) == batches[start : start + 5]


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 4), (3, 8), (103, 10), (1000, 3)])
def test_every_row_comes_once_per_epoch(rows, batch_size):
    lengths = np.random.default_rng(1).integers(2, 500, rows)
    epochs = 3 * batch_size
    seen = Counter(row for batch in first_batches(lengths, batch_size, epochs * rows // batch_size) for row in batch)
    assert seen == dict.fromkeys(range(rows), epochs)
    whole = first_batches(lengths, batch_size, rows // batch_size)  # of the first epoch
    assert max(Counter(row for batch in whole for row in batch).values(), default=1) == 1


def test_rows_of_similar_length_share_a_batch_in_random_order():
    lengths = np.random.default_rng(1).integers(2, 10_000, 8 * WINDOW * 4)
    batches = first_batches(lengths, 8, WINDOW * 4)
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    assert spread < 10_000 / WINDOW  # a plain shuffle has about 7,800
    means = [lengths[batch].mean() for batch in batches[:WINDOW]]
    assert abs(np.corrcoef(means, range(WINDOW))[0, 1]) < 0.5


def test_small_dataset_gets_new_batches_in_every_epoch():
    met = {frozenset(batch) for batch in first_batches(np.arange(8), 4, 200)}
    assert len(met) > 60  # of 70 possible batches; if all rows were sorted, there would be two


def test_epochs_and_seeds_differ_in_order():
    lengths = np.full(64, 9)
    first, second = (first_batches(lengths, 64, 1, start=start)[0] for start in (0, 1))
    other = first_batches(lengths, 64, 1, seed=1)[0]
    assert len({tuple(first), tuple(second), tuple(other), tuple(range(64))}) == 4


def test_order_is_stable_across_versions():
    """Later versions of gesso and numpy must resume a run in its original order."""
    assert first_batches(np.arange(34) % 9, 4, 5, seed=7, start=6) == [
        [27, 28, 1, 2],
        [5, 7, 17, 8],
        [19, 16, 25, 11],
        [3, 22, 32, 24],
        [27, 1, 29, 2],
    ]


def test_batches_of_all_ranks_equal_those_of_one_process(tmp_path, tokenizer):
    rows = dataset(tokenizer, write(tmp_path / "a.jsonl", *({"text": "x" * n} for n in range(1, 24))))
    ranks = [list(islice(rows.batches(6, start=2, rank=rank, world=3), 9)) for rank in range(3)]
    together = [sum(shares, ()) for shares in zip(*ranks, strict=True)]
    assert together == list(islice(rows.batches(6), 2, 11))
    assert {len(share) for shares in ranks for share in shares} == {2}


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"world": 3}, {"rank": 1}, {"rank": -1}, {"start": -1}])
def test_invalid_batch_arguments_are_rejected_at_once(tmp_path, tokenizer, wrong):
    rows = dataset(tokenizer, write(tmp_path / "a.jsonl", {"text": "a"}))
    with pytest.raises(InputError, match="cannot cut batches"):
        rows.batches(**({"batch_size": 4} | wrong))


def test_batches_contain_the_rows_of_the_files(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"text": "ä"}, b"{", {"messages": [USER, REPLY]}, {"text": "ß" * 9})
    other = write(tmp_path / "b.jsonl", {"prompt": "p", "completion": "c"})
    rows = dataset(tokenizer, name, other)
    (batch,) = islice(rows.batches(4), 1)
    assert sorted(batch, key=lambda example: (example.source, example.line)) == [
        row for row in rows.read() if isinstance(row, Example)
    ]


def test_files_may_change_after_they_are_read(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"text": "a"})
    rows = dataset(tokenizer, name)
    before = list(rows.read())
    Path(name).unlink()
    assert list(rows.read()) == before == [*next(rows.batches(1))]


# --- data report ----------------------------------------------------------------------------------------------------


def shown(report: Any, styled: bool = False) -> str:
    stream = io.StringIO()
    colours = {"force_terminal": True, "color_system": "standard"} if styled else {"color_system": None}
    render(report, Console(file=stream, width=80, highlight=False, markup=False, **colours))
    return stream.getvalue()


def test_data_report_marks_targets_and_names_every_rejected_row(tmp_path, tokenizer):
    two = {"messages": [USER, thought("Hm.", "No."), USER, REPLY]}
    name = write(tmp_path / "a.jsonl", two, *[b"{"] * 50, {"prompt": "[b]p", "completion": "c\x1b[2J"}, {"text": "a"})
    report = inspect(dataset(tokenizer, name), tokenizer, examples=2)
    assert (report.rows, report.good, len(report.rejected)) == (53, 3, 50)
    assert (report.responses, report.context_only, report.response_tokens) == (3, 1, 4 + 6 + 2)
    assert sum(bin.examples for bin in report.histogram) == 3
    assert [sample.line for sample in report.samples] == [1, 52]
    text = shown(report)
    assert "«So.<turn|>»" in text and "[b]p«c␛[2J<eos>»" in text and "\x1b" not in text
    assert all(f"{name}:{line}: not JSON" in text for line in range(2, 52))
    assert "53 rows: 3 good, 50 rejected" in text and "1 responses of earlier turns are context only" in text
    assert "«" not in shown(report, styled=True) and "\x1b[1;4mSo.<turn|>" in shown(report, styled=True)


def test_data_report_as_json(tmp_path, tokenizer):
    report = inspect(dataset(tokenizer, write(tmp_path / "a.jsonl", {"text": "a"}, b"{")), tokenizer)
    data = json.loads(json.dumps(asdict(report)))
    assert data["samples"][0]["parts"] == [{"text": "<bos>", "learnt": False}, {"text": "a<eos>", "learnt": True}]
    assert data["rejected"][0]["line"] == 2


def test_data_report_without_good_rows(tmp_path, tokenizer):
    report = inspect(dataset(tokenizer, write(tmp_path / "a.jsonl", b"{")), tokenizer)
    assert report.histogram == () and "0 good, 1 rejected" in shown(report)


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_histogram_has_at_most_12_bins_of_one_width_and_counts_all(tmp_path, tokenizer, count):
    texts = [{"text": "x" * (1 + 73 * n)} for n in range(count)]
    bins = inspect(dataset(tokenizer, write(tmp_path / "a.jsonl", *texts)), tokenizer).histogram
    assert 1 <= len(bins) <= 12 and sum(bin.examples for bin in bins) == count
    assert len({bin.high - bin.low for bin in bins}) == 1
    assert all(left.high + 1 == right.low for left, right in zip(bins, bins[1:], strict=False))


def test_long_example_is_shown_without_its_middle(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"prompt": "p" * 3900, "completion": "c"})
    text = shown(inspect(dataset(tokenizer, name), tokenizer))
    assert "«c<eos>»" in text and "characters …]" in text and "p" * 1001 not in text


# --- views ----------------------------------------------------------------------------------------------------------

CODE = "".join(f"def f{i}(x):\n    return x + {i}\n\n\n" for i in range(200))


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return a tokenizer with the markers of fill-in-the-middle."""
    directory = tmp_path_factory.mktemp("filler")
    raw = json.loads(tokenizer_json())
    for i, mark in zip((107, 108, 109), FILL, strict=True):
        raw["model"]["vocab"] = {(mark if n == i else piece): n for piece, n in raw["model"]["vocab"].items()}
        for token in raw["added_tokens"]:
            token["content"] = mark if token["id"] == i else token["content"]
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    return Tokenizer.from_directory(directory)


def views(tmp_path: Path, tokenizer: Tokenizer, count: int, canvas: int, **settings: Any) -> list[Example]:
    rows = dataset(tokenizer, write(tmp_path / "code.jsonl", {"text": CODE}), cut=True, max_length=200, **settings)
    batches = rows.batches(10, canvas_lengths=(canvas,))
    return [example for batch in islice(batches, count // 10) for example in batch]


def test_views_of_a_long_text_cover_it_and_fill_the_canvas(tmp_path, filler):
    tokens = filler.encode(CODE)
    seen: set[int] = set()
    for example in views(tmp_path, filler, 500, 32):
        assert example.tokens[0] == filler.bos_id and len(example.tokens) <= 200
        text = filler.decode(example.tokens)
        assert text in CODE
        ((start, end),) = example.spans
        assert 1 <= start < end and (end - start == 32 or end == len(example.tokens))
        if end - start < 32:
            assert example.tokens[-1] == EOS, "only the end of the text may leave the canvas unfilled"
        seen.update(range(CODE.index(text), CODE.index(text) + len(text)))
    assert len(seen) == len(CODE) and len(tokens) > 10 * 200


def test_hole_and_its_context_form_the_text(tmp_path, filler):
    lines = 0
    found = views(tmp_path, filler, 300, 64, infill=1.0)
    for example in found:
        ((start, end),) = example.spans
        assert len(example.tokens) <= 200 and end - start <= 64 and end == len(example.tokens)
        text = filler.decode(example.tokens[:start], special=True)
        before, after = text.removeprefix("<bos>" + FILL[0]).removesuffix(FILL[2]).split(FILL[1])
        hole = filler.decode(example.tokens[start:end], special=True).removesuffix("<eos>")
        assert before + hole + after in CODE and hole
        lines += (not before or before.endswith("\n")) and (not after or after.startswith("\n"))
    assert lines > 0.7 * len(found), "most holes are whole lines"


def test_views_differ_per_example_and_repeat_per_run(tmp_path, filler):
    first = views(tmp_path, filler, 200, 32, infill=0.5)
    assert first == views(tmp_path, filler, 200, 32, infill=0.5)
    assert first != views(tmp_path, filler, 200, 32, infill=0.5, seed=1)
    assert len({example.tokens for example in first}) > 190
    holes = sum(filler.id_of(FILL[0]) in example.tokens for example in first)
    assert 60 < holes < 140


def test_prompts_are_filled_to_one_length_with_other_rows(tmp_path, filler):
    talk = [{"prompt": f"{n}?", "completion": f"{n}! " * n} for n in range(1, 40)]
    name = write(tmp_path / "both.jsonl", {"text": CODE}, *talk)
    rows = dataset(filler, name, cut=True, infill=0.3, max_length=200, repeat=(2,), prompt_lengths=(100, 40))
    whole = {example.line: example for example in rows.read()}
    for number, batch in enumerate(islice(rows.batches(8, canvas_lengths=(16, 64)), 20)):
        prompt, canvas = ((100, 16), (40, 64))[number % 2]
        for example in batch:
            ((start, end),) = example.spans
            assert start == prompt and start < end <= start + canvas and end == len(example.tokens)
            if example.line > 1:  # one canvas of the answer, after its context
                row = whole[example.line]
                ((first, _),) = row.spans
                places = range(first, len(row.tokens), canvas)
                ends = [row.tokens[max(0, at - prompt) : at + canvas] for at in places]
                assert any(example.tokens[-len(tail) :] == tail for tail in ends)


def test_infill_needs_a_tokenizer_with_markers(tmp_path, tokenizer):
    with pytest.raises(InputError, match="fim_prefix"):
        views(tmp_path, tokenizer, 10, 32, infill=0.5)


@pytest.mark.parametrize("canvas, settings", [(200, {}), (64, {"prompt_lengths": (100, 150)}), (1, {"infill": 0.5})])
def test_canvas_longer_than_an_example_is_rejected(tmp_path, filler, canvas, settings):
    with pytest.raises(InputError, match=f"canvas of {canvas} .* max_length = 200"):
        views(tmp_path, filler, 10, canvas, **settings)


def test_repeat_sets_passes_over_a_file_per_epoch(tmp_path, tokenizer):
    files = [write(tmp_path / f"{name}.jsonl", {"text": name * 9}) for name in "ab"]
    rows = dataset(tokenizer, *files, repeat=(3, 1))
    seen = [example.source for batch in islice(rows.batches(4), 2) for example in batch]
    assert (seen.count(files[0]), seen.count(files[1])) == (6, 2)


def test_several_processes_read_the_same_rows(tmp_path, tokenizer, monkeypatch):
    rows = [{"text": f"{n} " * (n % 7 + 1)} for n in range(700)] + [{"text": ""}, {"prompt": "a", "completion": "b"}]
    name = write(tmp_path / "many.jsonl", *rows)
    alone = list(dataset(tokenizer, name).read())
    monkeypatch.setattr("gesso.train.reading.PARALLEL_BYTES", 1)
    assert list(dataset(tokenizer, name).read()) == alone

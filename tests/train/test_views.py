"""Views of training texts: cut to canvases, with holes, filled and repeated."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gesso.chat.tokenizer import FILL, Tokenizer
from gesso.errors import InputError
from gesso.train.data import Example
from tests.tiny import tokenizer_json
from tests.train.datasets import EOS, dataset, write

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

"""Learned vocabularies: round trips, single digits and line breaks, cuts at line breaks."""

import json
import random
import re
from pathlib import Path

import pytest

from examples.mini.vocabulary import NAMED, SPECIALS, learn
from gesso import InputError
from gesso.chat.tokenizer import Tokenizer
from gesso.eval import python_infill

SIZE = 1024
SOURCES = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "gesso").glob("*.py"))]
NASTY = [
    "", " ", "  ", "   x", " x", "\t", "\t\tx \t", "\n", "\n\n\n", " \n  \n", "a\r\nb\r", "\x00\x07\x1b[0m",
    "\u2028 \u00a0", "▁ ▁▁", "é e\u0301 naïve", "日本語 中文", "👩‍👩‍👧 🏳️‍🌈", "<0x41><0xE2>", "<unused5>", "\ufeff# bom",
    "\ufffd", "a" * 500, "x  =  12345  ",
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary")
    (path / "tokenizer.json").write_text(learn(SOURCES, SIZE), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(directory) -> Tokenizer:
    return Tokenizer.from_directory(directory)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, bos=False)


@pytest.mark.parametrize("text", NASTY)
def test_any_text_round_trips(tokenizer, text):
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.special_ids & set(ids)


def test_random_characters_round_trip(tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        points = [
            rng.choice((rng.randrange(128), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))) for _ in "x" * 20
        ]
        text = "".join(map(chr, points))
        assert tokenizer.decode(encode(tokenizer, text)) == text


def test_cut_at_a_line_break_cuts_tokens(tokenizer):
    for text in [*SOURCES, "\n".join(NASTY)]:
        whole = encode(tokenizer, text)
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        assert [i for line in lines for i in encode(tokenizer, line)] == whole, "cut at every line break"
        breaks = [i for i, character in enumerate(text) if character == "\n"]
        for at in breaks[:: len(breaks) // 10 + 1]:
            before, after = encode(tokenizer, text[:at]), encode(tokenizer, text[at + 1 :])
            assert [*before, tokenizer.id_of("\n"), *after] == whole
            assert encode(tokenizer, text[: at + 1]) + after == before + encode(tokenizer, text[at:]) == whole


def test_line_break_is_always_a_token_by_itself(directory):
    pieces = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert [piece for piece in pieces if "\n" in piece] == ["\n"]
    assert sorted(pieces.values()) == list(range(SIZE))


def test_digit_and_grid_cell_are_single_tokens(tokenizer):
    assert tokenizer.pieces(encode(tokenizer, "12")) == ["1", "2"]
    assert tokenizer.pieces(encode(tokenizer, "5 3 0 0\n6 9")) == ["5", " 3", " 0", " 0", "\n", "6", " 9"]
    assert len(set(encode(tokenizer, "0123456789 0 1 2 3 4 5 6 7 8 9"))) == 20


def test_indentation_is_separate_from_the_word(tokenizer):
    assert tokenizer.pieces(encode(tokenizer, "        return None")) == ["        ", "return ", "None"]
    assert tokenizer.pieces(encode(tokenizer, "    self.assertTrue(x)"))[:2] == ["    ", "self."]


@pytest.mark.parametrize("word", ["assertEqual", "Hannah", "troodrind", "_private", "x"])
def test_word_has_the_same_tokens_in_any_position(tokenizer, word):
    alone = encode(tokenizer, word)
    for before, after in (("(", ")"), ('"', '": '), (" ", " "), ("the ", ", "), ("\n    ", "\n"), ("a.", "2")):
        around = encode(tokenizer, before), encode(tokenizer, after)
        assert encode(tokenizer, before + word + after) == [*around[0], *alone, *around[1]]


def test_special_tokens_have_the_ids_of_the_real_vocabulary(tokenizer):
    assert {i: NAMED[i] for i in SPECIALS} == SPECIALS
    assert tokenizer.special_ids == set(NAMED)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (0, 1, 2)
    assert set(NAMED.values()) >= {python_infill.PREFIX, python_infill.SUFFIX, python_infill.MIDDLE}
    assert all(encode(tokenizer, f"x{piece}\n")[1:-1] == [i] for i, piece in NAMED.items())


def test_transformers_reads_the_same_ids(directory, tokenizer):
    from transformers import PreTrainedTokenizerFast

    oracle = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    for text in (*SOURCES, *NASTY, "".join(NAMED.values())):
        assert oracle.encode(text, add_special_tokens=False) == encode(tokenizer, text)


def test_too_little_text_is_rejected():
    with pytest.raises(InputError, match="cannot learn 4096 tokens"):
        learn(["def f(): pass\n"])

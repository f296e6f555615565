"""Training rows in more wordings: the answer is in the request, and no held-out wording or word is."""

import re
from typing import Any

import pytest

from examples.structured.varied import AFTER, BEFORE, MORE_FRAMES, MORE_SWITCHES, pieces, training_rows
from gesso.eval.structured.domains import DOMAINS, FRAMES, SWITCHES
from gesso.eval.structured.words import WORDS
from gesso.eval.task import split_of
from tests.examples.test_copying import leaves, request_and_value


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(training_rows(300, seed=5))


def test_every_value_of_an_answer_is_in_its_request(rows):
    for row in rows:
        request, _, value = request_and_value(row)
        for leaf in leaves(value):
            assert isinstance(leaf, bool) or str(leaf) in request


def test_no_wording_is_one_of_a_held_out_split():
    held_out = {
        wording for wordings in (FRAMES, SWITCHES) for split in ("validation", "test") for wording in wordings[split]
    }
    assert not held_out & {*MORE_FRAMES, *MORE_SWITCHES}
    starts = {
        wording.split("{")[0].strip()
        for domain in DOMAINS
        for field in domain.fields
        for split in ("validation", "test")
        for wording in field.says[split]
    }
    assert not {text for text in starts if len(text.split()) > 2} & {*BEFORE, *AFTER}


def test_no_row_has_a_capitalized_word_of_a_held_out_split(rows):
    others = {word for group in ("first", "last", "city") for word in WORDS[group].split()
              if split_of(word.lower()) != "train"}  # fmt: skip
    for row in rows:
        request, _, _ = request_and_value(row)
        assert not others & set(re.findall(r"\w+", request)), request


def test_values_are_composed_of_nearly_all_pieces_of_the_vocabulary():
    text = " ".join(
        str(leaf).lower() for row in training_rows(3000, seed=6) for leaf in leaves(request_and_value(row)[2])
    )
    assert sum(piece in text for piece in pieces()) > 0.9 * len(pieces())

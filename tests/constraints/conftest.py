"""Constraints on the vocabulary of the tiny model."""

import pytest

from gesso.constraints.automaton import Automaton
from gesso.constraints.guide import Guide
from gesso.constraints.regex import regex_term
from gesso.constraints.words import Words


@pytest.fixture(scope="session")
def words(tiny):
    return Words.of(tiny.tokenizer, tiny.config.vocab_size)


@pytest.fixture(scope="session")
def guide_of(words, tiny):
    return lambda regex: Guide(
        Automaton(regex_term(regex)), words, frozenset(tiny.defaults.eos_token_ids), frozenset([0])
    )

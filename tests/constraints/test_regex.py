"""Regular expressions match the same texts as in Python, wherever the two dialects agree."""

import itertools
import re

import pytest

from gesso.constraints import compiler

TEXTS = ["".join(signs) for length in range(5) for signs in itertools.product("abA\né", repeat=length)]


@pytest.mark.parametrize(
    "expression",
    [
        ".", ".*", ".+", "a.*", "ab.*", "[A-Z].*", "[^\n]+", "[^a]*", "a.b", "(a.)*b", ".*a.*", "a?.", "a|.b",
        "(?s).+", "(.a|b.)*", "a.{0,2}", "(ab)*", "(a|b.)*A?", r"\w+.", "a*", "",
    ],
)  # fmt: skip
def test_an_expression_matches_the_same_texts_as_in_python(expression):
    edges, accepting = compiler.compiled(expression)
    following = {(state, byte): target for state, byte, target in edges}

    def matches(text):
        state = 1
        for byte in text.encode():
            state = following.get((state, byte))
        return state in accepting

    assert [text for text in TEXTS if matches(text)] == [text for text in TEXTS if re.fullmatch(expression, text)]

"""Terms describe the same texts as regular expressions, intersections and complements included."""

import itertools
import random
import re

import pytest

from gesso.constraints.budget import at_most
from gesso.constraints.charset import ANY, char_class, chars, complement, union
from gesso.constraints.settle import settle
from gesso.constraints.stored import from_bytes, to_bytes
from gesso.constraints.term import EMPTY, FAR, NOTHING, Term
from gesso.constraints.terms import ANYTHING, NamedTerm, alt, both, literal, minus, optional, repeat, seq  # fmt: skip
from gesso.constraints.terms import complement as other_than
from gesso.errors import InputError

WORDS = ["".join(word) for size in range(6) for word in itertools.product("abc", repeat=size)]


def accepts(term: Term, text: str | bytes) -> bool:
    for byte in text.encode() if isinstance(text, str) else text:
        term = term.after(byte)
    return term.nullable


def random_expression(rng: random.Random, depth: int) -> tuple[Term, str]:
    """Return a term and the same regular expression for `re`."""
    kind = rng.choice(("one", "seq", "seq", "alt", "repeat", "repeat")) if depth else "one"
    if kind == "one":
        char = rng.choice("abc")
        return literal(char), char
    first, text = random_expression(rng, depth - 1)
    if kind == "repeat":
        low = rng.randint(0, 2)
        high = rng.choice((None, low, low + 1, low + 2))
        return repeat(first, low, high), f"(?:{text}){{{low},{'' if high is None else high}}}"
    second, more = random_expression(rng, depth - 1)
    return (seq(first, second), text + more) if kind == "seq" else (alt([first, second]), f"(?:{text}|{more})")


@pytest.mark.parametrize("seed", range(60))
def test_terms_accept_what_regular_expressions_match(seed):
    rng = random.Random(seed)
    (one, text), (two, more) = random_expression(rng, 4), random_expression(rng, 3)
    matched, also = ([bool(re.fullmatch(each, word)) for word in WORDS] for each in (text, more))
    cases = {
        one: matched,
        both([one, two]): [a and b for a, b in zip(matched, also, strict=True)],
        minus(one, two): [a and not b for a, b in zip(matched, also, strict=True)],
        other_than(one): [not a for a in matched],
    }
    for term, expected in cases.items():
        assert [accepts(term, word) for word in WORDS] == expected
        lengths = [len(word) for word, match in zip(WORDS, expected, strict=True) if match]
        assert term.least == min(lengths) if lengths else term.least > 5
        assert from_bytes(to_bytes(term)) is term


@pytest.mark.parametrize("seed", range(30))
def test_a_set_of_characters_accepts_their_utf8(seed):
    rng = random.Random(seed)
    ends = sorted(
        rng.choice((rng.randint(0, 300), rng.randint(0x700, 0x900), rng.randint(0, 0x10FFFF))) for _ in "1234"
    )
    ranges = union(((ends[0], ends[1]), (ends[2], ends[3])))
    for code in [*ends, *(end + 1 for end in ends), *(rng.randint(0, 0x10FFFF) for _ in range(9))]:
        if not 0xD800 <= code <= 0xDFFF and code <= 0x10FFFF:
            expected = any(low <= code <= high for low, high in ranges)
            assert accepts(char_class(ranges), chr(code)) == expected
            assert accepts(char_class(complement(ranges)), chr(code)) != expected


def test_equal_terms_are_one_object():
    assert alt([literal("a"), literal("b")]) is char_class(chars("ba"))
    assert seq(literal("a"), seq(literal("b"), literal("c"))) is literal("abc")
    assert alt([repeat(literal("a"), 0, 3), repeat(literal("a"), 2, 5)]) is repeat(literal("a"), 0, 5)
    assert alt([literal("ab"), literal("ac")]) is seq(literal("a"), char_class(chars("bc")))
    assert both([ANYTHING, literal("a")]) is literal("a") and other_than(NOTHING) is ANYTHING


def test_repetitions_of_repetitions_are_one_repetition():
    """Otherwise the states of a text without a limit would multiply."""
    a, b = literal("a"), literal("b")
    any_a = repeat(a, 0, None)
    assert seq(any_a, any_a) is any_a and seq(any_a, any_a, b) is seq(any_a, b)
    assert seq(repeat(a, 1, None), any_a) is not any_a
    assert repeat(optional(a), 2, 5) is repeat(a, 0, 5) and repeat(optional(a), 2, None) is any_a
    assert repeat(any_a, 2, 5) is any_a
    nullable = seq(optional(a), optional(b))
    assert repeat(nullable, 2, 5) is repeat(nullable, 0, 5)


def test_counts_cost_no_memory_and_rules_reach_any_depth():
    long = repeat(char_class(ANY), 3, 10**9)
    assert long.least == 3 and accepts(long, "日本語") and not accepts(long, "ab")
    value = NamedTerm("value")
    value.body = alt([literal("x"), seq(literal("["), value, literal("]"))])
    settle([value])
    assert value.least == 1
    assert accepts(value, "[" * 5000 + "x" + "]" * 5000) and not accepts(value, "[" * 50 + "x" + "]" * 49)
    assert accepts(from_bytes(to_bytes(value)), "[[x]]")


def test_a_rule_without_an_end_has_no_text():
    endless = NamedTerm("endless")
    endless.body = seq(literal("a"), endless)
    settle([endless])
    assert endless.least == FAR


def test_an_intersection_without_texts_is_recognized():
    assert both([repeat(literal("ab"), 1, None), seq(ANYTHING, literal("a"))]).least == FAR
    assert both([literal("a"), EMPTY]) is NOTHING


def test_a_count_without_a_pattern_is_measured_without_trying_every_count():
    characters, space = repeat(char_class(ANY), 0, None), literal(" ")
    found = minus(repeat(char_class(ANY), 0, 10**9), seq(characters, space, characters))
    with at_most(terms=1000):
        assert found.after(ord("a")).least == 0
        assert found.after(ord(" ")) is NOTHING
        assert found.after(0xC3).least == 1  # within a character
    assert minus(repeat(char_class(ANY), 2, 5), characters) is NOTHING
    assert minus(characters, repeat(char_class(ANY), 0, 9)).least == 10


def test_terms_of_exponential_size_are_refused():
    with pytest.raises(InputError, match=r"limits\.terms"), at_most(1000):
        term = literal("a")
        for place in range(40):
            term = alt([seq(term, literal(str(place))), seq(optional(term), literal("b"), term)])
            term = alt(term.after(byte) for byte in b"ab0")

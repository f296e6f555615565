"""Regular expressions and patterns accept the same texts as in Python, wherever the dialects agree."""

import itertools
import random
import re
import warnings

import pytest

from gesso.constraints.budget import at_most
from gesso.constraints.charset import ANY, Ranges, char_class, chars, minus
from gesso.constraints.regex import pattern_term, regex_term
from gesso.constraints.term import NOTHING, Term
from gesso.constraints.terms import alt, literal
from gesso.errors import InputError
from tests.waiting import bounded

ANY_CHAR = char_class(ANY)
WORDS = ["".join(word) for size in range(6) for word in itertools.product("ab,", repeat=size)]
TEXTS = ["".join(word) for size in range(3) for word in itertools.product("abAk1_ \n\té-[]{}&", repeat=size)]
TEXTS += ["".join(word) for size in (3, 4) for word in itertools.product("ab\n", repeat=size)] + ["a{b}", "{1}", "ab k"]


def accepts(term: Term, text: str) -> bool:
    for byte in text.encode():
        term = term.after(byte)
    return term.nullable


def check(expression: str, texts: list[str]) -> None:
    """Compare with `fullmatch` and `search`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = re.compile(expression)
    whole, inside = regex_term(expression), pattern_term(expression, char_class, ANY_CHAR)
    assert [t for t in texts if accepts(whole, t)] == [t for t in texts if oracle.fullmatch(t)], expression
    assert [t for t in texts if accepts(inside, t)] == [t for t in texts if oracle.search(t)], expression


@pytest.mark.parametrize("expression", [
    "", ".", ".*", "a.*", "[^\n]+", "[^a]*", "a|.b", "(?s).+", "(.a|b.)*", "a.{0,2}", "(?:ab)*?", "(?P<x>a|b.)*A?",
    "[a-k]", "[^\\s\\d]", "[\\w-]{2}", "[a\\-b]", "[-a]", "[a-]", "[\\[\\]]", "[[a]", "]", "}", "{", "{}", "a{", "a{b}",
    "a{1", "{a}", "\\{1}", "a{2}", "a{1,}", "a{0,1}?b", "a??", "\\x61\\u0062", "\\t|\\n", "[\\b]|\\-", "[&a]", "[a&]",
    "(?i)aK", "(?i:a)a", "a(?i:[a-b])", "(?i)[^a]", "(?x) a  b # c\n | k", "(?x)a\\ b", "(?:)", "()", "a||b", "(|a)b",
    "[ab]{1,2}[ab]{1,2}", "(?#comment)a", "\\Aa\\Z", "^$", "[\\s\\S]", "[^\\w\\W]", "[a\\nb]", "\\A", "(?is)A.",
])  # fmt: skip
def test_expression_matches_the_same_texts_as_in_python(expression: str) -> None:
    # Python's \w and \s contain more characters beyond ASCII, and its $ allows a line break after it.
    ascii_only = any(sign in expression for sign in ("\\w", "\\s", "\\d", "$"))
    check(expression, [t for t in TEXTS if not (ascii_only and ("é" in t or "\n" in t))])


@pytest.mark.parametrize("expression", [
    "^a|b$", "(^a$|^b$)", "(?:^|,)a(?:$|,)", "(a$|^b)?,", "((^|,)a)+$", "^(a(,|$))+$", "(^a|b){2}", "^(?:ab)+$",
    r"\ba\b", r"a\b,", r"\Ba", r"\b(?=a)", r"^\b\w*\b$", r"\ba?\b", r"\b\w+\b,\b\w+\b", r"\b(?:a|ab)\b",
    "(?=a)..", "(?!a)..", "^(?!.*ab).*$", "^(?=.*a)(?=.*b).{3}$", "a(?=b|$)", "^(?!a$)", "a(?!$)", "^(?!ab)(?!ba)",
    "(?<=a)b", "(?<!a)b", "a(?<!,a)b", "(?<=a,)(?<!b.)b", "^.*(?<!,)$", "(?=a(?!b)).(?=,)", "^(?=.*\\ba\\b)b?.*",
    "^((?!ab).)*$", "^(?:(?!ab|,,).)+$", "(^((?!ab).)*$).*$", "^(?:(?!,)[a,]{1,2}(?<!,)b)+$", "^(?:(?=a)[ab],?)*$",
    "(?!)", "a(?=)", "$^",
    "(?!^a+$)[ab]+", "(?=^.{2,3}$)(?!.*,)a", "(?!^a|^b),", r"(?:[ab]{1,2},?\b){3}", "(?!a)+b", "^(?:a(?!b)){1,2},",
    "(?:^a){0,1}b", "(?<=(?<!b)a),", "^(?!(?:ab)*$)[ab]+$", "^(?!.*(?:^|,)b(?:,|$)).*$", "a$|b(?!,)|(?<=a),",
])  # fmt: skip
def test_anchors_and_look_around_match_as_in_python(expression: str) -> None:
    check(expression, WORDS)


def random_expression(rng: random.Random, depth: int) -> str:
    kind = rng.choice(("char", "seq", "seq", "seq", "alt", "repeat", "look", "anchor")) if depth else "char"
    if kind == "char":
        return rng.choice(("a", "b", ",", ".", "[ab]", "[^a]", "\\w"))
    if kind == "anchor":
        return rng.choice(("^", "$", "\\b", "\\B"))
    first = random_expression(rng, depth - 1)
    if kind == "repeat":
        return f"(?:{first}){rng.choice(('*', '+', '?', '{2}', '{1,2}'))}"
    if kind == "look":
        return f"({rng.choice(('?=', '?!', '?<=', '?<!'))}{first})"
    second = random_expression(rng, depth - 1)
    return first + second if kind == "seq" else f"(?:{first}|{second})"


def test_random_expressions_match_as_in_python() -> None:
    rng, checked, rejected = random.Random(0), 0, 0
    while checked < 300:
        expression = random_expression(rng, 5)
        try:
            re.compile(expression)
        except re.error:  # Python needs a fixed width behind
            continue
        try:
            regex_term(expression), pattern_term(expression, char_class, ANY_CHAR)
        except InputError:
            rejected += 1
            continue
        words = rng.sample(WORDS, 60)
        check(expression, [word for word in words if word or "\\B" not in expression])  # on which dialects disagree
        checked += 1
    assert rejected < checked


@pytest.mark.parametrize(("expression", "inside", "outside"), [
    (r"\d+\w\s", ["1a ", "12_\u00a0"], ["٣a ", "1é "]),  # the characters on which all dialects agree
    (r"\D\W\S", ["a-b", "é b", " .,"], ["٣-b", "aéb"]),
    (r"\p{L}\p{Lu}\P{L}", ["éÉ1", "aA-"], ["1A1", "aa1", "aAa"]),
    (r"\p{Letter}[\p{Nd}_]\pN", ["é٣1", "a_٣"], ["1_1"]),
    (r"\p{Script=Latin}\p{Greek}\p{sc=Cyrillic}[^\p{Han}]", ["éλжa"], ["λλжa", "éλж漢"]),
    (r"\p{gc=Lowercase_Letter}\p{Alphabetic}\p{ASCII}", ["aéz"], ["Aéz", "aéé"]),
    (r"[[:alpha:]][[:^digit:]][^[:space:][:punct:]]", ["a-z", "Zé1"], ["1az", "a1z", "a- ", "a-!"]),
    (r"\x{1F642}\u{e9}\u00e9\uD83D\uDE42\U0001F642\cJ\0", ["🙂éé🙂🙂\n\0"], ["🙂"]),
    (r"(?i)straSSe é [k-l]", ["STRASSE É K", "strasse é l"], ["straße é k", "strasse é \u212a"]),
    (r"(?i)[^k]", ["a", "é"], ["k", "K", "\u212a"]),  # the Kelvin sign, which is a k in some dialects only
    (r"[\w-.]+", ["a-.", "_"], ["a/"]),
    (r".", ["é", "\x85"], ["\n", "\r", "\u2028"]),
    (r"\bé?a", ["a"], []),
    (r"(a{0,1000000}){1,2}b", ["b", "a" * 2000 + "b"], ["a"]),
])  # fmt: skip
def test_classes_hold_the_characters_on_which_all_dialects_agree(
    expression: str, inside: list[str], outside: list[str]
) -> None:
    term = regex_term(expression)
    assert [text for text in inside if not accepts(term, text)] == []
    assert [text for text in outside if accepts(term, text)] == []


def write_json(ranges: Ranges) -> Term:
    """Write one character in a JSON string."""
    parts = [char_class(minus(ranges, chars('"\\\n')))]
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "é": "\\u00e9"}
    for low, high in ranges:
        parts += [literal(escape) for char, escape in escapes.items() if low <= ord(char) <= high]
    return alt(parts)


def test_pattern_counts_an_escape_as_one_character() -> None:
    def matched(pattern: str, content: str) -> bool:
        return accepts(pattern_term(pattern, write_json, write_json(ANY)), content)

    assert matched("^.$", "\\u00e9") and matched("^.$", "é") and matched("^.$", '\\"') and not matched("^.$", "\\n")
    assert matched("(?<=\n)n", "\\nn") and not matched("(?<=n)n", "\\nn") and not matched("n", "\\n")
    assert matched("^(?!.*n).*\n", "\\n") and not matched("^[^é]*$", "a\\u00e9") and not matched("é", "u00e9")
    assert not matched("", "\n") and not matched("", '"')


@pytest.mark.parametrize(("expression", "problem"), [
    (r"(a)\1", "character 3: back-references"),
    (r"(?<n>a)\k<n>", "back-references"),
    (r"(?P<n>a)(?P=n)", "back-references"),
    ("(?>a)", "atomic groups"),
    ("(?(1)a)", "conditions"),
    ("(?m)^a", "the flag m is not supported"),
    ("(?L)a", "the flag L is not supported"),
    ("a**", "character 2: a repetition of a repetition needs a group"),
    ("a++", "possessive"),
    ("a{2}{3}", "a repetition of a repetition"),
    ("^*", "an anchor cannot be repeated"),
    ("*a", r"\* repeats nothing"),
    ("{2}", r"\{ repeats nothing"),
    ("a{,2}", r"\{, is a count only for Python"),
    ("a{3,2}", "a count must look like"),
    ("a{1000001}", "counts go up to 1,000,000"),
    ("(a", "this \\( is not closed"),
    ("a)", "closes no group"),
    ("[a", "this \\[ is not closed"),
    ("[]a]", "dialects disagree on ] at the start"),
    ("[b-a]", "must go from one character to a later one"),
    ("[a-z&&[^b]]", "intersections of classes"),
    ("[[:letter:]]", "unknown class"),
    (r"\q", "unknown escape"),
    (r"\012", "octal escapes"),
    (r"\p{Klingon}", "the property 'Klingon' is unknown"),
    (r"\xg0", "needs 2 hexadecimal digits"),
    (r"\u{110000}", "hexadecimal digits"),
    (r"(?:a(?!b))*,", "look-around or .* inside a repetition"),
    (r"(?:a(?!b{2}))*,", "look-around or .* inside a repetition"),
    (r"(?:a\b)*,", "look-around or .* inside a repetition"),
    (r"(?:^|a?)*", "repetition of \\^ or \\$ alone"),
    (r"(?<=a$)b", r"\$ inside a repetition or look-behind"),
    ("(" * 101 + ")" * 101, "groups nest deeper than 100"),
    ("a" * 100_001, "longer than 100,000 characters"),
    (r"(?:a|\b)" * 30, "more than 1,000 alternatives"),
])  # fmt: skip
def test_unsupported_expression_is_rejected_with_the_reason(expression: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        regex_term(expression)


PARTS, IN_A_ROW = "more than 1,000 alternatives or 5,000 parts", "more than 50 look-arounds or word boundaries in a row"


@pytest.mark.parametrize(("expression", "expected"), [
    ("(" * 100 + "a*" + ")*" * 100, (False, True)),
    ("(a|aa)" * 100, (False, False)),
    ("a{0,1000000}" * 100, (False, True)),
    ("(?:" * 50 + "a" + "){1000}" * 50, (False, False)),
    ("^" + "a" * 20_000 + "$", (False, False)),
    ("(?:" * 50 + "^a|b" + ")+" * 50, (False, True)),
    (r"[\p{L}\p{N}]" * 100, (False, False)),
    ("(?i)" + "k" * 5_000, (False, False)),
    ("|".join(["ab"] * 3_000), (False, True)),
    ("((?!a)." * 60 + ")*" * 60, (False, True)),
    ("[" + "a-z" * 3_000 + "]", (False, True)),
    ("(?:" * 50 + "a(?!bc)" + "){2}" * 50, PARTS),
    ("a(?<=a)" * 5_000, PARTS),
    (r"\b" * 2_000, PARTS),
    ("(^|$)" * 1_000, PARTS),
    ("(?=a)" * 1_000, IN_A_ROW),
    ("(?!a.*b)" * 500, IN_A_ROW),
])  # fmt: skip
def test_hostile_expression_is_compiled_or_rejected_after_limited_work(
    expression: str, expected: tuple[bool, bool] | str
) -> None:
    """As a whole and as a pattern: whether it matches a text, or the reason why it is rejected."""

    def term_of(whole: bool) -> Term:
        return regex_term(expression) if whole else pattern_term(expression, char_class, ANY_CHAR)

    for i, whole in enumerate((True, False)):
        with bounded(), at_most(1_000_000):
            if isinstance(expected, str):
                with pytest.raises(InputError, match=expected):
                    term_of(whole)
            else:
                assert accepts(term_of(whole), "aaab") is expected[i]


def test_contradiction_matches_nothing() -> None:
    assert regex_term("a$b") is NOTHING and regex_term("a^b") is NOTHING

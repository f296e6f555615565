"""EBNF to regular expression: the accepted texts, and errors with their position."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gesso.constraints.grammar import grammar_regex
from gesso.constraints.limits import Limits
from gesso.errors import InputError
from tests.automata import Texts
from tests.waiting import bounded

CALL = r"""
# A call, as a model might write it.
root  ::= name "(" (arg ("," " "? arg)*)? ")" ";"{0,1}
name  ::= [a-z_] [a-z0-9_]{0,7}
arg   ::= name "=" value    # named ones only
value ::= number
        | '"' [^"\n\\]* '"'
        | "none"
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
"""


@pytest.mark.parametrize(("grammar", "inside", "outside"), [
    (CALL, ["f()", "go(x=1, y=-0.5);", 'say(text="hé 🙂")', "a(b=none)"], ["f(", "f(1)", "F()", "f(x=01)"]),
    ('root ::= "a" | "ab" | ""', ["", "a", "ab"], ["b", "aba"]),
    (r'root ::= "\n\t\"\\\x41\u00e9\U0001F642" ' + r"'\''", ["\n\t\"\\Aé🙂'"], ["n"]),
    (r"root ::= [\]\-\^a-c] [^^-] [-x]", ["]a-", "-zx", "^.-", "bb-"], ["da-", "a^-", "a--", "aaa"]),
    ("root ::= .{2,3}", ["ab", "é\n🙂"], ["a", "abcd"]),
    ('root ::= ("a" | "b")+ "c"*', ["a", "abbac", "bcc"], ["", "c", "ca"]),
    ('root ::= "a.b*(c)|[d]{2}^$-#"', ["a.b*(c)|[d]{2}^$-#"], ["axb*(c)|[d]{2}^$-#"]),
])  # fmt: skip
def test_grammar_accepts_its_texts_and_no_others(grammar: str, inside: list[str], outside: list[str]) -> None:
    found = Texts(grammar_regex(grammar))
    assert [text for text in inside if not found.has(text)] == []
    assert [text for text in outside if found.has(text)] == []


@pytest.mark.parametrize("grammar", [
    'root ::= item "," root | item\nitem ::= [0-9]',
    'root ::= item ("," root)?\nitem ::= [0-9]',
    'root ::= item ("," root | "")\nitem ::= [0-9]',
    'root ::= list\nlist ::= [0-9] | [0-9] "," list',
])  # fmt: skip
def test_tail_recursion_becomes_loop(grammar: str) -> None:
    found = Texts(grammar_regex(grammar, limits=Limits(depth=1)))
    assert found.has("1") and found.has(",".join("123456789" * 20))
    assert not found.has("1,") and not found.has("")


def balanced(text: str) -> int:
    """Return the depth of parentheses; -1 if they are not balanced."""
    depth = most = 0
    for sign in text:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        most = max(most, depth)
        if depth < 0:
            return -1
    return -1 if depth else most


def test_recursion_is_unrolled_to_depth_limit() -> None:
    grammar = 'root ::= term ("+" term)*\nterm ::= [0-9] | "(" term ("+" term)* ")"'
    rng = random.Random(0)
    for depth in (1, 2, 4):
        found = Texts(grammar_regex(grammar, limits=Limits(depth=depth)))
        nested = depth - 1
        assert found.has("(" * nested + "1+1" + ")" * nested + "+2")
        assert not found.has("(" * depth + "1" + ")" * depth)
        samples = {found.sample(rng) for _ in range(100)}
        assert all(0 <= balanced(text) <= nested for text in samples)


_atoms = st.sampled_from(['"a"', '"bc"', "[x-z]", "'+'", ".", "[^a]", '""'])
_bodies = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"({' | '.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}"])).map(lambda p: f"({p[0]}){p[1]}"),
    ),
    max_leaves=8,
)


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(_bodies)
def test_grammar_agrees_with_python_re(body: str) -> None:
    found = Texts(grammar_regex(f"root ::= {body}"))
    plain = re.sub(r'"(\w*)"', r"(?:\1)", body).replace(" ", "").replace("'+'", "[+]")
    oracle = re.compile(plain.replace("(?:", "(").replace("(", "(?:"), re.DOTALL)
    rng = random.Random(0)
    for _ in range(20):
        text = found.sample(rng, 20)
        assert oracle.fullmatch(text), text
    for text in ("", "a", "bc", "x", "abc", "aa", "xyz", "+", "bcbc", "a+x"):
        assert found.has(text) == bool(oracle.fullmatch(text)), text


@pytest.mark.parametrize(("grammar", "message"), [
    ("", "no rule 'root'"),
    ('start ::= "a"', "no rule 'root'"),
    ('root ::= "a"\n  | word', "line 2, column 5: there is no rule 'word'"),
    ('root ::= "a"\nrest ::= "b"', "line 2, column 1: the rule 'rest' is never used"),
    ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is defined twice"),
    ('root ::= root "a" | "b"', "line 1, column 10: left recursion: 'root'"),
    ('root ::= a\na ::= blank b\nb ::= a "x" | "y"\nblank ::= " "*', "line 3, column 7: left recursion: 'a'"),
    ('root ::= "a', "line 1, column 10: this \" is not closed"),
    ("root ::= [a", "line 1, column 10: this \\[ is not closed"),
    ('root ::= ("a"', "line 1, column 10: this \\( is not closed"),
    ('root ::= "a")', "line 1, column 13: this \\) closes no group"),
    ("root ::= [b-a]", "line 1, column 10: the range b-a"),
    ("root ::= []", "line 1, column 10: this class contains no character"),
    ('root ::= "a"{3,2}', "line 1, column 13: a count"),
    ('root ::= "a"{x}', "line 1, column 14: expected an integer"),
    (r'root ::= "\q"', r"line 1, column 11: unknown escape \\q"),
    (r'root ::= "\u12"', r"line 1, column 11: \\u needs 4"),
    (r'root ::= "\ud800"', "line 1, column 11: half of a surrogate pair"),
    ("root = 'a'", "line 1, column 1: expected a rule"),
    ("root ::= 'a' & 'b'", "line 1, column 14: unexpected '&'"),
    ('root ::= "(" root ")"', "has no end"),
    ('root ::= "a" b\nb ::= "c" root', "has no end"),
])  # fmt: skip
def test_grammar_errors_name_line_and_column(grammar: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        grammar_regex(grammar)


def rules(count: int, body: str, end: str) -> str:
    lines = [f"a{i} ::= {body.format(next=f'a{i + 1}')}" for i in range(count)]
    return "\n".join(["root ::= a0", *lines, f"a{count} ::= {end}"])


EVERYONE = " | ".join(f"a{i}" for i in range(12))
HOSTILE = {
    "10 MB": 'root ::= "' + "a" * 10_000_000 + '"',
    "deep groups": "root ::= " + "(" * 10_000,
    "a chain of rules": rules(20_000, "{next}", '"x"'),
    "a bomb of rules": rules(40, "{next} {next}", '"x"'),
    "everything refers to everything": "root ::= a0\n" + "\n".join(f'a{i} ::= "x" ({EVERYONE}) "y"' for i in range(12)),
    "many": 'root ::= "a"{1000000000}',
    "many of many": 'root ::= (("a"{1000}){1000}){1000}',
    "long": 'root ::= "' + "a" * 900_000 + '"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_large_grammar_is_rejected_after_limited_work(name: str) -> None:
    with bounded(), pytest.raises(InputError):
        grammar_regex(HOSTILE[name])

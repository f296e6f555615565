"""Grammars: the accepted texts in both notations, and errors with their position."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gesso.constraints.budget import at_most
from gesso.constraints.grammar import grammar_term
from gesso.constraints.term import FAR, Term
from gesso.errors import InputError
from tests.waiting import bounded


def accepts(term: Term, text: str) -> bool:
    for byte in text.encode():
        term = term.after(byte)
    return term.nullable


def sample(term: Term, rng: random.Random) -> str:
    """Return a random text of a term."""
    text = b""
    while not term.nullable or (len(text) < 20 and rng.random() < 0.8):
        following = {byte: after for byte in range(256) if (after := term.after(byte)).least < FAR}
        if len(text) >= 20:  # finish
            following = {byte: after for byte, after in following.items() if after.least < term.least}
        if not following:
            break
        byte = rng.choice(sorted(following))
        text, term = text + bytes([byte]), following[byte]
    return text.decode()


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
    found = grammar_term(grammar)
    assert [text for text in inside if not accepts(found, text)] == []
    assert [text for text in outside if accepts(found, text)] == []


def test_recursion_has_no_limit_of_depth() -> None:
    for grammar in (
        'root ::= term ("+" term)*\nterm ::= [0-9] | "(" root ")"',
        'start: term ("+" term)*\nterm: /[0-9]/ | "(" start ")"',
    ):
        term = grammar_term(grammar)
        for depth in (0, 1, 7, 200):
            assert accepts(term, "(" * depth + "1+2" + ")" * depth + "+3")
            assert not accepts(term, "(" * depth + "1+2" + ")" * (depth + 1))
            assert not accepts(term, "(" * (depth + 1) + "1" + ")" * depth)


@pytest.mark.parametrize("grammar", [
    'root ::= item "," root | item\nitem ::= [0-9]',
    'root ::= item ("," root)?\nitem ::= [0-9]',
    'root ::= root "," item | item\nitem ::= [0-9]',
    'root ::= (root ",")? item\nitem ::= [0-9]',
    'root ::= root "," root | [0-9]',
    'root ::= list\nlist ::= [0-9] | more [0-9]\nmore ::= list ","',
    'root ::= a\na ::= b [0-9] | [0-9]\nb ::= c ","\nc ::= a',
    'root ::= blank list\nlist ::= blank root "," [0-9] | [0-9]\nblank ::= " "*',
    'start: start "," ITEM | ITEM\nITEM: "0".."9"',
    "start: [start \",\"] /[0-9]/",
])  # fmt: skip
def test_recursion_at_either_end_accepts_lists(grammar: str) -> None:
    term = grammar_term(grammar)
    assert accepts(term, "1") and accepts(term, ",".join("123456789" * 20))
    assert not accepts(term, "1,") and not accepts(term, "") and not accepts(term, ",1")


EXPRESSIONS = {
    "left": """root ::= sum
sum ::= sum [+-] product | product
product ::= product "*" value | value
value ::= [ab] | "(" sum ")" | "-" value
""",
    "loops": """root ::= product ([+-] product)*
product ::= value ("*" value)*
value ::= "-"* ([ab] | "(" root ")")
""",
    "lark": """// The same as Lark writes it.
?start: sum
?sum: product | sum ("+" | "-") product -> added
?product.2: value
     | product "*" value
!value: "a".."b" | _grouped
     | "-" value
_grouped: "(" sum ")"
""",
}


def test_notations_of_the_same_language_accept_the_same_texts() -> None:
    found = {name: grammar_term(grammar) for name, grammar in EXPRESSIONS.items()}
    rng, inside = random.Random(0), 0
    for _ in range(3000):
        text = "".join(rng.choices("ab+-*()", k=rng.randint(1, 7)))
        accepted = {name: accepts(term, text) for name, term in found.items()}
        assert len(set(accepted.values())) == 1, (text, accepted)
        plain = text.replace("b", "a")
        try:
            expected = bool(eval(re.sub(r"\+", "-", plain), {"a": 1}) is not None and "**" not in plain)
        except (SyntaxError, TypeError, NameError):
            expected = False
        if "+" not in text and "()" not in text and "a(" not in plain and ")(" not in text and "aa" not in plain:
            assert accepted["left"] == expected, text
        inside += accepted["left"]
    assert inside > 30


LARK = r"""
// A record of values
start: "{" [pair ("," pair)*] "}"
pair: KEY ":" value
?value: NUMBER -> number   // an alias
      | ESCAPED_STRING | "true"i | list
list: "[" value~0..3 "]"
KEY: /[a-z]+/i | "_" DIGIT~2
%import common.ESCAPED_STRING
%import common (DIGIT, SIGNED_INT)
%import common.SIGNED_NUMBER -> NUMBER
%ignore /[ \n]/
"""


@pytest.mark.parametrize(("grammar", "inside", "outside"), [
    (LARK, ['{}', '{a:1}', ' { Ab : -1.5e3 ,_12:"x \\"y"}\n', "{a:tRuE}", "{a:[1 [] TRUE]}"],
     ["", "{a}", "{_1:1}", "{a:[1 1 1 1]}", "{a:t rue}", "{a\t:1}", '{a:"\n"}']),
    ('start: A+ B?\nA: "x" | C\nC: "y".."z"\nB: /!{2}/', ["x", "xyz!!"], ["", "!!", "x!"]),
    ("start: /a.c/s \"\\n\" // ends\n", ["a\nc\n"], ["ac\n"]),
    ('%import common.WS\nstart: "a" "b"\n%ignore WS\n', ["ab", " a \n b "], ["a"]),
    ('start: "é"i "k"i', ["Ék", "éK"], ["ek"]),
    ('start: a{2,3}\na: "x"', ["xx", "xxx"], ["x", "xxxx"]),
])  # fmt: skip
def test_lark_grammar_accepts_its_texts_and_no_others(grammar: str, inside: list[str], outside: list[str]) -> None:
    term = grammar_term(grammar)
    assert [text for text in inside if not accepts(term, text)] == []
    assert [text for text in outside if accepts(term, text)] == []


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
    found = grammar_term(f"root ::= {body}")
    plain = re.sub(r'"(\w*)"', r"(?:\1)", body).replace(" ", "").replace("'+'", "[+]")
    oracle = re.compile(plain.replace("(?:", "(").replace("(", "(?:"), re.DOTALL)
    rng = random.Random(0)
    for _ in range(3):
        text = sample(found, rng)
        assert oracle.fullmatch(text), text
    for text in ("", "a", "bc", "x", "abc", "aa", "xyz", "+", "bcbc", "a+x"):
        assert accepts(found, text) == bool(oracle.fullmatch(text)), text


@pytest.mark.parametrize(("grammar", "message"), [
    ("", "no rule 'root'"),
    ('start ::= "a"', "no rule 'root'"),
    ('root ::= "a"\n  | word', "line 2, column 5: there is no rule 'word'"),
    ('root ::= "a"\nrest ::= "b"', "line 2, column 1: the rule 'rest' is never used"),
    ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is defined twice"),
    ("root ::= a*\na ::= root?", "left recursion: 'a' starts with itself through 'root'"),
    ('start: "a"\n  | word', "line 2, column 5: there is no rule 'word'"),
    ('rule: "a"', "no rule 'start'"),
    ('start: "a"\nstart: "b"', "line 2, column 1: the rule 'start' is defined twice"),
    ('start: A\nA: b\nb: "x"', "line 2, column 4: the terminal 'A' uses the rule 'b'"),
    ("start: /a(/", "line 1, column 8: the regular expression"),
    ("start: /a/m", "line 1, column 8: the flags 'm'"),
    ("start: 'a'", "line 1, column 8: unexpected"),
    ('start: ["a"', r"line 1, column 8: this \[ is not closed"),
    ('start: "b".."a"', "line 1, column 8: a range"),
    ('start: "a"~3..2', "line 1, column 11: a count"),
    ('start: "a"\n%import python.NAME', "line 2, column 1: %import is not supported"),
    ('start: "a"\n%import common.NAME', "line 2, column 1: common has no terminal 'NAME'"),
    ('start: "a"\n%declare B', "line 2, column 1: %declare is not supported"),
    ("start: <|tool|>", "line 1, column 8: unexpected '<'"),
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
        grammar_term(grammar)


def rules(count: int, body: str, end: str) -> str:
    lines = [f"a{i} ::= {body.format(next=f'a{i + 1}')}" for i in range(count)]
    return "\n".join(["root ::= a0", *lines, f"a{count} ::= {end}"])


EVERYONE = " | ".join(f"a{i}" for i in range(12))
HOSTILE = {
    "10 MB": 'root ::= "' + "a" * 10_000_000 + '"',
    "deep groups": "root ::= " + "(" * 10_000,
    "a chain of rules": rules(4_000, "{next}", '"x"'),
    "a bomb of rules": rules(40, "{next} {next}", '"x"'),
    "everything refers to everything": "root ::= a0\n" + "\n".join(f'a{i} ::= "x" ({EVERYONE}) "y"' for i in range(12)),
    "many": 'root ::= "a"{1000000}',
    "many of many": 'root ::= (("a"{1000}){1000}){1000}',
    "long": 'root ::= "' + "a" * 10_000 + '"',
    "a chain of parts that may be empty": rules(2_000, '"y"? {next}', '"x"'),
    "left recursion through many": "root ::= a0\n" + "\n".join(f'a{i} ::= ({EVERYONE}) "y" | "x"' for i in range(12)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammar_is_compiled_or_rejected_after_limited_work(name: str) -> None:
    with bounded():
        try:
            with at_most(1_000_000):
                term = grammar_term(HOSTILE[name])
                for byte in b"xxxa":
                    term = term.after(byte)
        except InputError:
            pass

"""Hostile constraints, generated from a seed: schemas, patterns and grammars that make a careless compiler explode."""

import random
from collections.abc import Callable, Iterator
from typing import Any

Case = tuple[str, str, Any]  # the kind, the name of the constraint's argument, and its value

HUGE = (100, 10_000, 65_535, 10**6, 10**9, 10**18, 2**63)
LETTERS = "abcdefghij"


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Yield cases of all kinds in turn. Each depends on the seed and its number only."""
    kinds = [*SCHEMAS, *PATTERNS, *GRAMMARS]
    for number in range(count):
        make, rng = kinds[number % len(kinds)], random.Random(f"{seed} {number}")
        argument = "json_schema" if make in SCHEMAS else "regex" if make in PATTERNS else "grammar"
        yield make.__name__.strip("_"), argument, make(rng)


# --- JSON schemas -----------------------------------------------------------------------------------------------------


def _product_of_unions(rng: random.Random) -> Any:
    """Merging n unions of m members by distribution gives m**n."""
    unions, members = rng.randint(2, 40), rng.randint(2, 6)
    return {"allOf": [
        {"anyOf": [{"properties": {f"p{u}": {"const": m}}, "required": [f"p{u}"]} for m in range(members)]}
        for u in range(unions)
    ]}  # fmt: skip


def _doubling_references(rng: random.Random) -> Any:
    """A tree of 2**n copies if references are replaced by their targets."""
    levels, keyword = rng.randint(5, 60), rng.choice(["properties", "allOf", "anyOf", "prefixItems"])
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels):
        twice = [{"$ref": f"#/$defs/d{level - 1}"}, {"$ref": f"#/$defs/d{level - 1}"}]
        body = dict(zip("ab", twice, strict=True)) if keyword == "properties" else twice
        definitions[f"d{level}"] = {keyword: body} | ({"required": ["a", "b"]} if keyword == "properties" else {})
    return {"$ref": f"#/$defs/d{levels - 1}", "$defs": definitions}


def _reference_cycle(rng: random.Random) -> Any:
    size = rng.randint(1, 30)
    link: Callable[[Any], Any] = rng.choice([
        lambda ref: ref,
        lambda ref: {"allOf": [ref, {"type": "object"}]},
        lambda ref: {"anyOf": [ref, {"type": "null"}]},
        lambda ref: {"type": "object", "properties": {"next": ref}, "required": ["next"]},
        lambda ref: {"type": "array", "items": ref},
        lambda ref: {"not": ref},
        lambda ref: {"if": ref, "then": ref, "else": ref},
        lambda ref: {"type": "object", "additionalProperties": ref, "minProperties": 1},
    ])  # fmt: skip
    return {
        "$ref": "#/$defs/r0",
        "$defs": {f"r{i}": link({"$ref": f"#/$defs/r{(i + 1) % size}"}) for i in range(size)},
    }


def _deep_nesting(rng: random.Random) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(rng.choice([30, 100, 300, 900, 5_000])):
        schema = rng.choice([
            {"type": "array", "items": schema},
            {"type": "object", "properties": {"a": schema}, "required": ["a"]},
            {"anyOf": [schema, {"type": "null"}]},
            {"allOf": [schema]},
            {"not": {"not": schema}},
        ])  # fmt: skip
    return schema


def _huge_counts(rng: random.Random) -> Any:
    low, high = sorted(rng.choices(HUGE, k=2))
    text = {"type": "string", rng.choice(["minLength", "maxLength"]): rng.choice(HUGE)}
    return rng.choice([
        {"type": "string", "minLength": low, "maxLength": high},
        {"type": "array", "items": text, "minItems": low, "maxItems": high},
        {"type": "array", "items": {"type": "array", "items": text, "maxItems": high}, "minItems": low},
        {"type": "object", "additionalProperties": text, "minProperties": low, "maxProperties": high},
        {"type": "string", "pattern": "^[a-c]+$", "minLength": low, "maxLength": high},
        {"type": "string", "format": "uri", "maxLength": high},
        {"type": "array", "contains": {"const": 1}, "minContains": low, "maxContains": high},
    ])  # fmt: skip


def _wide_enum(rng: random.Random) -> Any:
    size = rng.choice([300, 3_000, 20_000])
    values = ["".join(rng.choices(LETTERS, k=rng.randint(1, 14))) for _ in range(size)]
    return rng.choice([
        {"enum": values},
        {"type": "array", "items": {"enum": values}, "uniqueItems": True},
        {"anyOf": [{"const": value} for value in values[:2_000]]},
        {"type": "string", "not": {"enum": values}},
        {"type": "string", "pattern": "^(" + "|".join(values[:2_000]) + ")*$", "maxLength": 500},
    ])  # fmt: skip


def _unique_items(rng: random.Random) -> Any:
    values = list(range(rng.randint(3, 60)))
    schema = {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": rng.randint(0, 70)}
    return schema | rng.choice([{}, {"contains": {"enum": values[:2]}, "maxContains": 1}, {"maxItems": 50}])


def _many_properties(rng: random.Random) -> Any:
    names = [f"{rng.choice(LETTERS)}{i}" for i in range(rng.choice([50, 400, 3_000]))]
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    schema |= rng.choice([
        {}, {"minProperties": len(names) // 2}, {"maxProperties": len(names) // 2}, {"additionalProperties": True},
        {"dependentRequired": {name: rng.choices(names, k=3) for name in names}},
        {"patternProperties": {f"^{letter}": {"maxLength": 5} for letter in LETTERS}},
        {"required": names[::2], "additionalProperties": {"type": "integer"}},
    ])  # fmt: skip
    return schema


def _overlapping_branches(rng: random.Random) -> Any:
    size = rng.choice([5, 50, 400])
    branches = [{"properties": {f"p{i % 7}": {"minimum": i}}, "required": [f"p{i % 5}"]} for i in range(size)]
    return {rng.choice(["oneOf", "anyOf"]): branches, "type": "object"}


def _pattern_keys(rng: random.Random) -> Any:
    patterns = {f"{rng.choice(LETTERS)}.*{i}[a-f]{{{i},}}": {"type": "integer"} for i in range(rng.randint(1, 12))}
    names = {"pattern": "(a|b)*" + rng.choice(LETTERS) + "." * rng.randint(1, 20), "maxLength": rng.choice(HUGE)}
    return {"type": "object", "patternProperties": patterns, "propertyNames": names, "additionalProperties": False}


def _numbers(rng: random.Random) -> Any:
    bound = rng.choice([0, 1e308, -1e308, 10**300, 10**4000, 0.1, 123456789.123456789, 1e-300])
    schema = {"type": rng.choice(["integer", "number"]), rng.choice(["minimum", "exclusiveMaximum"]): bound}
    return schema | {"multipleOf": rng.choice([7, 9_973, 99_999_999_977, 10**50, 1e-9, 0.01, 1e300, 2.5, 1e-320])}


def _conditions(rng: random.Random) -> Any:
    schema: Any = {"required": ["z"]}
    for i in range(rng.randint(2, 60)):
        test = {"properties": {f"p{i % 9}": rng.choice([{"const": i}, {"pattern": f"x{{{i}}}"}, {"minimum": i}])}}
        schema = {"if": test, "then": schema, "else": {"allOf": [schema, {"not": test}]}} if i < 12 else {
            "if": test, "then": schema}  # fmt: skip
    return {"type": "object"} | schema


def _several_patterns(rng: random.Random) -> Any:
    """An intersection whose automaton has the product of their states."""
    parts = [f"^(.{{{n}}})*$" for n in rng.sample([2, 3, 5, 7, 11, 13, 17, 19, 23], rng.randint(2, 8))]
    parts += [f"{letter}.{{{rng.randint(1, 30)}}}{letter}" for letter in rng.sample(LETTERS, rng.randint(0, 4))]
    return {"type": "string", "allOf": [{"pattern": part} for part in parts], "maxLength": rng.choice(HUGE)}


def _malformed(rng: random.Random) -> Any:
    keyword = rng.choice([
        "type", "enum", "const", "minimum", "maxLength", "pattern", "format", "items", "prefixItems", "properties",
        "required", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$id", "$anchor", "$defs", "patternProperties",
        "propertyNames", "dependentRequired", "uniqueItems", "contains", "multipleOf", "$schema",
        "additionalProperties",
    ])  # fmt: skip
    value: Any = rng.choice(
        [None, -1, 1.5, "", "#/x", [], [1], {}, {"a": 1}, [[]], "\ud800", "(", True, 10**30, [None, {}]]
    )
    return rng.choice([{keyword: value}, {"properties": {"a": {keyword: value}}}, {"items": {keyword: value}}])


# --- patterns ---------------------------------------------------------------------------------------------------------


def _nested_repetition(rng: random.Random) -> str:
    text = rng.choice(["a", "(a|b)", "[^x]", ".", "(a|aa)", r"\w"])
    for _ in range(rng.randint(1, 8)):
        count = rng.choice(["*", "+", "?", "{2,}", "{0,100}", "{3,1000}", "{1000}", "{0,1000000}"])
        text = f"(?:{text}){count}"
    return text + rng.choice(["", "b", "$"])


def _remembering(rng: random.Random) -> str:
    """A deterministic automaton has to remember the last n characters: 2**n states."""
    distance = rng.choice([8, 16, 30, 100, 1_000, 100_000])
    return rng.choice(["(a|b)*a(a|b){%d}", ".*a.{%d}", "(?:.*[ab].{%d}c)+", "[^x]*a[^y]{0,%d}b.*"]) % distance


def _unicode_classes(rng: random.Random) -> str:
    def one() -> str:
        low = rng.choice([0x20, 0x7F, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x1F600, 0x10FFF0])
        high = min(low + rng.choice([1, 50, 5_000, 100_000]), 0x10FFFF)
        named = rng.choice([r"\p{L}", r"\P{Lu}", r"\w", r"\W", r"\s", r"\p{Script=Greek}", "é", "🙂"])
        return rng.choice([named, f"\\u{{{low:x}}}-\\u{{{high:x}}}"])

    classes = [f"[{rng.choice(['', '^'])}{''.join(one() for _ in range(rng.randint(1, 12)))}]" for _ in range(6)]
    return "".join(c + rng.choice(["", "*", "{1,200}", "{50}"]) for c in classes[: rng.randint(1, 6)])


def _look_around(rng: random.Random) -> str:
    looks = [
        rng.choice(["(?=", "(?!", "(?<=", "(?<!"]) + rng.choice([".*", ".{9}", ""]) + rng.choice(LETTERS)
        + rng.choice(["", "{3,40}", ".{12}", "(?=b)", "(?!.*c(?=.*d))"]) + ")"
        for _ in range(rng.randint(1, 14))
    ]  # fmt: skip
    return rng.choice(["^", ""]) + "".join(looks) + rng.choice([".*", "[a-j]{8,64}", "(?:a|b)*c.{10}"])


def _alternations(rng: random.Random) -> str:
    words = ["".join(rng.choices("ab", k=rng.randint(1, 30))) for _ in range(rng.choice([20, 300, 3_000]))]
    return f"({'|'.join(words)})" + rng.choice(["", "*", "{0,50}", "+x"])


def _deep_groups(rng: random.Random) -> str:
    depth = rng.choice([50, 240, 1_000, 20_000])
    left, right = rng.choice([("(", ")"), ("(?:", ")?"), ("(a|", ")"), ("(?=", ")"), ("[", "]"), ("(?i:", ")*")])
    return left * depth + "a" + right * depth


def _many_gaps(rng: random.Random) -> str:
    return "".join(rng.choice([".*", ".{0,50}", "(.|x)*"]) + rng.choice(LETTERS) for _ in range(rng.randint(3, 60)))


def _random_syntax(rng: random.Random) -> str:
    return "".join(rng.choices(r"ab()[]{}|*+?.^$\\-,0123456789:=!<>pdwWsSbBux", k=rng.randint(1, 60)))


# --- grammars ---------------------------------------------------------------------------------------------------------


def _doubling_rules(rng: random.Random) -> str:
    """The shortest text has 2**n characters."""
    size = rng.randint(3, 60)
    lines = [f"r{i} ::= r{i - 1} r{i - 1}" for i in range(size, 0, -1)]
    return "\n".join([f"root ::= r{size}", *lines, 'r0 ::= "a"' + rng.choice(["", ' | ""', " | r0"])])


def _ambiguous(rng: random.Random) -> str:
    return "root ::= s\ns ::= " + rng.choice([
        's s | "a"', '"a" s | "a" s s | "a"', '("a" | "a" "a")* s | "b"', '"a"* "a"* "a"* "a"* s? "b"',
        '[ab]* "a" [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] s?', '"(" s ")" s | ""',
    ])  # fmt: skip


def _recursion_without_end(rng: random.Random) -> str:
    size = rng.randint(1, 20)
    shape = rng.choice(["{}", '{} "a"', '"a" {}', '"" {}', "{} {}", '{} | {} "a"', "({})*", "({})?"])
    lines = [f"r{i} ::= {shape.format(*[f'r{(i + 1) % size}'] * 2)}" for i in range(size)]
    return "\n".join(["root ::= r0", *lines])


def _large_grammar(rng: random.Random) -> str:
    size = rng.choice([100, 2_000, 8_000])
    lines = [
        f"r{i} ::= " + " | ".join(f'"{rng.choice(LETTERS)}" r{rng.randrange(size)}' for _ in range(rng.randint(1, 5)))
        + ' | "."'
        for i in range(size)
    ]  # fmt: skip
    return "\n".join(["root ::= r0", *lines])


def _grammar_counts(rng: random.Random) -> str:
    text = rng.choice(['"a"', "[a-z]", "item", '("a" | item)'])
    for _ in range(rng.randint(1, 4)):
        text = f"({text}){{{rng.choice([2, 50, 1_000])},{rng.choice([1_000, 10**6, 10**9])}}}"
    return f'root ::= {text}\nitem ::= "b" | "(" item ")"'


def _lark(rng: random.Random) -> str:
    return rng.choice([
        'start: a\na: a a | "x"', 'start: (X | Y)~1..1000000\nX: /(a|b)*a.{20}/\nY: /[^a]+/',
        "start: start", 'start: "a" start "b" | WS\nWS: /[ \\t]+/\n%ignore WS',
        "%import common.NOTHING\nstart: NOTHING",
        "start: /" + "(" * 5_000 + "/", 'start: x~10 y~1000000\nx: "a"? x?\ny: /\\p{L}{0,1000}/',
    ])  # fmt: skip


def _random_grammar(rng: random.Random) -> str:
    words = [
        "root",
        "a",
        "b",
        "::=",
        ":",
        "|",
        "(",
        ")",
        "*",
        "{3,}",
        '"x"',
        "[a-z]",
        "[^",
        "\n",
        "/x/",
        "%ignore",
        "~",
    ]
    return "root ::= " + " ".join(rng.choices(words, k=rng.randint(1, 40)))


Make = Callable[[random.Random], Any]
SCHEMAS: tuple[Make, ...] = (
    _product_of_unions, _doubling_references, _reference_cycle, _deep_nesting, _huge_counts, _wide_enum, _unique_items,
    _many_properties, _overlapping_branches, _pattern_keys, _numbers, _conditions, _several_patterns, _malformed,
)  # fmt: skip
PATTERNS: tuple[Make, ...] = (
    _nested_repetition, _remembering, _unicode_classes, _look_around, _alternations, _deep_groups, _many_gaps,
    _random_syntax,
)  # fmt: skip
GRAMMARS: tuple[Make, ...] = (
    _doubling_rules, _ambiguous, _recursion_without_end, _large_grammar, _grammar_counts, _lark, _random_grammar,
)  # fmt: skip

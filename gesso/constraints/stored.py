"""Serialize terms, to send them to another process.

The format is JSON: nodes, each after its parts, as [kind, ...] with the indexes of its parts. The bodies of rules
follow, because they may contain any node. A rule is stored with the length of its shortest text, which takes long to
compute.

A line has few nodes: the JSON parser holds the interpreter lock, and an engine restores terms between its steps.
"""

import json
from collections.abc import Iterator
from typing import Any

from gesso.constraints.schema.multiples import Digits, digits
from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import (  # fmt: skip
    Alt,
    Both,
    Bytes,
    NamedTerm,
    Not,
    Repeat,
    Seq,
    alt,
    both,
    complement,
    one_of,
    repeat,
    seq,
)

NODES = 1000  # in a line


def to_bytes(term: Term) -> bytes:
    """Return the serialized form of a term."""
    index: dict[Term, int] = {NOTHING: 0, EMPTY: 1}
    nodes: list[list[Any]] = []
    waiting: list[Term] = [term]
    bodies: list[NamedTerm] = []
    while waiting:
        top = waiting[-1]
        if top in index:
            waiting.pop()
            continue
        missing = [part for part in _parts(top) if part not in index]
        if missing and not isinstance(top, NamedTerm):
            waiting += missing
            continue
        waiting.pop()
        index[top] = len(nodes) + 2
        if isinstance(top, NamedTerm):
            bodies.append(top)
            nodes.append(["rule", top.name, top.least])
            waiting.insert(0, top.body)
        else:
            nodes.append(_node(top, index))
    nodes += [["body", index[rule], index[rule.body]] for rule in bodies]
    nodes.append(["root", index[term]])
    lines = (nodes[start : start + NODES] for start in range(0, len(nodes), NODES))
    return b"\n".join(json.dumps(line, separators=(",", ":")).encode() for line in lines)


def from_bytes(data: bytes) -> Term:
    """Return the term of a serialized form."""
    terms: list[Term] = [NOTHING, EMPTY]
    for kind, *args in (node for line in data.split(b"\n") for node in json.loads(line)):
        match kind:
            case "rule":
                rule: Term = NamedTerm(args[0])
                rule._least = args[1]
                terms.append(rule)
            case "bytes":
                terms.append(one_of(int(args[0], 16)))
            case "seq":
                terms.append(seq(terms[args[0]], terms[args[1]]))
            case "alt":
                terms.append(alt(terms[i] for i in args))
            case "repeat":
                terms.append(repeat(terms[args[0]], args[1], args[2]))
            case "digits":
                terms.append(digits(*args))
            case "both":
                terms.append(both(terms[i] for i in args))
            case "not":
                terms.append(complement(terms[args[0]]))
            case "body":
                rule = terms[args[0]]
                assert isinstance(rule, NamedTerm)
                rule.body = terms[args[1]]
            case "root":
                return terms[args[0]]
    raise AssertionError("a stored term has no root")


def _parts(term: Term) -> Iterator[Term]:
    match term:
        case Seq():
            yield term.head
            yield term.tail
        case Alt() | Both():
            yield from term.items
        case Repeat() | Not():
            yield term.item


def _node(term: Term, index: dict[Term, int]) -> list[Any]:
    match term:
        case Bytes():
            return ["bytes", f"{term.mask:x}"]
        case Seq():
            return ["seq", index[term.head], index[term.tail]]
        case Alt():
            return ["alt", *(index[item] for item in term.items)]
        case Repeat():
            return ["repeat", index[term.item], term.low, term.high]
        case Both():
            return ["both", *(index[item] for item in term.items)]
        case Not():
            return ["not", index[term.item]]
        case Digits():
            return ["digits", term.multiples.modulus, term.remainder, term.multiples.point]
    raise AssertionError(f"unknown term {term!r}")

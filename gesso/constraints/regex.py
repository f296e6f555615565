"""Regular expressions put together from parts, with their cost known before anything compiles them.

The syntax is that of Rust's `regex` crate, which has neither look-around nor back-references; escapes are written the
way Python's `re` reads them too. `None` stands for the expression that nothing matches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gesso.constraints.limits import Limits
from gesso.errors import InputError

ATOM, SEQUENCE, REPETITION, CHOICE = range(4)

NEST = 240
"""Rust's parser refuses expressions nested deeper than 250; groups, sequences, choices and repetitions all count."""

SLACK = 4
"""Sizes are estimates: what is refused here would be far too large, close calls are left to the automaton itself."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a regular expression."""

    text: str
    states: int
    """Estimated size of its automaton, counted repetitions written out."""
    nest: int = 0
    kind: int = ATOM
    """What its outermost operator is: decides where a group is needed."""


EMPTY = Piece("", 0, 0, SEQUENCE)

_META = str.maketrans({sign: "\\" + sign for sign in "\\.+*?()|[]{}^$#&-~"})
_MANY = 10**12


def quote(text: str) -> Piece:
    """The expression that matches exactly this text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(f"{text!r} holds half of a surrogate pair, which no text in UTF-8 can hold") from None
    return Piece(text.translate(_META), size, 1, ATOM if len(text) == 1 else SEQUENCE)


def raw(text: str, states: int | None = None) -> Piece:
    """An expression written by hand, which holds no `|` outside of a group."""
    return Piece(text, len(text) if states is None else states, 1 + text.count("("), SEQUENCE)


def seq(*pieces: Piece) -> Piece:
    """One after the other."""
    parts = [p for p in pieces if p.text]
    if len(parts) == 1:
        return parts[0]
    texts = [f"(?:{p.text})" if p.kind == CHOICE else p.text for p in parts]
    inside = {ATOM: 1, SEQUENCE: 0, REPETITION: 1, CHOICE: 2}  # a sequence within a sequence is one sequence
    nest = max((p.nest + inside[p.kind] for p in parts), default=0)
    return Piece("".join(texts), sum(p.states for p in parts), nest, SEQUENCE)


def alt(pieces: Iterable[Piece | None]) -> Piece | None:
    """One or the other; `None` where there is nothing to choose from."""
    parts = list({p.text: p for p in pieces if p is not None}.values())
    if len(parts) < 2:
        return parts[0] if parts else None
    nest = max(p.nest for p in parts)
    return Piece("|".join(p.text for p in parts), sum(p.states for p in parts) + 1, 1 + nest, CHOICE)


def repeat(piece: Piece, low: int, high: int | None) -> Piece:
    """`low` to `high` times, without end where `high` is None."""
    if high == 0 or not piece.text:
        return EMPTY
    if low == high == 1:
        return piece
    marks = {(0, 1): "?", (0, None): "*", (1, None): "+", (low, low): f"{{{low}}}"}
    mark = marks.get((low, high)) or f"{{{low},{'' if high is None else high}}}"
    grouped = piece.kind != ATOM
    text = f"(?:{piece.text})" if grouped else piece.text
    copies = max(low, 1) if high is None else high
    return Piece(text + mark, min(piece.states * copies + 1, _MANY), piece.nest + 1 + grouped, REPETITION)


def optional(piece: Piece | None) -> Piece:
    return EMPTY if piece is None else repeat(piece, 0, 1)


def check(pieces: Iterable[Piece | None], limits: Limits, what: str) -> None:
    """Refuse parts that together are too large, before they are joined."""
    parts = [p for p in pieces if p is not None]
    chars, states = sum(len(p.text) for p in parts), sum(p.states for p in parts)
    advice = "Use fewer or shorter parts, smaller counts, less recursion, or raise the limit."
    if chars > limits.regex_chars:
        raise InputError(
            f"{what} makes a regular expression of more than {limits.regex_chars:,} characters "
            f"(limits.regex_chars). {advice}"
        )
    if states > SLACK * limits.states:
        raise InputError(
            f"{what} makes an automaton of about {states:,} states, where {limits.states:,} are allowed "
            f"(limits.states). {advice}"
        )
    if any(p.nest > NEST for p in parts):
        raise InputError(f"{what} nests too deep for a regular expression: flatten it, or lower limits.depth.")

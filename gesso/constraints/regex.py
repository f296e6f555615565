"""Build regular expressions from parts and estimate the size of their automata.

The syntax is that of Rust's `regex` crate: no look-around, no back-references. Escapes are valid in Python's `re` too.
Everywhere in this package, None stands for an expression that matches no text.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gesso.constraints.limits import Limits
from gesso.errors import InputError

ATOM, SEQUENCE, REPETITION, CHOICE = range(4)

# Rust's parser rejects expressions nested deeper than 250. Groups, sequences, choices and repetitions all count.
MAX_NEST = 240

# State counts are estimates, so reject only those far above the limit. The compiler checks the exact count.
SLACK = 4

_META = str.maketrans({sign: "\\" + sign for sign in "\\.+*?()|[]{}^$#&-~"})
_MAX_STATES = 10**12


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression and its estimated size."""

    text: str
    states: int  # of its automaton, with counted repetitions unrolled
    nest: int = 0
    kind: int = ATOM  # the outermost operator, which decides whether a group is needed


EMPTY = Regex("", 0, 0, SEQUENCE)


def literal(text: str) -> Regex:
    """Return an expression that matches exactly this text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(
            f"{text!r} contains half of a surrogate pair, which UTF-8 cannot encode; remove that character"
        ) from None
    return Regex(text.translate(_META), size, 1, ATOM if len(text) == 1 else SEQUENCE)


def raw(text: str, states: int | None = None) -> Regex:
    """Return a handwritten expression. Outside of groups it must not contain `|`."""
    return Regex(text, len(text) if states is None else states, 1 + text.count("("), SEQUENCE)


def seq(*parts: Regex | None) -> Regex | None:
    """Return the concatenation of all parts; None if one of them is None."""
    kept: list[Regex] = []
    for part in parts:
        if part is None:
            return None
        if part.text:
            kept.append(part)
    if len(kept) == 1:
        return kept[0]
    texts = [f"(?:{p.text})" if p.kind == CHOICE else p.text for p in kept]
    levels = {ATOM: 1, SEQUENCE: 0, REPETITION: 1, CHOICE: 2}  # a sequence in a sequence adds no level
    nest = max((p.nest + levels[p.kind] for p in kept), default=0)
    return Regex("".join(texts), sum(p.states for p in kept), nest, SEQUENCE)


def alt(parts: Iterable[Regex | None]) -> Regex | None:
    """Return the alternatives without duplicates; None if there are none."""
    kept = list({p.text: p for p in parts if p is not None}.values())
    if len(kept) < 2:
        return kept[0] if kept else None
    nest = max(p.nest for p in kept)
    return Regex("|".join(p.text for p in kept), sum(p.states for p in kept) + 1, 1 + nest, CHOICE)


def repeat(part: Regex | None, low: int, high: int | None) -> Regex | None:
    """Return `low` to `high` repetitions of a part; no upper limit if `high` is None."""
    if high is not None and low > high:
        return None
    if part is None:
        return EMPTY if low == 0 else None
    if high == 0 or not part.text:
        return EMPTY
    if low == high == 1:
        return part
    marks = {(0, 1): "?", (0, None): "*", (1, None): "+", (low, low): f"{{{low}}}"}
    mark = marks.get((low, high)) or f"{{{low},{'' if high is None else high}}}"
    grouped = part.kind != ATOM
    text = f"(?:{part.text})" if grouped else part.text
    copies = max(low, 1) if high is None else high
    return Regex(text + mark, min(part.states * copies + 1, _MAX_STATES), part.nest + 1 + grouped, REPETITION)


def optional(part: Regex | None) -> Regex | None:
    return repeat(part, 0, 1)


def check_size(parts: Iterable[Regex | None], limits: Limits, source: str) -> None:
    """Reject parts that are too large together, before they are joined."""
    kept = [p for p in parts if p is not None]
    chars, states = sum(len(p.text) for p in kept), sum(p.states for p in kept)
    advice = "Use fewer or shorter parts, smaller counts or less recursion, or raise the limit."
    if chars > limits.regex_chars:
        raise InputError(
            f"{source} needs a regular expression of more than {limits.regex_chars:,} characters "
            f"(limits.regex_chars). {advice}"
        )
    if states > SLACK * limits.states:
        raise InputError(
            f"{source} needs an automaton of about {states:,} states; at most {limits.states:,} are allowed "
            f"(limits.states). {advice}"
        )
    if any(p.nest > MAX_NEST for p in kept):
        raise InputError(f"{source} nests too deeply for a regular expression. Flatten it, or lower limits.depth.")

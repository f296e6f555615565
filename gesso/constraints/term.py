"""The base of all terms: a set of texts, and its derivative by a byte.

A term describes a set of texts, byte by byte. `after` is Brzozowski's derivative: the rests of the texts that begin
with a byte. A term is therefore a state of an automaton, and states are created only when a text reaches them. Counts
stay numbers, and recursion to any depth is a sequence of the parts that are still to come.
"""

import heapq
from itertools import count
from typing import final

from gesso.errors import InputError

ALL_BYTES = (1 << 256) - 1
FAR = 1 << 60  # the length of a text that does not exist
MAX_SEARCH = 60_000  # derivatives taken for the shortest text of an intersection

Masks = tuple[int, ...]  # disjoint sets of bytes, each a number with bit b for byte b


class Term:
    """A set of texts."""

    __slots__ = ("__weakref__", "_after", "_least", "_masks", "has_rule")

    _least: int | None
    _masks: Masks | None
    has_rule: bool

    def __init__(self, *children: "Term") -> None:
        self._least = self._masks = None
        self._after = dict[int, Term]()
        self.has_rule = any(child.has_rule for child in children)

    @property
    def least(self) -> int:
        """The bytes of a shortest text; FAR if there is none."""
        if self._least is None:
            self._least = min(self._measure(), FAR)
        return self._least

    @property
    def nullable(self) -> bool:
        """Whether the empty text belongs to the set."""
        return self.least == 0

    @property
    def masks(self) -> Masks:
        """Sets of bytes that cover all bytes. `after` is the same for all bytes of a set."""
        if self._masks is None:
            self._masks = self._split()
        return self._masks

    def after(self, byte: int) -> "Term":
        """Return the rests of the texts that begin with a byte."""
        if byte not in self._after:  # cached, because many terms share their parts
            self._after[byte] = self._derive(byte)
        return self._after[byte]

    def bound(self) -> int:
        """Return a lower bound on the length of the texts, in less time than `least` may take."""
        return self._estimate() if self._least is None else self._least

    def _estimate(self) -> int:
        return self.least

    def _derive(self, byte: int) -> "Term":
        raise NotImplementedError

    def _measure(self) -> int:
        raise NotImplementedError

    def _split(self) -> Masks:
        raise NotImplementedError


@final
class Nothing(Term):
    """No text."""

    __slots__ = ()

    def after(self, byte: int) -> Term:
        return self

    def _measure(self) -> int:
        return FAR

    def _split(self) -> Masks:
        return (ALL_BYTES,)


@final
class Empty(Term):
    """The empty text only."""

    __slots__ = ()

    def after(self, byte: int) -> Term:
        return NOTHING

    def _measure(self) -> int:
        return 0

    def _split(self) -> Masks:
        return (ALL_BYTES,)


NOTHING, EMPTY = Nothing(), Empty()


def shortest(term: Term) -> int:
    """Return the length of a shortest text of an intersection or a complement, by A* over the terms after each byte."""
    ties = count()
    queue = [(term.bound(), 0, next(ties), term)]  # of texts with the same bound, the longest first
    reached: dict[Term, tuple[int, Term | None]] = {term: (0, None)}  # length of the text so far, and the term before
    work = 0
    while queue:
        _, minus_length, _, at = heapq.heappop(queue)
        length = -minus_length
        if length > reached[at][0] or at._least == FAR:
            continue
        if at.nullable or at._least is not None:
            total = length + (at._least or 0)
            on_path = reached[at][1]
            while on_path is not None:  # all terms on the way to the end are measured now
                on_path._least = total - reached[on_path][0]
                on_path = reached[on_path][1]
            return total
        for mask in at.masks:
            target = at.after((mask & -mask).bit_length() - 1)
            if target is not NOTHING and (target not in reached or length + 1 < reached[target][0]):
                reached[target] = length + 1, at
                heapq.heappush(queue, (length + 1 + target.bound(), -length - 1, next(ties), target))
        work += len(at.masks)
        if work > MAX_SEARCH:
            raise InputError("the constraint combines patterns that are too large to compare; simplify them")
    return FAR


def refine(masks: Masks, others: Masks) -> Masks:
    """Split sets of bytes until none overlaps one of the others in part."""
    for other in others:
        if other in masks or other == ALL_BYTES:
            continue
        pieces = []
        for mask in masks:
            inside = mask & other
            if inside and inside != mask:
                pieces += [inside, mask ^ inside]
            else:
                pieces.append(mask)
        masks = tuple(pieces)
    return masks

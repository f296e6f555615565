"""A language of texts, and what is left of it after a byte: the base of all terms.

A term describes a set of texts, byte by byte. `after` is Brzozowski's derivative: the texts that complete those which
begin with a byte. So a term is a state of an automaton, and its states are made only when a text reaches them. That
keeps counts as numbers, and recursion to any depth as a sequence of what is still to come.
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
        """Return the texts that complete those which begin with a byte."""
        found = self._after.get(byte)  # kept, because many terms share their parts
        if found is None:
            found = self._after[byte] = self._derive(byte)
        return found

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
    found: dict[Term, tuple[int, Term | None]] = {term: (0, None)}  # length of the text so far, and the term before
    work = 0
    while queue:
        _, minus_length, _, at = heapq.heappop(queue)
        length = -minus_length
        if length > found[at][0] or at._least == FAR:
            continue
        if at.nullable or at._least is not None:
            total, on_path = length + (at._least or 0), found[at][1]
            while on_path is not None:  # all terms on the way to the end are measured now
                on_path._least = total - found[on_path][0]
                on_path = found[on_path][1]
            return total
        for mask in at.masks:
            target = at.after((mask & -mask).bit_length() - 1)
            if target is not NOTHING and (target not in found or length + 1 < found[target][0]):
                found[target] = length + 1, at
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
        found = []
        for mask in masks:
            inside = mask & other
            if inside and inside != mask:
                found += [inside, mask ^ inside]
            else:
                found.append(mask)
        masks = tuple(found)
    return masks

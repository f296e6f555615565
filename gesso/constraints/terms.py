"""The kinds of terms, and functions that make them in a canonical form: see `term`.

Equal terms are one object, so they are compared and hashed by identity.
"""

from collections.abc import Iterable
from threading import Lock
from typing import Any, final
from weakref import WeakValueDictionary

from gesso.constraints.budget import count_term
from gesso.constraints.term import ALL_BYTES, EMPTY, FAR, NOTHING, Masks, Term, refine, shortest
from gesso.errors import InputError

_interned: WeakValueDictionary[tuple[object, ...], Term] = WeakValueDictionary()
_interning = Lock()


@final
class Bytes(Term):
    """One byte of a set."""

    __slots__ = ("mask",)

    def __init__(self, mask: int) -> None:
        super().__init__()
        self.mask = mask

    def after(self, byte: int) -> Term:
        return EMPTY if self.mask >> byte & 1 else NOTHING

    def _measure(self) -> int:
        return 1

    def _split(self) -> Masks:
        return refine((ALL_BYTES,), (self.mask,))


@final
class Seq(Term):
    """A text of `head`, which is no sequence itself, and then one of `tail`."""

    __slots__ = ("head", "tail")

    def __init__(self, head: Term, tail: Term) -> None:
        super().__init__(head, tail)
        self.head, self.tail = head, tail

    def _derive(self, byte: int) -> Term:
        rests: list[Term] = []
        part: Term = self
        while isinstance(part, Seq):  # a loop, because a sequence may be long
            rests.append(seq(part.head.after(byte), part.tail))
            if not part.head.nullable:
                return alt(rests)
            part = part.tail
        return alt([*rests, part.after(byte)])

    def _measure(self) -> int:
        chain: list[Seq] = []
        rest: Term = self
        while isinstance(rest, Seq) and rest._least is None:
            chain.append(rest)
            rest = rest.tail
        total = rest.least
        for part in reversed(chain):
            total = min(total + part.head.least, FAR)
            part._least = total
        return total

    def _estimate(self) -> int:
        total = 0
        rest: Term = self
        while isinstance(rest, Seq):
            total += rest.head.bound()
            rest = rest.tail
        return min(total + rest.bound(), FAR)

    def _split(self) -> Masks:
        head, rest = self.head, self.tail
        masks = head.masks
        while head.nullable and rest is not EMPTY:
            head, rest = (rest.head, rest.tail) if isinstance(rest, Seq) else (rest, EMPTY)
            masks = refine(masks, head.masks)
        return masks


@final
class Alt(Term):
    """A text of one of several terms."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Term, ...]) -> None:
        super().__init__(*items)
        self.items = items

    def _derive(self, byte: int) -> Term:
        return alt([item.after(byte) for item in self.items])

    def _measure(self) -> int:
        # The shortest text of an intersection is searched only if it may be shorter than the other texts.
        least = min((item.least for item in self.items if not isinstance(item, Both | Not)), default=FAR)
        for item in self.items:
            if isinstance(item, Both | Not) and item.bound() < least:
                least = min(least, item.least)
        return least

    def _estimate(self) -> int:
        return min(item.bound() for item in self.items)

    def _split(self) -> Masks:
        masks: Masks = (ALL_BYTES,)
        for item in self.items:
            masks = refine(masks, item.masks)
        return masks


@final
class Repeat(Term):
    """`low` to `high` texts of a term in a row."""

    __slots__ = ("high", "item", "low")

    def __init__(self, item: Term, low: int, high: int | None) -> None:
        super().__init__(item)
        self.item = item
        self.low = low
        self.high = high

    def _derive(self, byte: int) -> Term:
        fewer = repeat(self.item, max(self.low - 1, 0), None if self.high is None else self.high - 1)
        return seq(self.item.after(byte), fewer)

    def _measure(self) -> int:
        return self.low * self.item.least if self.low else 0

    def _estimate(self) -> int:
        return min(self.low * self.item.bound(), FAR) if self.low else 0

    def _split(self) -> Masks:
        return self.item.masks


@final
class Both(Term):
    """A text that belongs to all of several terms. They contain no rules."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Term, ...]) -> None:
        super().__init__(*items)
        self.items = items

    @property
    def nullable(self) -> bool:
        return all(item.nullable for item in self.items)

    def _derive(self, byte: int) -> Term:
        return both([item.after(byte) for item in self.items])

    def _measure(self) -> int:
        return shortest(self)

    def _estimate(self) -> int:
        return max(item.bound() for item in self.items)

    def _split(self) -> Masks:
        masks: Masks = (ALL_BYTES,)
        for item in self.items:
            masks = refine(masks, item.masks)
        return masks


@final
class Not(Term):
    """Any text that does not belong to a term without rules."""

    __slots__ = ("item",)

    def __init__(self, item: Term) -> None:
        super().__init__(item)
        self.item = item

    @property
    def nullable(self) -> bool:
        return not self.item.nullable

    def _derive(self, byte: int) -> Term:
        return complement(self.item.after(byte))

    def _measure(self) -> int:
        return shortest(self)

    def _estimate(self) -> int:
        return 0 if self.nullable else 1

    def _split(self) -> Masks:
        return self.item.masks


@final
class NamedTerm(Term):
    """A rule: a term with a name, which may contain itself. Call `settle` when all bodies are set."""

    __slots__ = ("body", "name")
    body: Term

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.body = NOTHING
        self.has_rule = True

    def _derive(self, byte: int) -> Term:
        return self.body.after(byte)

    def _measure(self) -> int:
        raise AssertionError(f"the rule {self.name!r} is not settled")

    def _split(self) -> Masks:
        return self.body.masks


# --- making terms -----------------------------------------------------------------------------------------------------


def _term(kind: type[Term], *parts: Any) -> Term:
    """Return the term of a kind with these parts. Threads that make it at the same time get the same object."""
    key = kind, *parts
    term = _interned.get(key)
    if term is None:
        count_term()
        with _interning:
            term = _interned.get(key)
            if term is None:
                term = _interned[key] = kind(*parts)
    return term


def one_of(mask: int) -> Term:
    """Return the term of one byte of a set."""
    if not mask:
        return NOTHING
    return _term(Bytes, mask)


_SINGLE = [one_of(1 << byte) for byte in range(256)]


def literal(text: str | bytes) -> Term:
    """Return the term of one text."""
    if isinstance(text, str):
        try:
            text = text.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{text!r} contains half of a surrogate pair, which UTF-8 cannot encode; remove that character"
            ) from None
    rest: Term = EMPTY
    for byte in reversed(text):
        rest = _pair(_SINGLE[byte], rest)
    return rest


def seq(*parts: Term) -> Term:
    """Return the texts of all parts in a row."""
    if NOTHING in parts:
        return NOTHING
    rest = parts[-1] if parts else EMPTY
    for part in reversed(parts[:-1]):
        heads = []
        while isinstance(part, Seq):
            heads.append(part.head)
            part = part.tail
        if part is not EMPTY:
            heads.append(part)
        for head in reversed(heads):
            rest = _pair(head, rest)
    return rest


def _pair(head: Term, tail: Term) -> Term:
    if tail is EMPTY:
        return head
    if tail is NOTHING:
        return NOTHING
    # x*x* is x*. This keeps the number of states of an unlimited text small.
    second = tail.head if isinstance(tail, Seq) else tail
    if head is second and isinstance(head, Repeat) and head.low == 0 and head.high is None:
        return tail
    return _term(Seq, head, tail)


def alt(parts: Iterable[Term]) -> Term:
    """Return the texts of any part."""
    items: dict[Term, None] = {}  # a set in order
    for part in parts:
        if isinstance(part, Alt):
            items.update(dict.fromkeys(part.items))
        elif part is not NOTHING:
            items[part] = None
    if ANYTHING in items:
        return ANYTHING
    if len(items) > 1:
        items = _merged(items)
    if len(items) < 2:
        return next(iter(items), NOTHING)
    return _term(Alt, tuple(sorted(items, key=id)))


def _merged(parts: dict[Term, None]) -> dict[Term, None]:
    """Join parts that differ in one place: sets of bytes, counts of the same item, and tails after the same head.

    Without this, the alternatives of an ambiguous text would multiply.
    """
    mask = 0  # of all sets of bytes
    tails: dict[Term, list[Term]] = {}  # by head
    counts: dict[tuple[Term, Term], list[tuple[int, int | None]]] = {}  # by item and tail
    for part in parts:
        head, tail = (part.head, part.tail) if isinstance(part, Seq) else (part, EMPTY)
        if isinstance(part, Bytes):
            mask |= part.mask
        elif isinstance(head, Repeat):
            counts.setdefault((head.item, tail), []).append((head.low, head.high))
        else:
            tails.setdefault(head, []).append(tail)
    merged: dict[Term, None] = {}
    if mask:
        merged[one_of(mask)] = None
    for (item, tail), ranges in counts.items():
        for low, high in _joined(ranges):
            merged[seq(repeat(item, low, high), tail)] = None
    for head, after in tails.items():
        merged[_pair(head, after[0] if len(after) == 1 else alt(after))] = None
    return merged


def _joined(ranges: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Join ranges of counts that overlap or touch."""
    if len(ranges) == 1:
        return ranges
    joined: list[tuple[int, int | None]] = []
    for low, high in sorted(ranges, key=lambda counts: counts[0]):
        if joined and (joined[-1][1] is None or low <= joined[-1][1] + 1):
            first, last = joined[-1]
            joined[-1] = first, None if last is None or high is None else max(last, high)
        else:
            joined.append((low, high))
    return joined


def repeat(item: Term, low: int, high: int | None) -> Term:
    """Return the texts of `low` to `high` items in a row; no upper limit if `high` is None."""
    if high is not None and low > high:
        return NOTHING
    if high == 0 or item is EMPTY:
        return EMPTY
    if item is NOTHING:
        return EMPTY if low == 0 else NOTHING
    if not item.has_rule and item.nullable:
        low = 0
    if low == high == 1:
        return item
    if isinstance(item, Repeat) and item.low == 0 and item.high in (1, None):  # (x?){2,5} is x{0,5}, (x*){2,5} is x*
        return repeat(item.item, 0, high if item.high == 1 else None)
    return _term(Repeat, item, low, high)


def optional(item: Term) -> Term:
    return repeat(item, 0, 1)


def both(parts: Iterable[Term]) -> Term:
    """Return the texts that belong to all parts, of which none contains a rule."""
    items: dict[Term, None] = {}  # a set in order
    for part in parts:
        items.update(dict.fromkeys(part.items) if isinstance(part, Both) else {part: None})
    items.pop(ANYTHING, None)
    assert not any(item.has_rule for item in items), "an intersection contains a rule"
    if NOTHING in items:
        return NOTHING
    if EMPTY in items:
        return EMPTY if all(item.nullable for item in items) else NOTHING
    excluded = [item.item for item in items if isinstance(item, Not)]
    if any(is_within(item, other) for other in excluded for item in items):
        return NOTHING  # cheaper than the search for a shortest text, which would try all counts of the item
    if len(items) < 2:
        return next(iter(items), ANYTHING)
    return _term(Both, tuple(sorted(items, key=id)))


def is_within(inner: Term, outer: Term) -> bool:
    """Return whether all texts of a term belong to another, if their forms show it."""
    while isinstance(inner, Seq) and isinstance(outer, Seq) and inner.head is outer.head:
        inner, outer = inner.tail, outer.tail
    if inner is outer:
        return True
    if isinstance(outer, Alt):
        return any(is_within(inner, item) for item in outer.items)
    if not (isinstance(inner, Repeat) and isinstance(outer, Repeat) and inner.item is outer.item):
        return False
    return inner.low >= outer.low and (outer.high is None or (inner.high is not None and inner.high <= outer.high))


def complement(item: Term) -> Term:
    """Return all other texts. The term contains no rule."""
    if item is NOTHING:
        return ANYTHING
    if item is ANYTHING:
        return NOTHING
    if isinstance(item, Not):
        return item.item
    assert not item.has_rule, "a complement contains a rule"
    return _term(Not, item)


def minus(item: Term, other: Term) -> Term:
    """Return the texts of a term that do not belong to another one."""
    return both([item, complement(other)])


ANYTHING = repeat(one_of(ALL_BYTES), 0, None)

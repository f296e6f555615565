"""Languages of texts as terms, and what is left of a language after a byte.

A term describes a set of texts, byte by byte. `after` is Brzozowski's derivative: the texts that complete those which
begin with a byte. So a term is a state of an automaton, and its states are made only when a text reaches them. That
keeps counts as numbers, and recursion to any depth as a sequence of what is still to come.

Equal terms are one object, so they are compared and hashed by identity.
"""

import heapq
from collections.abc import Iterable
from itertools import count
from typing import final
from weakref import WeakValueDictionary

from gesso.constraints.budget import count_term
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

    def _derive(self, byte: int) -> "Term":
        raise NotImplementedError

    def _measure(self) -> int:
        raise NotImplementedError

    def _split(self) -> Masks:
        raise NotImplementedError


_interned: WeakValueDictionary[tuple[object, ...], Term] = WeakValueDictionary()


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
        return _refine((ALL_BYTES,), (self.mask,))


@final
class Seq(Term):
    """A text of `head`, which is no sequence itself, and then one of `tail`."""

    __slots__ = ("head", "tail")

    def __init__(self, head: Term, tail: Term) -> None:
        super().__init__(head, tail)
        self.head, self.tail = head, tail

    def _derive(self, byte: int) -> Term:
        found: list[Term] = []
        rest: Term = self
        while isinstance(rest, Seq):  # a loop, because a sequence may be long
            found.append(seq(rest.head.after(byte), rest.tail))
            if not rest.head.nullable:
                return alt(found)
            rest = rest.tail
        return alt([*found, rest.after(byte)])

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

    def _split(self) -> Masks:
        head, rest = self.head, self.tail
        found = head.masks
        while head.nullable and rest is not EMPTY:
            head, rest = (rest.head, rest.tail) if isinstance(rest, Seq) else (rest, EMPTY)
            found = _refine(found, head.masks)
        return found


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
        return min(item.least for item in self.items)

    def _split(self) -> Masks:
        found: Masks = (ALL_BYTES,)
        for item in self.items:
            found = _refine(found, item.masks)
        return found


@final
class Repeat(Term):
    """`low` to `high` texts of a term in a row."""

    __slots__ = ("high", "item", "low")

    def __init__(self, item: Term, low: int, high: int | None) -> None:
        super().__init__(item)
        self.item, self.low, self.high = item, low, high

    def _derive(self, byte: int) -> Term:
        fewer = repeat(self.item, max(self.low - 1, 0), None if self.high is None else self.high - 1)
        return seq(self.item.after(byte), fewer)

    def _measure(self) -> int:
        return self.low * self.item.least if self.low else 0

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
        return _shortest(self)

    def _split(self) -> Masks:
        found: Masks = (ALL_BYTES,)
        for item in self.items:
            found = _refine(found, item.masks)
        return found


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
        return _shortest(self)

    def _split(self) -> Masks:
        return self.item.masks


@final
class Rule(Term):
    """A term with a name, which may contain itself. `settle` must be called when all bodies are given."""

    __slots__ = ("body", "name")
    body: Term

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.body = name, NOTHING
        self.has_rule = True

    def _derive(self, byte: int) -> Term:
        return self.body.after(byte)

    def _measure(self) -> int:
        raise AssertionError(f"the rule {self.name!r} is not settled")

    def _split(self) -> Masks:
        return self.body.masks


# --- making terms -----------------------------------------------------------------------------------------------------


def one_of(mask: int) -> Term:
    """Return the term of one byte of a set."""
    if not mask:
        return NOTHING
    found = _interned.get((Bytes, mask))
    if found is None:
        count_term()
        found = _interned[(Bytes, mask)] = Bytes(mask)
    return found


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
    found: Term = EMPTY
    for byte in reversed(text):
        found = _pair(_SINGLE[byte], found)
    return found


def seq(*parts: Term) -> Term:
    """Return the texts of all parts in a row."""
    if NOTHING in parts:
        return NOTHING
    found = parts[-1] if parts else EMPTY
    for part in reversed(parts[:-1]):
        heads = []
        while isinstance(part, Seq):
            heads.append(part.head)
            part = part.tail
        if part is not EMPTY:
            heads.append(part)
        for head in reversed(heads):
            found = _pair(head, found)
    return found


def _pair(head: Term, tail: Term) -> Term:
    if tail is EMPTY:
        return head
    if tail is NOTHING:
        return NOTHING
    # x{1,2}x{3,4} is x{4,6}. This keeps the states of a text without a limit few.
    second = tail.head if isinstance(tail, Seq) else tail
    if head is second and isinstance(head, Repeat) and head.low == 0 and head.high is None:
        return tail
    key = Seq, head, tail
    found = _interned.get(key)
    if found is None:
        count_term()
        found = _interned[key] = Seq(head, tail)
    return found


def alt(parts: Iterable[Term]) -> Term:
    """Return the texts of any part."""
    kept: dict[Term, None] = {}
    for part in parts:
        if isinstance(part, Alt):
            kept.update(dict.fromkeys(part.items))
        elif part is not NOTHING:
            kept[part] = None
    if ANYTHING in kept:
        return ANYTHING
    if len(kept) > 1:
        kept = _merged(kept)
    if len(kept) < 2:
        return next(iter(kept), NOTHING)
    items = tuple(sorted(kept, key=id))
    found = _interned.get((Alt, items))
    if found is None:
        count_term()
        found = _interned[(Alt, items)] = Alt(items)
    return found


def _merged(parts: dict[Term, None]) -> dict[Term, None]:
    """Join parts that differ in one place: sets of bytes, counts of the same item, and tails after the same head.

    Without this, the alternatives of an ambiguous text would multiply.
    """
    mask, tails, counts = 0, dict[Term, list[Term]](), dict[tuple[Term, Term], list[tuple[int, int | None]]]()
    for part in parts:
        head, tail = (part.head, part.tail) if isinstance(part, Seq) else (part, EMPTY)
        if isinstance(part, Bytes):
            mask |= part.mask
        elif isinstance(head, Repeat):
            counts.setdefault((head.item, tail), []).append((head.low, head.high))
        else:
            tails.setdefault(head, []).append(tail)
    kept: dict[Term, None] = {}
    if mask:
        kept[one_of(mask)] = None
    for (item, tail), ranges in counts.items():
        for low, high in _joined(ranges):
            kept[seq(repeat(item, low, high), tail)] = None
    for head, after in tails.items():
        kept[_pair(head, after[0] if len(after) == 1 else alt(after))] = None
    return kept


def _joined(ranges: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Join ranges of counts that overlap or touch."""
    if len(ranges) == 1:
        return ranges
    found: list[tuple[int, int | None]] = []
    for low, high in sorted(ranges, key=lambda one: one[0]):
        if found and (found[-1][1] is None or low <= found[-1][1] + 1):
            before = found[-1][1]
            found[-1] = found[-1][0], None if before is None or high is None else max(before, high)
        else:
            found.append((low, high))
    return found


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
    key = Repeat, item, low, high
    found = _interned.get(key)
    if found is None:
        count_term()
        found = _interned[key] = Repeat(item, low, high)
    return found


def optional(item: Term) -> Term:
    return repeat(item, 0, 1)


def both(parts: Iterable[Term]) -> Term:
    """Return the texts that belong to all parts, of which none contains a rule."""
    kept: dict[Term, None] = {}
    for part in parts:
        kept.update(dict.fromkeys(part.items) if isinstance(part, Both) else {part: None})
    kept.pop(ANYTHING, None)
    assert not any(part.has_rule for part in kept), "an intersection contains a rule"
    if NOTHING in kept:
        return NOTHING
    if EMPTY in kept:
        return EMPTY if all(part.nullable for part in kept) else NOTHING
    if len(kept) < 2:
        return next(iter(kept), ANYTHING)
    items = tuple(sorted(kept, key=id))
    found = _interned.get((Both, items))
    if found is None:
        count_term()
        found = _interned[(Both, items)] = Both(items)
    return found


def complement(item: Term) -> Term:
    """Return all other texts. The term contains no rule."""
    if item is NOTHING:
        return ANYTHING
    if item is ANYTHING:
        return NOTHING
    if isinstance(item, Not):
        return item.item
    assert not item.has_rule, "a complement contains a rule"
    found = _interned.get((Not, item))
    if found is None:
        count_term()
        found = _interned[(Not, item)] = Not(item)
    return found


def minus(item: Term, other: Term) -> Term:
    """Return the texts of a term that do not belong to another one."""
    return both([item, complement(other)])


ANYTHING = repeat(one_of(ALL_BYTES), 0, None)


# --- measures ---------------------------------------------------------------------------------------------------------


def settle(rules: Iterable[Rule]) -> None:
    """Find the shortest text of each rule, once all bodies are given."""
    rules = list(rules)
    for rule in rules:
        rule._least = FAR
    changed = True
    while changed:  # lengths only fall, and each round makes at least one of them final
        changed, known = False, dict[Term, int]()
        for rule in rules:
            if (found := _least_now(rule.body, known)) < rule.least:
                rule._least, changed = found, True


def _least_now(term: Term, known: dict[Term, int]) -> int:
    """Return the length of a shortest text with the present lengths of rules, which are not final."""
    if not term.has_rule or isinstance(term, Rule):
        return term.least
    if term not in known:
        total, rest = 0, term
        while isinstance(rest, Seq):
            total += _least_now(rest.head, known)
            rest = rest.tail
        if isinstance(rest, Alt):
            total += min(_least_now(item, known) for item in rest.items)
        elif isinstance(rest, Repeat):
            total += rest.low * _least_now(rest.item, known) if rest.low else 0
        else:
            total += _least_now(rest, known)
        known[term] = min(total, FAR)
    return known[term]


def _shortest(term: Term) -> int:
    """Return the length of a shortest text of an intersection or a complement, by A* over the terms after each byte."""
    ties = count()
    queue = [(_bound(term), next(ties), 0, term)]
    found: dict[Term, tuple[int, Term | None]] = {term: (0, None)}  # length of the text so far, and the term before
    work = 0
    while queue:
        _, _, length, at = heapq.heappop(queue)
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
                heapq.heappush(queue, (length + 1 + _bound(target), next(ties), length + 1, target))
        work += len(at.masks)
        if work > MAX_SEARCH:
            raise InputError("the constraint combines patterns that are too large to compare; simplify them")
    return FAR


def _bound(term: Term) -> int:
    """Return a lower bound on the length of the texts of a term."""
    if term._least is not None:
        return term._least
    match term:
        case Both():
            return max(_bound(item) for item in term.items)
        case Not():
            return 0 if term.nullable else 1
        case Alt():
            return min(_bound(item) for item in term.items)
        case Seq():
            total = 0
            while isinstance(term, Seq):
                total += _bound(term.head)
                term = term.tail
            return min(total + _bound(term), FAR)
        case Repeat():
            return min(term.low * _bound(term.item), FAR) if term.low else 0
    return term.least


def _refine(masks: Masks, others: Masks) -> Masks:
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

"""Terms of parts that may stand in any order."""

from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import alt, repeat, seq

MAX_SET = 10  # different parts in any order
MAX_STATES = 4_096  # sets of parts, times counts
MAX_COUNT = 64


def in_any_order(parts: list[Term], required: int, low: int, high: int | None, comma: Term, free: Term) -> Term:
    """Return `low` to `high` of some parts, each at most once, in any order, with commas between them.

    `required` is a set of parts that must be there, with bit i for part i. `free` may be repeated anywhere, and counts.
    """
    known: dict[tuple[int, int], Term] = {}
    # Beyond this count, one part more or less makes no difference.
    most = low if high is None else high
    # The loop of free parts has no count of its own: further ones change nothing.
    extra = repeat(seq(comma, free), 0, None)

    def after(used: int, count: int) -> Term:
        """Return what follows parts that have been used, `count` of them with free ones."""
        key = used, count
        if key not in known:
            ends = not required & ~used and count >= low
            next_count = min(count + 1, most) if high is None else count + 1
            found: list[Term] = [EMPTY] if ends else []
            if high is None or count < high:
                left = [i for i in range(len(parts)) if not used >> i & 1]
                found += [seq(comma, parts[i], after(used | 1 << i, next_count)) for i in left]
                if free is not NOTHING and next_count != count:
                    found.append(seq(comma, free, after(used, next_count)))
            counted = free is not NOTHING and (high is not None or count < most)
            known[key] = alt(found) if counted else seq(extra, alt(found))
        return known[key]

    start = 1 if high is not None else min(1, most)
    first: list[Term] = []
    if high is None or high > 0:
        first = [seq(part, after(1 << i, start)) for i, part in enumerate(parts)]
        first.append(seq(free, after(0, start)))
    return alt([*first, EMPTY if not required and low == 0 else NOTHING])


def fits_any_order(parts: int, low: int, high: int | None, *, counted: bool) -> bool:
    """Return whether so many parts can stand in any order. `counted`: free parts count too."""
    most = (low if high is None else high) if counted else 0
    return parts <= MAX_SET and most <= MAX_COUNT and (1 << parts) * (most + 1) <= MAX_STATES

"""Terms of parts in any order."""

from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import alt, repeat, seq

MAX_SET = 10  # different parts in any order
MAX_STATES = 4_096  # sets of parts, times counts
MAX_COUNT = 64


def in_any_order(parts: list[Term], required: int, low: int, high: int | None, comma: Term, free: Term) -> Term:
    """Return `low` to `high` of some parts, each at most once, in any order, with commas between them.

    `required` is a set of parts that must be there, with bit i for part i. `free` may be repeated anywhere, and counts.
    """
    rests: dict[tuple[int, int], Term] = {}  # by the parts used, and their number together with free ones
    # Beyond this count, one part more or less makes no difference.
    most = low if high is None else high
    # Once the count no longer matters, free parts repeat without a limit.
    extra = repeat(seq(comma, free), 0, None)

    def after(used: int, count: int) -> Term:
        """Return the text after the parts in `used`; `count` includes free parts."""
        key = used, count
        if key not in rests:
            ends = not required & ~used and count >= low
            next_count = min(count + 1, most) if high is None else count + 1
            alternatives: list[Term] = [EMPTY] if ends else []
            if high is None or count < high:
                left = [i for i in range(len(parts)) if not used >> i & 1]
                alternatives += [seq(comma, parts[i], after(used | 1 << i, next_count)) for i in left]
                if free is not NOTHING and next_count != count:
                    alternatives.append(seq(comma, free, after(used, next_count)))
            counted = free is not NOTHING and (high is not None or count < most)
            rests[key] = alt(alternatives) if counted else seq(extra, alt(alternatives))
        return rests[key]

    start = 1 if high is not None else min(1, most)
    first: list[Term] = []
    if high is None or high > 0:
        first = [seq(part, after(1 << i, start)) for i, part in enumerate(parts)]
        first.append(seq(free, after(0, start)))
    return alt([*first, EMPTY if not required and low == 0 else NOTHING])


def fits_any_order(parts: int, low: int, high: int | None, *, counted: bool) -> bool:
    """Return whether the term of a number of parts in any order is small enough. `counted`: free parts count too."""
    most = (low if high is None else high) if counted else 0
    return parts <= MAX_SET and most <= MAX_COUNT and (1 << parts) * (most + 1) <= MAX_STATES

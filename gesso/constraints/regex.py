"""Compile regular expressions to terms.

An expression without look-around is a term by itself. Otherwise its choices are expanded as far as they contain
anchors, word boundaries or look-around, so that each alternative is a row of plain parts with conditions between them:

    (?=X) rest   is   rest, and X anything         before (?<=X)   is   before, and anything X
    (?!X) rest   is   rest, but not X anything     before (?<!X)   is   before, but not anything X

`^` and `$` require that the text before, or the rest, is empty.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from gesso.constraints.charset import ANY, Ranges, char_class, chars
from gesso.constraints.limits import Limits
from gesso.constraints.regex_classes import ANY_CHAR, SHORTHANDS, Chars
from gesso.constraints.regex_parser import Anchor, Assertion, Boundary, Leaf, Look, Node, RegexParser
from gesso.constraints.syntax import Alternatives, Repetition, Sequence
from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import ANYTHING, alt, both, minus, optional, repeat, seq
from gesso.errors import InputError

MAX_ITEMS = 5000  # of all alternatives
MAX_CONDITIONS = 50  # of one alternative; each of them costs stack when a text is read
MAX_UNROLLED = 4  # repetitions of a part whose look-around reaches the next one
MAX_SPLIT = 16  # rows from which no further part is taken apart in `_split`
MAX_ALTERNATIVES = 1000  # of an expression, once choices that contain look-around are expanded

WriteChar = Callable[[Ranges], Term]  # returns the term that writes one character of a set

_ANY_TEXT: Node = Repetition(item=ANY_CHAR, low=0, high=None)
_SOME_TEXT: Node = Repetition(item=ANY_CHAR, low=1, high=None)
_WORD = SHORTHANDS["w"]
_BOUNDARIES: dict[bool, list[tuple[Node, ...]]] = {
    negated: [
        (Look(_WORD, behind=True, negated=before), Look(_WORD, behind=False, negated=before == negated))
        for before in (False, True)
    ]
    for negated in (False, True)
}


def regex_term(
    expression: str,
    write_char: WriteChar = char_class,
    *,
    flags: str = "",
    limits: Limits = Limits(),  # noqa: B008 (immutable)
) -> Term:
    """Return the texts that an expression matches as a whole. `flags` are among i, s and x."""
    parser = RegexParser(expression, "regular expression", limits, flags)
    tree = parser.parse()
    return _RegexCompiler(parser, write_char, write_char(ANY)).whole(tree)


def pattern_term(
    pattern: str,
    write_char: WriteChar,
    any_char: Term,
    *,
    every: bool = True,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
) -> Term:
    """Return the texts that contain a match of a pattern. `any_char` is one character of any text.

    Not `every`: for any validator instead of every one, to exclude these texts. See `regex_classes`.
    """
    parser = RegexParser(pattern, "pattern", limits)
    tree = parser.parse()
    compiler = _RegexCompiler(parser, write_char, any_char)
    items = tree.items if isinstance(tree, Sequence) else (tree,)
    try:
        return compiler.whole(Sequence((_ANY_TEXT, *items, _ANY_TEXT)), every)
    except InputError:  # perhaps because of ^ in a look-ahead, as in (?!^a$)b: decide separately where a match begins
        later: Node = Sequence((_SOME_TEXT, *items, _ANY_TEXT))
        return alt([compiler.whole(Sequence((*items, _ANY_TEXT)), every), compiler.whole(later, every)])


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an alternative, how many characters it has at least, and the conditions on the text after it."""

    content: "Term | Node"  # a node is a repetition with look-around inside
    least: int
    aheads: list[Assertion]


class _Place(Enum):
    """Where in the text a tree begins."""

    START = 0
    LATER = 1  # after at least one character
    UNKNOWN = 2


class _RegexCompiler:
    """Compiles the tree of one expression to a term."""

    def __init__(self, parser: RegexParser, write_char: WriteChar, any_char: Term) -> None:
        self.parser = parser
        self.write_char = write_char
        self.any_char = any_char
        self.any_text = repeat(any_char, 0, None)
        # Alternatives by the id of their node. The node is kept too, so that no other one gets its id.
        self.expanded: dict[int, tuple[Node, list[tuple[Node, ...]]]] = {}

    def error(self, problem: str) -> InputError:
        return InputError(f"the {self.parser.name} {self.parser.text[:80]!r} is not supported: {problem}")

    def whole(self, tree: Node, every: bool = True) -> Term:
        if not self.parser.has_assertions:
            return self._plain(tree, every)
        return self._term(tree, every, _Place.START, rest=EMPTY)

    def _plain(self, node: Node, every: bool) -> Term:
        """Compile a tree without assertions. `every` chooses the sets of characters; see `regex_classes`."""
        match node:
            case Chars():
                if node is ANY_CHAR:
                    return self.any_char
                return self.write_char(node.every if every else node.any)
            case Alternatives(items):
                return alt(self._plain(item, every) for item in items)
            case Sequence(items):
                return seq(*(self._plain(item, every) for item in items))
            case Repetition(item, low, high):
                return repeat(self._plain(item, every), low, high)
        raise AssertionError("an assertion is not expanded")

    def _term(self, node: Node, every: bool, place: _Place, rest: Term | None) -> Term:
        """Compile a tree, together with the rest of the text; None if that is unknown."""
        if not _asserts(node):
            plain = self._plain(node, every)
            return plain if rest is None else seq(plain, rest)
        rows = (split for row in self._expanded(node) for split in _split(row))
        return alt(self._alternative(row, every, place, rest) for row in rows)

    # --- choices ------------------------------------------------------------------------------------------------------

    def _expanded(self, node: Node) -> list[tuple[Node, ...]]:
        """Return alternatives, each a row of plain parts, assertions, and repetitions that contain some."""
        if id(node) not in self.expanded:
            self.expanded[id(node)] = node, self._expand(node)
        return self.expanded[id(node)][1]

    def _expand(self, node: Node) -> list[tuple[Node, ...]]:
        if not _asserts(node):
            return [(node,)]
        match node:
            case Boundary(negated):
                return list(_BOUNDARIES[negated])
            case Alternatives(items):
                return self._expanded_alternatives(items)
            case Sequence(items):
                return self._expanded_sequence(items)
            case Repetition(item, 0, 1):
                return [(), *self._expanded(item)]
            case Repetition(item, 1, 1):
                return self._expanded(item)
            case Repetition():
                return self._expanded_repetition(node)
        return [(node,)]

    def _expanded_alternatives(self, items: tuple[Node, ...]) -> list[tuple[Node, ...]]:
        """Join the alternatives without assertions to one, and expand the others."""
        rows: list[tuple[Node, ...]] = []
        plain = [item for item in items if not _asserts(item)]
        if plain:
            rows.append((Alternatives(tuple(plain)),))
        for item in items:
            if _asserts(item):
                rows += self._expanded(item)
                self._check_size(len(rows), sum(map(len, rows)))
        return rows

    def _expanded_sequence(self, items: tuple[Node, ...]) -> list[tuple[Node, ...]]:
        """Combine the alternatives of all items. A run of items without assertions is one part."""
        rows: list[tuple[Node, ...]] = [()]
        for plain_run, run in groupby(items, lambda item: not _asserts(item)):
            row_items = list(run)
            if plain_run and len(row_items) > 1:
                row_items = [Sequence(tuple(row_items))]
            for item in row_items:
                options = self._expanded(item)
                size = sum(map(len, rows)) * len(options) + sum(map(len, options)) * len(rows)
                self._check_size(len(rows) * len(options), size)
                rows = [(*row, *option) for row in rows for option in options]
        return rows

    def _check_size(self, alternatives: int, items: int) -> None:
        if alternatives > MAX_ALTERNATIVES or items > MAX_ITEMS:
            raise self.error(
                f"anchors and look-around lead to more than {MAX_ALTERNATIVES:,} alternatives or {MAX_ITEMS:,} parts; "
                "use fewer of them"
            )

    def _expanded_repetition(self, node: Repetition[Leaf]) -> list[tuple[Node, ...]]:
        """Take the anchors out of a repetition: only its first item can be at the start, only its last at the end."""
        options = self._expanded(node.item)
        kinds: dict[tuple[bool, bool], list[tuple[Node, ...]]] = {}
        for option in options:
            anchored = Anchor(end=False) in option, Anchor(end=True) in option
            kinds.setdefault(anchored, []).append(option)
        if kinds.keys() <= {(False, False)}:
            if node.high is None or node.high > MAX_UNROLLED or self._is_local(node.item):
                return [(node,)]
            once_or_not: Node = Repetition(item=node.item, low=0, high=1)
            copies: list[Node] = [node.item] * node.low + [once_or_not] * (node.high - node.low)
            return self._expanded(Sequence(tuple(copies)))
        if any(_length(Sequence(option))[0] == 0 for option in options):
            raise self.error("a repetition of ^ or $ alone has no use; take it out of the repetition")
        between: list[Node] = [Sequence(option) for option in kinds.get((False, False), ())]
        middle: Node = Alternatives(tuple(between))
        rows: list[tuple[Node, ...]] = []
        for first in (None, *kinds.get((True, False), ())):
            for last in (None, *kinds.get((False, True), ())):
                used = (first is not None) + (last is not None)
                low = max(node.low - used, 0)
                high = None if node.high is None else node.high - used
                if high is None or high >= low:
                    repetition: Node = Repetition(item=middle, low=low, high=high)
                    rows.append((*(first or ()), repetition, *(last or ())))
        if node.low <= 1:
            rows += kinds.get((True, True), ())
        if node.low == 0:
            rows.append(())
        return rows

    def _is_local(self, node: Node) -> bool:
        """Return whether the conditions inside a tree depend only on the text of the tree itself."""
        try:
            self._term(node, True, _Place.UNKNOWN, rest=None)
        except InputError:
            return False
        return True

    # --- one alternative ----------------------------------------------------------------------------------------------

    def _alternative(self, items: tuple[Node, ...], every: bool, place: _Place, rest: Term | None) -> Term:
        if sum(isinstance(item, Look) for item in items) > MAX_CONDITIONS:
            raise self.error(f"it has more than {MAX_CONDITIONS} look-arounds or word boundaries in a row; use fewer")
        done: list[_Part] = []
        text: Term = EMPTY  # the part that is being read
        least = 0  # characters of `text`
        is_all_before = place is _Place.START  # whether nothing precedes `text`
        later = place is _Place.LATER  # whether there is a character before `text`
        for conditions, item in _rows(items):
            for condition in conditions:
                if _looks_behind(condition):
                    if condition == Anchor(end=False) and (later or (least and not is_all_before)):
                        return NOTHING
                    text = self._ended(text, condition, every, None if is_all_before else least)
            aheads = [condition for condition in conditions if not _looks_behind(condition)]
            if aheads:
                done.append(_Part(content=text, least=least, aheads=aheads))
                is_all_before = is_all_before and text is EMPTY
                later = later or least > 0
                text, least = EMPTY, 0
            if item is None or text is NOTHING:
                break
            item_least = _length(item)[0]
            if _asserts(item):
                assert isinstance(item, Repetition)
                done.append(_Part(content=text, least=least, aheads=[]))
                done.append(_Part(content=item, least=item_least, aheads=[]))
                later = later or least > 0 or item_least > 0
                text, least = EMPTY, 0
                is_all_before = False
            else:
                text = seq(text, self._plain(item, every))
                least += item_least
        if text is NOTHING:
            return NOTHING
        after = seq(text, EMPTY if rest is None else rest)
        return self._backwards(done, after, least, every, place, reaches_end=rest is not None)

    def _backwards(
        self, done: list[_Part], rest: Term, least: int, every: bool, place: _Place, *, reaches_end: bool
    ) -> Term:
        """Put the parts before the rest of the text, with the conditions on what follows each of them.

        `reaches_end`: the rest goes to the end of the text.
        """
        places = []  # after each part
        for part in done:
            if part.least:
                place = _Place.LATER
            elif part.content is not EMPTY and place is _Place.START:
                place = _Place.UNKNOWN
            places.append(place)
        for part, after in zip(reversed(done), reversed(places), strict=True):
            for condition in part.aheads:
                rest = self._begun(rest, condition, every, after, None if reaches_end else least)
            if rest is NOTHING:
                return NOTHING
            if isinstance(part.content, Term):
                rest = seq(part.content, rest)
            else:
                assert isinstance(part.content, Repetition)
                rest = self._repeated(part.content, rest, every, reaches_end=reaches_end)
            least += part.least
        return rest

    def _ended(self, before: Term, condition: Assertion, every: bool, least: int | None) -> Term:
        """Restrict texts by a condition at their end. They have `least` or more characters; None: nothing precedes."""
        if isinstance(condition, Anchor):
            if least is not None:
                raise self.error("^ inside a repetition or after look-around cannot be decided; put it first")
            return EMPTY if before.nullable else NOTHING
        assert isinstance(condition, Look)
        self._check_reach(condition, least)
        tree: Node = Sequence((_ANY_TEXT, condition.tree))
        looked_at = self._term(tree, every != condition.negated, _Place.START, rest=None)
        if condition.negated:
            return minus(before, looked_at)
        return looked_at if before is self.any_text else both([before, looked_at])

    def _begun(self, rest: Term, condition: Assertion, every: bool, place: _Place, least: int | None) -> Term:
        """Restrict texts by a condition at their start. They have `least` or more characters; None: nothing follows."""
        if isinstance(condition, Anchor):
            if least is not None:
                raise self.error("$ inside a repetition or look-behind cannot be decided; put it last")
            if every:
                return EMPTY if rest.nullable else NOTHING
            return both([rest, optional(self.write_char(chars("\n")))])  # Python's $ allows a line break after it
        assert isinstance(condition, Look)
        self._check_reach(condition, least)
        looked_at = self._term(condition.tree, every != condition.negated, place, rest=ANYTHING)
        return minus(rest, looked_at) if condition.negated else both([rest, looked_at])

    def _check_reach(self, condition: Look, least: int | None) -> None:
        """Reject a condition on more than `least` characters."""
        if least is None:
            return
        reach = None if _asserts(condition.tree) else _length(condition.tree)[1]
        if reach is None or reach > least:
            raise self.error(
                "look-around or \\b inside a repetition or other look-around reaches text outside of it; "
                "put it outside, or use a class of characters"
            )

    def _repeated(self, node: Repetition[Leaf], rest: Term, every: bool, *, reaches_end: bool) -> Term:
        """Compile a repetition with look-around inside."""
        try:
            return seq(repeat(self._term(node.item, every, _Place.UNKNOWN, rest=None), node.low, node.high), rest)
        except InputError:
            rows = self._expanded(node.item)
            if not (reaches_end and rest is EMPTY and len(rows) == 1):
                raise
            *looks, char = rows[0]
            if not looks or _asserts(char) or _length(char) != (1, 1):
                raise
            # ((?!X).)*$ is any text in which X begins nowhere.
            texts = repeat(self._plain(char, every), node.low, node.high)
            for look in looks:
                if not isinstance(look, Look) or look.behind or not look.negated or not _length(look.tree)[0]:
                    raise
                inside = self._term(Sequence((_ANY_TEXT, look.tree)), not every, _Place.UNKNOWN, rest=ANYTHING)
                texts = minus(texts, inside)
            return texts


def _rows(items: tuple[Node, ...]) -> Iterator[tuple[list[Assertion], Node | None]]:
    """Yield each plain part with the conditions before it, and finally the conditions at the end."""
    conditions: list[Assertion] = []
    for item in items:
        if isinstance(item, Anchor | Boundary | Look):
            conditions.append(item)
        else:
            yield conditions, item
            conditions = []
    yield conditions, None


def _split(row: tuple[Node, ...]) -> list[tuple[Node, ...]]:
    r"""Take a part that may be empty, such as `\w*` in `\b\w*\b`, once as empty and once as not empty.

    The conditions on both sides of it then either meet in one place, or have a character between them.
    """
    rows: list[tuple[Node, ...]] = [()]
    for i, item in enumerate(row):
        options: list[tuple[Node, ...]] = [(item,)]
        around = row[i - 1 : i] + row[i + 1 : i + 2]
        between_conditions = len(around) == 2 and all(isinstance(neighbour, Anchor | Look) for neighbour in around)
        if between_conditions and len(rows) < MAX_SPLIT:
            match item:
                case Repetition(inner, 0, high) if _length(inner)[0] and not _asserts(inner):
                    options = [(), (Repetition(item=inner, low=1, high=high),)]
        rows = [(*before, *option) for before in rows for option in options]
    return rows


def _looks_behind(condition: Assertion) -> bool:
    return condition.behind if isinstance(condition, Look) else condition == Anchor(end=False)


def _asserts(node: Node) -> bool:
    """Return whether a tree contains anchors, word boundaries or look-around."""
    match node:
        case Sequence(items) | Alternatives(items):
            return any(map(_asserts, items))
        case Repetition(item):
            return _asserts(item)
    return not isinstance(node, Chars)


def _length(node: Node) -> tuple[int, int | None]:
    """Return the lowest and the highest number of characters; None for no upper limit."""
    match node:
        case Chars():
            return 1, 1
        case Repetition(item, low, high):
            least, most = _length(item)
            if most == 0:
                return least * low, 0
            return least * low, None if most is None or high is None else most * high
        case Alternatives(items) | Sequence(items):
            lengths = [_length(item) for item in items]
            leasts = [least for least, _ in lengths]
            mosts = [most for _, most in lengths if most is not None]
            unlimited = len(mosts) < len(lengths)
            if isinstance(node, Sequence):
                return sum(leasts), None if unlimited else sum(mosts)
            return min(leasts, default=0), None if unlimited else max(mosts, default=0)
    return 0, 0

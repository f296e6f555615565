"""The operations that chat templates may use, each with its cost. Any other filter, test or method is unavailable.

A cost is a function with the parameters of its operation. It returns an upper bound of the characters that the
operation reads and creates, in units of a C loop over a string, or raises Runaway. It runs before the operation, so
that nothing large is started. An operation that takes more than a fraction of a second at MAX_CHARS needs a cost that
grows with its time: Python's `rfind` compares up to len(text) * len(part) characters, for example.

Unavailable on purpose: `striptags` (quadratic), `urlize` and `wordwrap` (slow regular expressions), `pprint`, `lipsum`,
`xmlattr`, `filesizeformat`, `translate`, `format_map`, and all that creates bytes, such as `encode` (its codec `idna`
is quadratic).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from jinja2.filters import _GroupTuple
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.utils import Cycler
from markupsafe import Markup

from gesso.chat.template_budget import MAX_BITS, NODE, Runaway, check_size, size

Cost = Callable[..., int]

MAX_DIGITS = 5_000  # of a number in a text; Python itself reads no more than 4,300
MAX_PRECISION = 1_000  # of round, in digits before or after the point
MAX_ATTRIBUTE = 1_000  # characters of the attribute that a filter reads of each element, such as "function.name"
MAX_PARTS = 8  # of such an attribute
LONGEST_REPR = 10  # characters of one character of a text within a list or dictionary that is printed
LONGEST_CASE = 3  # characters of one character in another case
ESCAPED_LENGTHS = {"&": 5, "<": 4, ">": 4, "'": 5, '"': 5}  # in HTML
LONGEST_ESCAPE, LONGEST_ASCII_ESCAPE = 6, 12  # characters in JSON of one control character, and of one emoji
MAX_TIME_FORMAT = 1_000  # characters of the format of strftime_now
FORMAT_WIDTH = 10_000  # that WIDE_FORMAT lets pass
WIDE_FORMAT = re.compile(r"\d{5}|\{[^{}]*\{|%[^a-zA-Z%]*\*")  # a width of five digits, or one given as an argument
WHITESPACE = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


# --- costs of common shapes -------------------------------------------------------------------------------------------


def constant(*_: Any, **__: Any) -> int:
    """Return the cost of an operation that takes no longer for large values, or that runs when elements are taken."""
    return 0


def linear(*given: Any, **options: Any) -> int:
    return check_size(sum(map(size, given)) + sum(map(size, options.values())))


def each_character(text: Any, *_: Any, **__: Any) -> int:
    """Return the cost of an operation that creates an object for each character, or each word, of a text."""
    return check_size(NODE * size(text))


def printed(value: Any, *_: Any, **__: Any) -> int:
    """Return the most characters of a value as a text."""
    within = isinstance(value, list | tuple | set | frozenset | dict)
    return check_size(size(value) * (LONGEST_REPR if within else 1))


def in_other_case(value: Any, *_: Any, **__: Any) -> int:
    """Return the cost of writing a text in upper or lower case, which has more characters in some scripts."""
    grows = not isinstance(value, str) or not value.isascii()
    return check_size(printed(value) * (LONGEST_CASE if grows else 1))


def escaped(value: Any) -> int:
    """Return the cost of escaping a text for HTML."""
    if not isinstance(value, str):
        return check_size(printed(value) * max(ESCAPED_LENGTHS.values()))
    return check_size(len(value) + sum(value.count(each) * (length - 1) for each, length in ESCAPED_LENGTHS.items()))


def elements(value: Any, *given: Any, **options: Any) -> int:
    """Return the cost of an operation on all elements of a list, or all characters of a text."""
    for attribute in (*given, *options.values()):
        _check_attribute(attribute)
    return check_size(NODE * len(value)) if hasattr(value, "__len__") else 0


def compared(text: Any, part: Any = "", *_: Any) -> int:
    """Return the cost of an operation that can compare each character of a text with all of another."""
    return check_size(size(text) * max(1, size(part)))


def prefix(_: Any, start: Any, *__: Any) -> int:
    """Return the cost of comparing the beginning or the end of a text."""
    return size(start)


def padded(text: Any, width: Any = 80, *_: Any) -> int:
    return check_size(max(size(text), width if isinstance(width, int) else 0))


# --- costs of single operations ---------------------------------------------------------------------------------------


def attributes(value: Any, *given: Any, attribute: Any = None, **__: Any) -> int:
    """Return the cost of `map`, `select` and their like, which can look at all elements before they return one."""
    return elements(value, attribute, *given[:1])


def _check_attribute(attribute: Any) -> None:
    if not isinstance(attribute, str):
        return
    if len(attribute) > MAX_ATTRIBUTE or attribute.count(".") + attribute.count(",") >= MAX_PARTS:
        raise Runaway(f"an attribute has more than {MAX_ATTRIBUTE:,} characters or {MAX_PARTS} parts")


def batch(value: Any, linecount: Any, fill_with: Any = None) -> int:
    length = abs(linecount) if isinstance(linecount, int) else 0
    return check_size(elements(value) + length * (NODE + size(fill_with)))


def expand_tabs(text: str, tabsize: Any = 8) -> int:
    return check_size(len(text) + text.count("\t") * (abs(tabsize) if isinstance(tabsize, int) else 0))


def format_text(form: Any, *given: Any, **options: Any) -> int:
    """Return the cost of `str.format`, of the filter `format` and of the operator `%`."""
    form = str(form)
    if WIDE_FORMAT.search(form):
        raise Runaway("it formats with a width of more than four digits")
    values = linear(*given, **options)
    return check_size(len(form) + (form.count("{") + form.count("%")) * (FORMAT_WIDTH + values))


def indent(text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    margin = abs(width) if isinstance(width, int) else size(width)
    text = str(text)
    return check_size(len(text) + _lines(text) * (NODE + margin))


def join(value: Any, d: Any = "", attribute: Any = None) -> int:
    """Return the cost of the filter `join`."""
    return join_text(d, value) + elements((), attribute)


def join_text(separator: Any, parts: Any) -> int:
    """Return the cost of `str.join`."""
    return check_size(elements(parts) + size(separator) * (len(parts) if hasattr(parts, "__len__") else 1))


def number(value: Any, *_: Any, **__: Any) -> int:
    """Return the cost of reading a number."""
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise Runaway(f"it reads a number of more than {MAX_DIGITS:,} digits")
    return 0


def numbers_only(value: Any, *given: Any) -> int:
    """Return the cost of a test that uses `%`, with which a text would be formatted."""
    if not all(isinstance(operand, int | float) for operand in (value, *given)):
        raise Runaway("odd, even and divisibleby are available for numbers only")
    return 0


def replace(text: Any, old: Any, new: Any, count: Any = None) -> int:
    text = str(text)
    return check_size(len(text) + text.count(str(old)) * len(str(new)))


def round_(value: Any, precision: Any = 0, method: Any = "common") -> int:
    if not isinstance(value, int | float) or not isinstance(precision, int):
        raise Runaway("it rounds something that is not a number")
    if abs(precision) > MAX_PRECISION:
        raise Runaway(f"it rounds to more than {MAX_PRECISION:,} digits")
    return 0


def split(text: str, sep: Any = None, maxsplit: Any = -1) -> int:
    count = text.count(sep) if isinstance(sep, str) and sep else _occurrences(text, WHITESPACE)
    if isinstance(maxsplit, int) and maxsplit >= 0:
        count = min(count, maxsplit)
    return check_size(len(text) + NODE * (count + 1))


def split_from_right(text: str, sep: Any = None, maxsplit: Any = -1) -> int:
    return max(split(text, sep, maxsplit), compared(text, sep))


def split_lines(text: str, keepends: Any = False) -> int:
    return check_size(len(text) + NODE * _lines(text))


def sum_(iterable: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise Runaway("it adds up lists; sum must start from a number")
    return elements(iterable, attribute)


def to_json(
    value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> int:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise Runaway("tojson indents by 0 to 16 spaces")
    if separators is not None and size(separators) > 2 * NODE + 16:
        raise Runaway("the separators of tojson are too long")
    total = size(value)
    escaped = total * (LONGEST_ASCII_ESCAPE if ensure_ascii else LONGEST_ESCAPE)
    return check_size(escaped + (total // NODE + 1) * _depth(value) * (indent or 0))


def _depth(value: Any) -> int:
    """Return how many levels of lists and dictionaries a value has."""
    level, depth = [value], 0
    while level:
        containers = [one for one in level if isinstance(one, list | tuple | dict)]
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    return depth


def check_time_format(form: str) -> None:
    if len(form) > MAX_TIME_FORMAT:
        raise Runaway(f"it formats the time with more than {MAX_TIME_FORMAT:,} characters")


def _lines(text: str) -> int:
    return _occurrences(text, LINE_ENDS) + 1


def _occurrences(text: str, characters: str) -> int:
    return sum(map(text.count, characters))


# --- operators --------------------------------------------------------------------------------------------------------


def _check_bits(bits: int) -> int:
    if bits > MAX_BITS:
        raise Runaway(f"it creates a number of more than {MAX_BITS:,} bits")
    return 0


def added(left: Any, right: Any) -> int:
    if isinstance(left, Markup) or isinstance(right, Markup):  # the other one is escaped
        return check_size(escaped(left) + escaped(right))
    return linear(left, right)


def power(left: Any, right: Any) -> int:
    if not isinstance(left, int) or not isinstance(right, int):
        return 0
    return _check_bits(left.bit_length() * abs(right))


def product(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return _check_bits(left.bit_length() + right.bit_length())
    value, times = (right, left) if isinstance(left, int) else (left, right)
    return check_size(size(value) * max(0, times)) if isinstance(times, int) else 0


def remainder(left: Any, right: Any) -> int:
    return format_text(left, right) if isinstance(left, str) else 0


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(*groups: tuple[Cost, str]) -> dict[str, Cost]:
    return {name: cost for cost, names in groups for name in names.split()}


OPERATORS = {"+": added, "-": constant, "*": product, "/": constant, "//": constant, "**": power, "%": remainder}
FILTERS = _table(
    (constant, "abs attr count d default first last length items random safe"),
    (linear, "dictsort truncate"),
    (printed, "string"), (escaped, "e escape forceescape"), (in_other_case, "capitalize lower upper"),
    (elements, "groupby list max min reverse slice sort unique"),
    (attributes, "map reject rejectattr select selectattr"),
    (each_character, "title urlencode wordcount"),
    (number, "float int"), (compared, "trim"), (padded, "center"), (batch, "batch"), (format_text, "format"),
    (indent, "indent"), (join, "join"), (replace, "replace"), (round_, "round"), (sum_, "sum"), (to_json, "tojson"),
)  # fmt: skip
# These take all elements from an iterator before they return. It becomes a list first, whose cost is known.
CONSUMING = frozenset(("groupby", "join", "list", "max", "min", "reverse", "slice", "sort", "sum", "unique"))
TESTS = _table(
    (constant, "!= < <= == > >= boolean callable defined eq equalto escaped false filter float ge greaterthan gt in "
               "integer iterable le lessthan lt mapping ne none number sameas sequence string test true undefined"),
    (linear, "lower upper"),
    (numbers_only, "divisibleby even odd"),
)  # fmt: skip
GLOBALS = frozenset(("cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"))

_TEXT = _table(
    (linear, "count find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
             "isspace istitle isupper partition"),
    (in_other_case, "capitalize casefold lower swapcase title upper"),
    (prefix, "endswith removeprefix removesuffix startswith"),
    (compared, "lstrip rfind rindex rpartition rstrip strip"),
    (padded, "center ljust rjust zfill"),
    (split, "split"), (split_from_right, "rsplit"), (split_lines, "splitlines"), (expand_tabs, "expandtabs"),
    (replace, "replace"), (join_text, "join"), (format_text, "format"),
)  # fmt: skip
METHODS: dict[type, dict[str, Cost]] = {
    str: _TEXT,
    Markup: _TEXT,
    int: _table((constant, "as_integer_ratio bit_count bit_length conjugate is_integer")),
    float: _table((constant, "as_integer_ratio conjugate hex is_integer")),
    list: _table((constant, "copy count index")),
    tuple: _table((constant, "count index")),
    dict: _table((constant, "copy get items keys values")),
    # of jinja2 itself
    _GroupTuple: _table((constant, "count grouper index list")),
    LoopContext: _table((constant, "changed cycle depth depth0 first index index0 last length nextitem previtem "
                                   "revindex revindex0")),
    Cycler: _table((constant, "current next reset")),
    Macro: _table((constant, "arguments caller catch_kwargs catch_varargs name")),
    BlockReference: _table((constant, "super")),
}  # fmt: skip


def methods_of(value: Any) -> dict[str, Cost]:
    """Return the available methods and properties of a value."""
    classes: Sequence[type] = type(value).__mro__
    return next((METHODS[each] for each in classes if each in METHODS), {})

"""Classes of characters in regular expressions: shorthands, Unicode properties, POSIX classes, and case.

Dialects disagree on some classes: `\\w` contains é in Python, but not in ECMAScript. So a class is kept as two sets:
characters that every dialect accepts, and characters that any dialect accepts. Texts are made from the first set,
complements from the second.
"""

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, lru_cache

from gesso.constraints.charset import ANY, LAST, Ranges, chars, complement, minus, union


@dataclass(frozen=True, slots=True)
class Chars:
    every: Ranges  # in the class in every dialect
    any: Ranges  # in the class in at least one dialect

    def negated(self) -> "Chars":
        return Chars(complement(self.any), complement(self.every))

    def folded(self) -> "Chars":
        """Return the characters that differ from those of the class at most in case."""
        return Chars(_with_variants(self.every, "every"), _with_variants(self.any, "any"))


def exactly(ranges: Ranges) -> Chars:
    """Return a class on which all dialects agree."""
    return Chars(ranges, ranges)


@lru_cache(maxsize=1024)
def one(char: str) -> Chars:
    return exactly(chars(char))


@lru_cache(maxsize=1024)
def joined(*parts: Chars) -> Chars:
    return Chars(union(*(part.every for part in parts)), union(*(part.any for part in parts)))


_DIGIT: Ranges = ((0x30, 0x39),)
_UPPER: Ranges = ((0x41, 0x5A),)
_LOWER: Ranges = ((0x61, 0x7A),)
_WORD = union(_DIGIT, _UPPER, _LOWER, chars("_"))
_SPACE = chars("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
_NO_WORD = union(minus(((0, 0x7F),), _WORD), ((0x2000, 0x200B), (0x200E, 0x203E), (0x2041, 0x2053), (0x2055, 0x206F)))
SHORTHANDS = {
    "d": Chars(_DIGIT, union(_DIGIT, ((0x660, LAST),))),  # U+0660 is the first decimal digit beyond ASCII
    "w": Chars(_WORD, complement(_NO_WORD)),
    "s": Chars(_SPACE, union(_SPACE, ((0x1C, 0x1F),), chars("\x85\ufeff"))),
}
SHORTHANDS |= {name.upper(): shorthand.negated() for name, shorthand in SHORTHANDS.items()}
DOT = Chars(minus(ANY, chars("\n\r\u2028\u2029")), minus(ANY, chars("\n")))
ANY_CHAR = exactly(ANY)

POSIX = {
    "alpha": union(_UPPER, _LOWER),
    "digit": _DIGIT,
    "alnum": union(_DIGIT, _UPPER, _LOWER),
    "upper": _UPPER,
    "lower": _LOWER,
    "space": chars("\t\n\v\f\r "),
    "blank": chars("\t "),
    "cntrl": union(((0, 0x1F),), chars("\x7f")),
    "graph": ((0x21, 0x7E),),
    "print": ((0x20, 0x7E),),
    "punct": minus(((0x21, 0x7E),), union(_DIGIT, _UPPER, _LOWER)),
    "xdigit": union(_DIGIT, ((0x41, 0x46), (0x61, 0x66))),
    "word": _WORD,
    "ascii": ((0, 0x7F),),
}

# The general categories of Unicode, with their long names in lower case and without `_`.
_CATEGORIES = {
    "letter": "L", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm",
    "otherletter": "Lo", "mark": "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me",
    "number": "N", "decimalnumber": "Nd", "letternumber": "Nl", "othernumber": "No", "punctuation": "P",
    "connectorpunctuation": "Pc", "dashpunctuation": "Pd", "openpunctuation": "Ps", "closepunctuation": "Pe",
    "initialpunctuation": "Pi", "finalpunctuation": "Pf", "otherpunctuation": "Po", "symbol": "S", "mathsymbol": "Sm",
    "currencysymbol": "Sc", "modifiersymbol": "Sk", "othersymbol": "So", "separator": "Z", "spaceseparator": "Zs",
    "lineseparator": "Zl", "paragraphseparator": "Zp", "other": "C", "control": "Cc", "format": "Cf",
    "privateuse": "Co",
}  # fmt: skip
_CATEGORIES |= {short.lower(): short for short in _CATEGORIES.values()}

# The letters of a script have names that begin like this.
_SCRIPTS = {
    "latin": "LATIN ", "greek": "GREEK ", "cyrillic": "CYRILLIC ", "armenian": "ARMENIAN ", "hebrew": "HEBREW LETTER ",
    "arabic": "ARABIC LETTER ", "devanagari": "DEVANAGARI LETTER ", "bengali": "BENGALI LETTER ",
    "tamil": "TAMIL LETTER ", "thai": "THAI CHARACTER ", "georgian": "GEORGIAN LETTER ", "hangul": "HANGUL ",
    "hiragana": "HIRAGANA LETTER ", "katakana": "KATAKANA LETTER ", "han": "CJK UNIFIED IDEOGRAPH-",
    "ethiopic": "ETHIOPIC SYLLABLE ", "khmer": "KHMER LETTER ",
}  # fmt: skip


@cache
def unicode_property(name: str) -> Chars | None:
    r"""Return the characters of `\p{name}`; None if the property is unknown."""
    plain = name.lower().replace("_", "").replace(" ", "")
    key, _, value = plain.partition("=")
    if key in ("script", "sc", "scriptextensions", "scx"):
        return _script(value)
    if key in ("generalcategory", "gc"):
        plain = value
    elif "=" in plain:
        return None
    if plain == "any":
        return ANY_CHAR
    if plain == "ascii":
        return exactly(((0, 0x7F),))
    if plain in ("alphabetic", "alpha"):
        return _categories("L", "Nl", maybe=("M", "So"))
    if plain in ("uppercase", "lowercase"):
        return _categories("Lu" if plain == "uppercase" else "Ll", maybe=("Lm", "Lo", "Mn", "Nl", "So"))
    if plain in ("lc", "casedletter"):
        return _categories("Lu", "Ll", "Lt")
    if plain in _CATEGORIES:
        return _categories(_CATEGORIES[plain])
    if plain in POSIX:  # as in Java
        return Chars(POSIX[plain], union(POSIX[plain], ((0x80, LAST),)))
    return _script(plain)


def _categories(*names: str, maybe: tuple[str, ...] = ()) -> Chars:
    """Return the characters of categories, and those that may be in them in another version of Unicode."""
    table = _category_table()
    every = union(*(ranges for key, ranges in table.items() if key.startswith(names)))
    return Chars(every, union(every, *(ranges for key, ranges in table.items() if key.startswith((*maybe, "Cn")))))


@cache
def _category_table() -> dict[str, Ranges]:
    ranges_of: dict[str, list[tuple[int, int]]] = {}
    low, last = 0, unicodedata.category("\0")
    for code in range(1, LAST + 2):
        category = unicodedata.category(chr(code)) if code <= LAST else ""
        if category != last:
            ranges_of.setdefault(last, []).append((low, code - 1))
            low, last = code, category
    del ranges_of["Cs"]  # surrogates are no characters in UTF-8
    return {name: tuple(ranges) for name, ranges in ranges_of.items()}


def _script(name: str) -> Chars | None:
    """Return the letters of a script. Python has no table of scripts, so `any` has all characters beyond ASCII."""
    start = _SCRIPTS.get(name)
    if start is None:
        return None
    letters = _categories("Lu", "Ll", "Lt", "Lo").every
    codes = (code for low, high in letters for code in range(low, high + 1))
    every = union((code, code) for code in codes if unicodedata.name(chr(code), "").startswith(start))
    return Chars(every, union(every, ((0x80, LAST),)))


# Blocks of Unicode with all letters that have two cases.
_CASED = (
    (0, 0x3000), (0xA640, 0xAC00), (0xFB00, 0x10000), (0x10400, 0x11000), (0x11800, 0x11900), (0x16E40, 0x16EA0),
    (0x1E900, 0x1EA00),
)  # fmt: skip


@cache
def _variants(which: str) -> dict[int, frozenset[int]]:
    """Return the characters that have other cases, each with these.

    `every`: the plain pairs. `any`: also such as the Kelvin sign, which is a k for some dialects only.
    """
    groups: dict[int, set[int]] = {}
    for code in (code for low, high in _CASED for code in range(low, high)):
        char = chr(code)
        for other in (char.lower(), char.upper(), char.casefold()):
            if other == char:
                continue
            pair = len(other) == 1 and (other.upper() == char or other.lower() == char)
            if which == "any" or (pair and (code < 0x80) == (ord(other[0]) < 0x80)):
                group = groups.get(code, {code}) | groups.get(ord(other[0]), {ord(other[0])})
                groups |= dict.fromkeys(group, group)
    return {code: frozenset(group) for code, group in groups.items()}


@lru_cache(maxsize=1024)
def _with_variants(ranges: Ranges, which: str) -> Ranges:
    lows = [low for low, _ in ranges]
    added: set[int] = set()
    for code, group in _variants(which).items():
        at = bisect_right(lows, code) - 1
        if at >= 0 and code <= ranges[at][1]:
            added |= group
    return union(ranges, ((code, code) for code in added))

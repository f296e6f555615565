"""Regular expressions of the `format` keyword. They match only texts that every strict validator accepts."""

from functools import cache

from gesso.constraints.regex import regex_term
from gesso.constraints.schema.dialects import Dialect
from gesso.constraints.term import Term

_HEX = "[0-9a-fA-F]"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
# No leap seconds, which only some validators accept. Fractions stop at microseconds, as in many validators.
_TIME = f"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:[0-9]+W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})"

# Host names: labels without leading, trailing or double hyphens; the last label starts with a letter.
_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
_HOST = f"(?:{_LABEL}\\.){{0,3}}[A-Za-z](?:-?[A-Za-z0-9]){{0,30}}"
_MAIL_HOST = f"(?:{_LABEL}\\.){{1,3}}[A-Za-z]{{2,12}}"
_EMAIL = f"[A-Za-z0-9_+-]{{1,30}}(?:\\.[A-Za-z0-9_+-]{{1,30}})?@{_MAIL_HOST}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_GROUP = f"{_HEX}{{1,4}}"
# `::` replaces at least one group of zeros: n groups before it leave at most 7 - n after it.
_SHORTENED = "|".join(
    f"{'' if n == 0 else _GROUP}{f'(?::{_GROUP}){{{n - 1}}}' if n > 1 else ''}::"
    + (f"(?:{_GROUP}(?::{_GROUP}){{0,{6 - n}}})?" if n < 7 else "")
    for n in range(8)
)
_IPV6 = f"(?:{_GROUP}(?::{_GROUP}){{7}}|{_SHORTENED})"

_URI_CHAR = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_PATH = f"(?:/{_URI_CHAR}*)*"
_TAIL = f"(?:\\?(?:{_URI_CHAR}|[/?])*)?(?:\\#(?:{_URI_CHAR}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?://{_HOST}(?::[1-9][0-9]{{0,3}})?{_PATH}|{_URI_CHAR}+{_PATH}){_TAIL}"

_REFERENCE = f"(?:{_URI}|(?://{_HOST})?{_PATH}{_TAIL})"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"
_TEMPLATE = f"(?:{_URI_CHAR}|[/?#]|\\{{[A-Za-z_][A-Za-z0-9_]*\\}})*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    # Only the ASCII forms of internationalized addresses.
    "idn-email": _EMAIL,
    "idn-hostname": _HOST,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,5}})(?:\\#|{_POINTER})",
}
CHECKED = frozenset({"regex"})  # known, but left to the check of the finished answer


@cache
def format_term(name: str, dialect: Dialect) -> Term:
    """Return the content of strings of a format."""
    return regex_term(FORMATS[name], dialect.char)

"""The formats of strings, each with its grammar, and what a constraint does not decide of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from gesso.constraints.charset import char_class
from gesso.constraints.regex import WriteChar, regex_term
from gesso.constraints.schema.dialects import CALLS, JSON, Dialect
from gesso.constraints.schema.format_hosts import HOSTNAME, IDN_HOSTNAME, IPV4, IPV6, email_term, idn_email_term
from gesso.constraints.schema.format_times import DATE, DURATION, date_time_term, time_term
from gesso.constraints.schema.format_uris import (
    IRI,
    IRI_REFERENCE,
    JSON_POINTER,
    RELATIVE_JSON_POINTER,
    URI,
    URI_REFERENCE,
    URI_TEMPLATE,
)
from gesso.constraints.term import Term
from gesso.constraints.terms import both

_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"


@dataclass(frozen=True, kw_only=True)
class StringFormat:
    """A format of strings."""

    grammar: str  # the document that defines it
    term: Callable[[WriteChar], Term]  # returns the texts that are written
    left: str = ""  # what only the check of the answer decides
    narrowed: str = ""  # which valid texts are not written


def _format(grammar: str, expression: str, left: str = "", narrowed: str = "") -> StringFormat:
    return StringFormat(grammar=grammar, term=partial(regex_term, expression), left=left, narrowed=narrowed)


_PUNYCODE = "labels with `--` as their third and fourth character, such as those in Punycode"
_IDNA = "which characters a label may have beyond ASCII, and its length in Punycode"

FORMATS = {
    "date": _format("RFC 3339", DATE),
    "time": StringFormat(grammar="RFC 3339", term=time_term),
    "date-time": StringFormat(grammar="RFC 3339", term=date_time_term),
    "duration": _format("RFC 3339, appendix A", DURATION),
    "email": StringFormat(grammar="RFC 5321", term=email_term, left=f"{_PUNYCODE}; hosts of more than 255 characters"),
    "idn-email": StringFormat(grammar="RFC 6531", term=idn_email_term, left=_IDNA),
    "hostname": _format("RFC 1123", HOSTNAME, left=f"{_PUNYCODE}; hosts of more than 253 characters"),
    "idn-hostname": _format("RFC 5890", IDN_HOSTNAME, left=_IDNA),
    "ipv4": _format("RFC 2673", IPV4),
    "ipv6": _format("RFC 4291", IPV6),
    "uri": _format("RFC 3986", URI),
    "uri-reference": _format("RFC 3986", URI_REFERENCE),
    "iri": _format("RFC 3987", IRI),
    "iri-reference": _format("RFC 3987", IRI_REFERENCE),
    "uri-template": _format("RFC 6570", URI_TEMPLATE),
    "json-pointer": _format("RFC 6901", JSON_POINTER),
    "relative-json-pointer": _format(
        "its Internet-Draft", RELATIVE_JSON_POINTER, narrowed="no index is shifted, as in `0+1`"
    ),
    "uuid": _format("RFC 4122", _UUID),
    "regex": _format("ECMA-262", "(?s:.*)", left="everything"),
}


@cache
def format_term(name: str, dialect: Dialect) -> Term:
    """Return the content of strings of a format."""
    if dialect is JSON:
        return FORMATS[name].term(dialect.char)
    # Escapes do not exist in tool calls, so nothing but the notation itself may exclude a character.
    return both([FORMATS[name].term(char_class), dialect.free_content])


def warm_up() -> None:
    """Compile all formats now instead of with the first schema: in a process that forks, once for all its children."""
    for name in FORMATS:
        for dialect in (JSON, CALLS):
            format_term(name, dialect)

"""Regular expressions of identifiers: RFC 3986 and 3987 (URI, IRI), 6570 (templates), 6901 (JSON pointers)."""

from gesso.constraints.schema.format_hosts import IPV6

_HEX = "[0-9A-Fa-f]"
_ESCAPED = f"%{_HEX}{{2}}"
_PLAIN = "A-Za-z0-9._~!$&'()*+,;=\\-"  # unreserved characters and sub-delimiters, in the notation of a class
# Characters beyond ASCII; the last two of each plane are no characters.
_BEYOND_ASCII = "[\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef{}]".format(
    "".join(f"\\U{plane:04x}{0x1000 if plane == 0xE else 0:04x}-\\U{plane:04x}fffd" for plane in range(0x1, 0xF))
)
_PRIVATE = "[\\ue000-\\uf8ff\\U000f0000-\\U000ffffd\\U00100000-\\U0010fffd]"

_SCHEME = "[A-Za-z][A-Za-z0-9+.\\-]*"
_IP_LITERAL = f"\\[(?:{IPV6}|[Vv]{_HEX}+\\.[{_PLAIN}:]+)\\]"


def _identifiers(more: str, private: str) -> tuple[str, str]:
    """Return the expressions of an identifier, and of a reference, which needs no scheme.

    `more` are alternatives for a character anywhere but in the scheme, `private` those in the query.
    """
    name = f"(?:[{_PLAIN}]|{_ESCAPED}{more})*"  # an IPv4 address is a name, too
    user = f"(?:[{_PLAIN}:]|{_ESCAPED}{more})*"
    char = f"(?:[{_PLAIN}:@]|{_ESCAPED}{more})"
    segments = f"(?:/{char}*)*"
    network = f"//(?:{user}@)?(?:{_IP_LITERAL}|{name})(?::[0-9]*)?{segments}"
    absolute = f"/(?:{char}+{segments})?"
    rootless = f"{char}+{segments}"
    without_colon = f"(?:[{_PLAIN}@]|{_ESCAPED}{more})+{segments}"  # a colon in the first segment would end a scheme
    query = f"(?:[{_PLAIN}:@/?]|{_ESCAPED}{more}{private})*"
    fragment = f"(?:[{_PLAIN}:@/?]|{_ESCAPED}{more})*"
    tail = f"(?:\\?{query})?(?:\\#{fragment})?"
    identifier = f"{_SCHEME}:(?:{network}|{absolute}|{rootless})?{tail}"
    with_or_without_scheme = f"(?:{_SCHEME}:)?(?:{network}|{absolute})?"
    reference = f"(?:{with_or_without_scheme}|{_SCHEME}:{rootless}|{without_colon}){tail}"
    return identifier, reference


URI, URI_REFERENCE = _identifiers("", "")
IRI, IRI_REFERENCE = _identifiers(f"|{_BEYOND_ASCII}", f"|{_PRIVATE}")

_VARIABLE = f"(?:[A-Za-z0-9_]|{_ESCAPED})+(?:\\.(?:[A-Za-z0-9_]|{_ESCAPED})+)*(?::[1-9][0-9]{{0,3}}|\\*)?"
# The apostrophe belongs to the literals by erratum 6937.
_LITERAL = "[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~]"
URI_TEMPLATE = (
    f"(?:{_LITERAL}|{_BEYOND_ASCII}|{_PRIVATE}|{_ESCAPED}|\\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*"
)

JSON_POINTER = "(?:/(?:[^/~]|~[01])*)*"
RELATIVE_JSON_POINTER = f"(?:0|[1-9][0-9]*)(?:\\#|{JSON_POINTER})"

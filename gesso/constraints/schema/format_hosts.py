"""Hosts and mailboxes: RFC 1123, 4291, 5321, and RFC 6531 with characters beyond ASCII."""

from gesso.constraints.regex import WriteChar, regex_term
from gesso.constraints.term import Term
from gesso.constraints.terms import both, seq

_HEX = "[0-9A-Fa-f]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_GROUP = f"{_HEX}{{1,4}}"


def _ipv6(most: int) -> str:
    """Return addresses of eight groups, or of at most `most` around `::`. The last two may be an IPv4 address."""
    forms = [f"{_GROUP}(?::{_GROUP}){{7}}", f"(?:{_GROUP}:){{6}}{IPV4}"]
    for before in range(most + 1):
        start = f"{_GROUP}(?::{_GROUP}){{{before - 1}}}" if before else ""
        after = most - before
        ends = [f"{_GROUP}(?::{_GROUP}){{0,{after - 1}}}"] if after else []
        if after >= 2:
            ends.append(f"(?:{_GROUP}:){{0,{after - 2}}}{IPV4}")
        forms.append(f"{start}::(?:{'|'.join(ends)})?" if ends else f"{start}::")
    return f"(?:{'|'.join(forms)})"


IPV6 = _ipv6(7)

_BEYOND_ASCII = "[\\x80-\\U0010ffff]"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?"
_IDN_CHAR = f"(?:[A-Za-z0-9]|{_BEYOND_ASCII})"
_IDN_LABEL = f"{_IDN_CHAR}(?:\\-*{_IDN_CHAR})*"
HOSTNAME = f"{_LABEL}(?:\\.{_LABEL})*"
# The ideographic and the fullwidth full stops also separate labels, and are beyond ASCII.
IDN_HOSTNAME = f"{_IDN_LABEL}(?:\\.{_IDN_LABEL})*"

_ADDRESS_LITERAL = f"\\[(?:{IPV4}|[Ii][Pp][Vv]6:{_ipv6(6)})\\]"
_ATOM_CHAR, _QUOTED_CHAR = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-]", "[ !#-\\[\\]-~]|\\\\[ -~]"
MAX_LOCAL = 64  # characters of the local part of a mailbox


def email_term(write_char: WriteChar) -> Term:
    """Return mailboxes in ASCII."""
    return _mailbox(_ATOM_CHAR, _QUOTED_CHAR, HOSTNAME, write_char)


def idn_email_term(write_char: WriteChar) -> Term:
    """Return mailboxes that may have characters beyond ASCII on both sides."""
    return _mailbox(f"{_ATOM_CHAR}|{_BEYOND_ASCII}", f"{_QUOTED_CHAR}|{_BEYOND_ASCII}", IDN_HOSTNAME, write_char)


def _mailbox(atom_char: str, quoted_char: str, host: str, write_char: WriteChar) -> Term:
    """Return mailboxes, given the expressions of a character of an atom, of one within quotes, and of a host."""
    atom = f"(?:{atom_char})+"
    local = f'{atom}(?:\\.{atom})*|"(?:{quoted_char})*"'
    limited = both([regex_term(local, write_char), regex_term(f"(?s:.{{1,{MAX_LOCAL}}})", write_char)])
    return seq(limited, regex_term(f"@(?:{host}|{_ADDRESS_LITERAL})", write_char))

"""Dates and times: RFC 3339, with the durations of its appendix A."""

from gesso.constraints.regex import WriteChar, regex_term
from gesso.constraints.term import Term
from gesso.constraints.terms import alt, both, literal, seq

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)

_HOUR = "(?:[01][0-9]|2[0-3])"
_MINUTE = "[0-5][0-9]"
_FRACTION = "(?:\\.[0-9]+)?"
_ORDINARY_TIME = f"{_HOUR}:{_MINUTE}:{_MINUTE}{_FRACTION}(?:[Zz]|[+-]{_HOUR}:{_MINUTE})"

_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
DURATION = f"P(?:[0-9]+W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})"


def time_term(write_char: WriteChar) -> Term:
    """Return the times of a day."""
    return alt([regex_term(_ORDINARY_TIME, write_char), _leap_second(write_char)])


def date_time_term(write_char: WriteChar) -> Term:
    """Return a date and a time of it."""
    return seq(regex_term(f"{DATE}[Tt]", write_char), time_term(write_char))


def _leap_second(write_char: WriteChar) -> Term:
    """Return the times that are 23:59:60 in UTC.

    The offset follows from hour and minute. Listing them together takes 2,880 texts. The intersection of each hour with
    any minutes and of each minute with any hours takes 192.
    """
    hour, minute, minute_below_59 = (regex_term(part, write_char) for part in (_HOUR, _MINUTE, "[0-4][0-9]|5[0-8]"))
    seconds = seq(literal(":60"), regex_term(_FRACTION, write_char))
    by_hour: list[Term] = []
    for local in range(24):
        start = literal(f"{local:02}:")
        by_hour += [
            seq(start, minute, seconds, literal(f"-{23 - local:02}:"), minute),
            seq(start, minute_below_59, seconds, literal(f"+{local:02}:"), minute),
            seq(start, literal("59"), seconds, literal(f"+{(local + 1) % 24:02}:"), minute),
        ]
    by_minute: list[Term] = []
    for local in range(60):
        start = seq(hour, literal(f":{local:02}"), seconds)
        by_minute += [
            seq(start, literal("-"), hour, literal(f":{59 - local:02}")),
            seq(start, literal("+"), hour, literal(f":{(local + 1) % 60:02}")),
        ]
    in_utc = seq(literal("23:59"), seconds, regex_term("[Zz]", write_char))
    return alt([in_utc, both([alt(by_hour), alt(by_minute)])])

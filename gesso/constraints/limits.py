"""Limits on the cost of compiling a constraint, so that no constraint can block the engine or exhaust memory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on compiling one constraint."""

    schema_bytes: int = 1_000_000  # of a JSON schema or a grammar, as text
    regex_chars: int = 100_000  # of a regular expression
    terms: int = 300_000  # made while compiling
    seconds: float = 3.0  # of CPU time for compiling
    row_terms: int = 100_000  # made for one state
    row_seconds: float = 0.25
    state_seconds: float = 0.002  # for a state on average, beyond `seconds`: the engine makes states while it runs
    states: int = 100_000  # that texts reach

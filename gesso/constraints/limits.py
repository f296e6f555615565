"""Limits on the cost of compiling a constraint, so that no constraint can block the engine or exhaust memory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on compiling one constraint."""

    schema_bytes: int = 1_000_000  # of a JSON schema or a grammar, as text
    regex_chars: int = 500_000
    depth: int = 3  # levels to which recursion is unrolled
    states: int = 20_000  # of the automaton
    seconds: float = 10.0
    memory: int = 2 << 30  # bytes the compiler may use

"""The shortest texts of named terms that may contain each other."""

from collections.abc import Iterable

from gesso.constraints.term import FAR, Term
from gesso.constraints.terms import Alt, NamedTerm, Repeat, Seq


def settle(rules: Iterable[NamedTerm]) -> None:
    """Compute the length of a shortest text of each rule, once all bodies are set."""
    rules = list(rules)
    for rule in rules:
        rule._least = FAR
    changed = True
    while changed:  # lengths only fall, and each round makes at least one of them final
        changed = False
        lengths: dict[Term, int] = {}
        for rule in rules:
            least = _least_now(rule.body, lengths)
            if least < rule.least:
                rule._least = least
                changed = True


def _least_now(term: Term, lengths: dict[Term, int]) -> int:
    """Return the length of a shortest text with the current lengths of rules, which are not final."""
    if not term.has_rule or isinstance(term, NamedTerm):
        return term.least
    if term not in lengths:
        total, rest = 0, term
        while isinstance(rest, Seq):
            total += _least_now(rest.head, lengths)
            rest = rest.tail
        if isinstance(rest, Alt):
            total += min(_least_now(item, lengths) for item in rest.items)
        elif isinstance(rest, Repeat):
            total += rest.low * _least_now(rest.item, lengths) if rest.low else 0
        else:
            total += _least_now(rest, lengths)
        lengths[term] = min(total, FAR)
    return lengths[term]

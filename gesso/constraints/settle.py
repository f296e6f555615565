"""The shortest texts of rules that may contain each other."""

from collections.abc import Iterable

from gesso.constraints.term import FAR, Term
from gesso.constraints.terms import Alt, Repeat, Rule, Seq


def settle(rules: Iterable[Rule]) -> None:
    """Find the shortest text of each rule, once all bodies are given."""
    rules = list(rules)
    for rule in rules:
        rule._least = FAR
    changed = True
    while changed:  # lengths only fall, and each round makes at least one of them final
        changed, known = False, dict[Term, int]()
        for rule in rules:
            if (found := _least_now(rule.body, known)) < rule.least:
                rule._least, changed = found, True


def _least_now(term: Term, known: dict[Term, int]) -> int:
    """Return the length of a shortest text with the present lengths of rules, which are not final."""
    if not term.has_rule or isinstance(term, Rule):
        return term.least
    if term not in known:
        total, rest = 0, term
        while isinstance(rest, Seq):
            total += _least_now(rest.head, known)
            rest = rest.tail
        if isinstance(rest, Alt):
            total += min(_least_now(item, known) for item in rest.items)
        elif isinstance(rest, Repeat):
            total += rest.low * _least_now(rest.item, known) if rest.low else 0
        else:
            total += _least_now(rest, known)
        known[term] = min(total, FAR)
    return known[term]

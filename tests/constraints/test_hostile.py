"""Hostile constraints are compiled or refused within limits. tools/hostile_constraints.py runs many more."""

import sys

import pytest

from tools.hostile_cases import GRAMMARS, PATTERNS, SCHEMAS, cases
from tools.hostile_constraints import MEMORY, judged

KINDS = len(SCHEMAS) + len(PATTERNS) + len(GRAMMARS)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by Linux")
@pytest.mark.parametrize("case", [*cases(KINDS, seed=1)], ids=lambda case: case[0])
def test_a_hostile_constraint_is_compiled_or_refused_within_limits(case):
    verdict = judged(case)  # ends what takes too long
    assert verdict.end in ("compiled", "refused", "refused on the way"), verdict.message
    assert verdict.memory <= MEMORY


def test_cases_depend_on_the_seed_only():
    first, again, other = (
        [case for case in cases(KINDS, seed) if case[0] != "deep_nesting"]  # which Python cannot compare
        for seed in (3, 3, 4)
    )
    assert first == again != other
    assert {kind for kind, _, _ in cases(KINDS)} == {make.__name__.strip("_") for make in SCHEMAS + PATTERNS + GRAMMARS}

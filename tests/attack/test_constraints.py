"""Slow constraints are rejected or abandoned without delaying the constraints of other clients."""

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attack.watching import (
    BAD,
    ask,
    assert_nothing_left,
    assert_refused,
    attack,
    bystanders,
    short,
    text,
)
from tools.load import attacks, wire
from tools.load.wire import CHAT, COMPLETIONS

pytestmark = pytest.mark.attack

ABANDONED = 6  # more than are compiled at once


def test_abandoned_regexes_do_not_delay_the_constraints_of_others(server):
    with bystanders(server, short(choice=["yes", "no", "perhaps"])):
        for number in range(ABANDONED):
            body = short(regex=attacks.slow_regex(number))
            connection = wire.send(server.url, BAD, COMPLETIONS, body)
            time.sleep(0.2)
            wire.abandon(connection)
        fresh = text(ask(server, short(regex="[ab]{3}")))  # not in the cache of compiled constraints
    assert re.fullmatch("[ab]{3}", fresh)


def test_abandoned_schemas_stop_being_compiled(server):
    with bystanders(server, short(choice=["yes", "no"])):
        for _ in range(4):
            connection = wire.send(server.url, BAD, CHAT, attacks.with_schema(attacks.wide_schema()))
            time.sleep(0.2)
            wire.abandon(connection)


REFUSED = {
    "a slow regex": {"regex": attacks.slow_regex(0)},
    "100,000 stars": {"grammar": 'root ::= "a"' + "*" * 100_000},
    "endless recursion": {"grammar": "root ::= root"},
    "deep parentheses": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "not a regex": {"regex": "("},
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_expensive_constraint_is_rejected_while_others_are_served(server, name):
    with bystanders(server, short(choice=["yes", "no"])):
        assert_refused(attack(server, COMPLETIONS, short(**REFUSED[name])))


def test_a_wide_schema_is_rejected_while_others_are_served(server):
    with bystanders(server):
        assert_refused(attack(server, CHAT, attacks.with_schema(attacks.wide_schema())))


pieces = st.sampled_from(
    ["a", "[a-z]", ".", r"\w", r"\d{1,9}", "(a|b)", "a{0,500}", "(?:", ")", "*", "+", "?", "|", "["]
)
constraints = st.one_of(
    st.lists(pieces, min_size=1, max_size=12).map(lambda parts: {"regex": "".join(parts)}),
    st.lists(pieces, min_size=1, max_size=8).map(lambda parts: {"grammar": f"root ::= {' '.join(parts)}"}),
    st.lists(st.text(max_size=50), max_size=200).map(lambda texts: {"choice": texts}),
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(constraint=constraints)
def test_no_constraint_causes_a_server_error(server, constraint):
    answer = attack(server, COMPLETIONS, short(max_tokens=8, **constraint))
    if answer.status != 200:
        assert_refused(answer)


def test_these_attacks_leave_nothing(server):
    assert_nothing_left(server)

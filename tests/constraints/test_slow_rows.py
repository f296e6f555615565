"""A search never works long for one state, because others wait. See benchmarks/host_work.py."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.schemas import guides
from gesso.constraints import terms
from gesso.constraints.automaton import START, Automaton
from gesso.constraints.budget import LOCKED_SECONDS, Paused, TookTooLong, pausing
from gesso.constraints.limits import Limits
from gesso.constraints.regex import regex_term
from gesso.constraints.stored import NODES, from_bytes, to_bytes
from gesso.constraints.terms import alt, literal, seq
from gesso.errors import InputError
from tests.waiting import PATIENCE
from tools.hostile_cases import cases

MOST_TERMS = 80  # made for a row before it is left to the thread, if that takes no time: time is checked every 64 terms
SLOW = [case for case in cases(58, seed=2) if case[0] in ("several_patterns", "conditions")][:2]


def filled(states: Automaton, state: int) -> int:
    """Fill the row of a state in a block that pauses, and return the number of pauses."""
    pauses = 0
    while True:
        try:
            with pausing(lambda: False):
                states.row(state)
            return pauses
        except Paused as pause:
            pauses += 1
            assert pause.awaited is not None
            pause.awaited.exception()


@pytest.mark.parametrize("case", SLOW, ids=lambda case: case[0])
def test_a_search_makes_few_terms_for_a_row_of_a_hostile_constraint(case, monkeypatch):
    """Every row is left to the thread as soon as the time is checked."""
    compiled = guides().guide(**{case[1]: case[2]}).automaton
    states = Automaton(compiled.term, compiled.limits, pausing_seconds=0.0)
    made, own, count = [0], threading.get_ident(), terms.count_term

    def counted():
        made[-1] += threading.get_ident() == own
        count()

    monkeypatch.setattr(terms, "count_term", counted)  # the terms of each thread; the budget has their sum only
    pauses, state = 0, START
    try:
        while state < len(states) and state < 60:
            pauses += filled(states, state)
            made.append(0)
            state += 1
    except InputError as error:  # the thread keeps to the limits
        assert "limits.seconds" in str(error)
        pauses += 1
    assert pauses and max(made) <= MOST_TERMS


class AllSlow(Automaton):
    """An automaton that leaves every row to the thread."""

    def __init__(self, term, limits=Limits()):  # noqa: B008
        super().__init__(term, limits, pausing_seconds=0.0)

    def _make(self, state, seconds):
        if seconds == 0.0:
            raise TookTooLong("no time")
        super()._make(state, seconds)


def test_a_row_of_the_thread_is_the_row_made_at_once():
    term = regex_term("(a|b)*a(a|b){3}[0-9]{2,20}")
    plain, paused = Automaton(term), AllSlow(term)
    assert plain.fill_all(1000)
    state = START
    while state < len(paused):
        assert filled(paused, state) == 1
        state += 1
    assert len(paused) == len(plain) and (paused.next_SB[:state] == plain.next_SB[:state]).all()


def test_a_row_that_the_thread_refuses_is_refused_again_at_once():
    refused = AllSlow(regex_term("[a-z]{4}x{3}"), Limits(row_terms=0))
    for attempts in (1, 1):
        with pytest.raises(InputError, match=r"limits\.terms"):
            filled(refused, START)
        assert len(refused._slow) == attempts


def test_one_thread_computes_the_slow_rows_of_all_constraints():
    """Each one more would compete with the engine's passes."""
    released = threading.Event()

    class Blocked(AllSlow):
        def _make(self, state, seconds):
            if seconds > 0:
                released.wait(PATIENCE)
            super()._make(state, seconds)

    for expression in ("[ab]{4}", "[cd]{4}"):
        with pausing(lambda: False), pytest.raises(Paused):
            Blocked(regex_term(expression)).row(START)
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("gesso-rows")]
    released.set()
    assert len(threads) == 1


def test_a_search_pauses_if_another_thread_keeps_the_lock():
    states = Automaton(regex_term("[ab]{3}"))
    with ThreadPoolExecutor(1) as other:
        other.submit(states._lock.acquire).result()
        began = time.monotonic()
        with pausing(lambda: False), pytest.raises(Paused):
            states.row(START)
        assert time.monotonic() - began >= LOCKED_SECONDS
        other.submit(states._lock.release).result()
    assert states.row(START).any()


def test_threads_that_make_the_same_terms_get_the_same_objects():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for round in range(20):
            together = threading.Barrier(4)

            def made(round=round, together=together):
                together.wait()
                return [seq(alt([literal(f"{round}"), literal(f"{n}x")]), literal("y")) for n in range(300)]

            with ThreadPoolExecutor(4) as threads:
                first, *others = [each.result() for each in [threads.submit(made) for _ in range(4)]]
            assert all(one is two for other in others for one, two in zip(first, other, strict=True))
    finally:
        sys.setswitchinterval(before)


def test_a_stored_term_has_short_lines_and_the_lengths_of_its_rules():
    """A line is parsed while no other thread can run. Lengths of thousands of rules take seconds to find."""
    rules = [f'r{n} ::= "{n}" r{n + 1} "x"' for n in range(400)]
    grammar = "\n".join(["root ::= r0", *rules, 'r400 ::= "ab"'])
    term = guides().guide(grammar=grammar).automaton.term
    lines = to_bytes(term).split(b"\n")
    assert len(lines) > 1 and all(line.count(b"[") <= NODES + 1 for line in lines)
    assert from_bytes(b"\n".join(lines)).least == term.least == sum(len(str(n)) + 1 for n in range(400)) + 2

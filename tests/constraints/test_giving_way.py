"""Threads that work on constraints beside an engine give way to its passes."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, RLock

import pytest

from gesso.backends.torch import TorchBackend
from gesso.constraints import budget
from gesso.constraints.automaton import Automaton
from gesso.constraints.budget import give_way_to_passes, going_first, holding
from gesso.constraints.limits import Limits
from gesso.constraints.regex import regex_term
from gesso.engine.engine import Engine
from tests.backends.passes import CapturesPlainly
from tests.engine_requests import request, result
from tests.watched import Watched


@pytest.fixture
def rests(monkeypatch):
    """The rests of all threads, which take no time."""
    found = []
    monkeypatch.setattr(budget.time, "sleep", found.append)  # to count them
    return found


def make_states():
    return Automaton(regex_term("(a|b)*a(a|b){6}"), Limits()).fill_all(1000)


def test_a_thread_beside_a_pass_rests_and_no_other_does(rests):
    with ThreadPoolExecutor(1, initializer=give_way_to_passes) as beside:
        assert beside.submit(make_states).result() and not rests  # no pass
        with going_first(True):
            assert make_states() and not rests  # the engine's own thread
            assert beside.submit(make_states).result()
        assert len(rests) > 1 and set(rests) == {budget.REST_SECONDS}
        del rests[:]
        with going_first(False):
            assert beside.submit(make_states).result()
        assert beside.submit(make_states).result() and not rests


def test_a_thread_that_another_waits_for_does_not_rest(rests):
    lock = RLock()
    with ThreadPoolExecutor(1, initializer=give_way_to_passes) as beside, going_first(True):

        def work():
            with holding(lock):
                begun.set()
                while not budget._waiting:
                    pass
                del rests[:]
                return make_states(), len(rests)

        begun = Event()
        done = beside.submit(work)
        begun.wait()
        with holding(lock):
            assert done.result() == (True, 0) and not budget._waiting


@pytest.mark.parametrize("captures", [False, True])
def test_passes_on_a_gpu_go_first(tiny, captures):
    seen = []

    def watched(pass_, *given):
        seen.append(budget._going_first)
        return pass_(*given)

    plain = CapturesPlainly(tiny.model) if captures else TorchBackend(tiny.model)
    backend = Watched(plain, run=watched, replay=watched)
    result(Engine(tiny.model, tiny.decode, backend=backend), request(max_new_tokens=4))
    assert set(seen) == {int(captures)} and budget._going_first == 0

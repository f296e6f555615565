"""Constrained requests in captured passes: the same text as in uncaptured ones, and free requests do not wait for them.

Without a GPU nothing is captured, but the static tensors, and the copies into and out of them, are the same.
"""

import threading
from types import SimpleNamespace

import pytest

from gesso.constraints.automaton import Automaton
from gesso.constraints.budget import TookTooLong, may_pause
from gesso.constraints.guide import Guide
from gesso.constraints.regex import regex_term
from gesso.engine import engine, guided, runner
from gesso.engine.events import Done, Draft, Failed
from gesso.engine.searches import Searches
from tests.backends.passes import CapturesPlainly
from tests.waiting import PATIENCE

CODE = "[ab]{3}[0-9]{4}"
SHORT = {"steps": 8, "canvas_length": 8, "max_new_tokens": 16}
FIXED = {**SHORT, "stopping": "fixed"}


def outcome(g, requests):
    """Return the drafts and the result of each request."""
    ids = [g.engine.submit(request) for request in requests]
    seen = {i: [] for i in ids}
    while g.engine.busy:
        for event in g.engine.step():
            if isinstance(event, Draft):
                corrected = event.canvas.history[-1].corrected
                seen[event.request_id].append((event.tokens, event.canvas.tokens_C.tolist(), corrected))
            elif isinstance(event, Done):
                seen[event.request_id].append((event.result.text, event.result.finish_reason, event.result.usage))
            else:
                assert not isinstance(event, Failed), event
    return [seen[i] for i in ids]


@pytest.mark.parametrize(
    "options",
    [{}, {"greed": 0.5}, {"settle": 1, "confidence": 10.0}, {"stability": 3, "eos_settles": True}],
    ids=lambda options: " ".join(options) or "default",
)
def test_a_captured_constraint_gives_the_uncaptured_text(pair, monkeypatch, options):
    """Alone, and beside free requests and one with pins."""
    plain, graphed = pair

    def requests(g):
        shared = {**SHORT, **options}
        constrained = [g.request("x", seed=seed, regex=CODE, **shared) for seed in (1, 2)]
        free = g.request("one two", seed=3, **shared)
        return [*constrained, free, g.request("y", seed=4, regex="(?s).{4,}", pins={2: 200}, **shared)]

    def unused(*args):
        raise AssertionError("a captured pass must not compute all logits, nor run operation by operation")

    expected = [outcome(plain, requests(plain)[:1]), outcome(plain, requests(plain))]
    assert any(corrected for drafts in expected[1] for *_, corrected in drafts[:-1] if corrected is True)
    backend = graphed.engine.runner.backend
    backend.logits_of = CapturesPlainly(graphed.model).logits_of  # without graphs there is no kernel for this
    monkeypatch.setattr(backend, "logits", unused)
    monkeypatch.setattr(backend, "run", unused)
    assert [outcome(graphed, requests(graphed)[:1]), outcome(graphed, requests(graphed))] == expected


def test_canvases_beside_a_constrained_one_advance_in_the_graph(pair):
    _, graphed = pair
    outcome(graphed, [graphed.request("x", seed=1, regex=CODE, **FIXED), graphed.request("y", seed=2, **FIXED)])
    shapes = [shape for shape in graphed.engine.runner.backend.graphs.made if shape.lengths]
    assert shapes and all(shape.settings is not None for shape in shapes)


def logged(g, monkeypatch):
    """Return a list that records the requests of each pass when it is launched, and each search."""
    log, backend, searching = [], g.engine.runner.backend, guided.Correction.search
    replay = backend.replay

    def recording_replay(work, cache):
        found = replay(work, cache)
        if found is not None:
            log.append(("pass", {item.running.id for item in work if item.denoising}))
        return found

    def recording_search(self):
        log.append(("search", None))
        return searching(self)

    monkeypatch.setattr(backend, "replay", recording_replay)
    monkeypatch.setattr(guided.Correction, "search", recording_search)
    return log


def test_free_requests_do_not_wait_for_a_search(pair, monkeypatch):
    """The next pass of the free request is launched before the search, and the constrained one sits it out."""
    _, graphed = pair
    free, constrained = (
        graphed.engine.submit(graphed.request("x", seed=1, regex=regex, **FIXED)) for regex in (None, CODE)
    )
    log, steps = logged(graphed, monkeypatch), []
    while free in graphed.engine.running:
        steps.append([event.request_id for event in graphed.engine.step() if isinstance(event, Draft)])
    assert all(free in drafts for drafts in steps if drafts)
    before = [log[at - 1] for at, (kind, _) in enumerate(log) if kind == "search"]
    assert before and all(entry == ("pass", {free}) for entry in before if free in entry[1])
    assert ("pass", {free, constrained}) in log


def test_a_search_pauses_when_the_pass_is_over_and_finds_the_same_text(pair, monkeypatch):
    """On a CPU every pass is over at once. One part of a search runs beside each."""
    plain, graphed = pair

    def requests(g):
        return [g.request("x", seed=1, regex=regex, **FIXED) for regex in (None, "[cd]{3}[0-9]{4}")]

    expected = outcome(plain, requests(plain))
    monkeypatch.setattr(runner, "LEAST_SEARCHING", 0.0)
    monkeypatch.setattr(runner, "CHECKING", 0.0)  # checks pause as well
    monkeypatch.setattr(runner, "LEAST_CHECKING", 0.0)
    paused, run = [], graphed.engine.searches.run

    def counted(is_over):
        run(is_over)
        paused.append(len(graphed.engine.searches.waiting))

    monkeypatch.setattr(graphed.engine.searches, "run", counted)
    assert outcome(graphed, requests(graphed)) == expected
    assert paused.count(1) > 4  # a search has a part for each of the eight positions


@pytest.mark.parametrize("captured", [False, True])
def test_free_requests_do_not_wait_for_a_slow_row(pair, monkeypatch, captured):
    """A thread makes the row. The constrained request then writes the same text."""
    plain, graphed = pair
    g = graphed if captured else plain
    expected, waits, make = (
        outcome(plain, [plain.request("x", seed=2, regex="[ef]{3}[0-9]{4}", **FIXED)]),
        [],
        Automaton._make,
    )
    release = threading.Event()

    def slow(self, state, seconds):
        if threading.current_thread() is threading.main_thread() and may_pause():
            raise TookTooLong("no time")
        waits.append(release.wait(PATIENCE))
        make(self, state, seconds)

    monkeypatch.setattr(Automaton, "_make", slow)
    request = g.request(
        "x", seed=2, guide=Guide(Automaton(regex_term("[ef]{3}[0-9]{4}")), g.guides.words, g.guides.eos), **FIXED
    )
    constrained, free = (g.engine.submit(each) for each in (request, g.request("x", seed=1, **FIXED)))
    while free in g.engine.running:
        g.engine.step()
    assert constrained in g.engine.running and not waits
    release.set()
    while g.engine.busy:
        last = g.engine.step()
    assert last[-1].result.text == expected[0][-1][0] and waits


def test_a_paused_search_goes_on_after_passes_of_free_requests(pair, monkeypatch):
    """Without graphs, no search runs beside a pass."""
    plain, _ = pair
    monkeypatch.setattr(engine, "deadline", lambda seconds: lambda: True)  # one part at a time
    short = {"steps": 2, "canvas_length": 4, "max_new_tokens": 4}
    constrained = plain.engine.submit(plain.request("x", seed=1, regex="[gh]{2}", **short))
    free = plain.engine.submit(plain.request("x", seed=1, **{**FIXED, "steps": 300}))
    paused = 0
    while constrained in plain.engine.running:
        plain.engine.step()
        paused += len(plain.engine.searches.waiting)
    assert paused > 1 and free in plain.engine.running


def test_paused_searches_take_turns():
    log, searches = [], Searches()

    def search(name):
        for _ in range(3):
            log.append(name)
            yield
        return lambda: name

    for name in "ab":
        searches.add(SimpleNamespace(running=SimpleNamespace(id=name)), search(name))
    while searches.waiting:
        searches.run(lambda: True)
    assert "".join(log) == "ababab"
    assert [take() for _, take in searches.taken()] == ["a", "b"]


def test_without_free_requests_a_search_runs_at_once(pair, monkeypatch):
    _, graphed = pair
    monkeypatch.setattr(engine, "SEARCHING", 600.0)  # seconds; a busy machine must not make it pause
    one, two = (graphed.engine.submit(graphed.request("x", seed=seed, regex=CODE, **FIXED)) for seed in (1, 2))
    log = logged(graphed, monkeypatch)
    while graphed.engine.busy:
        graphed.engine.step()
        assert not graphed.engine.searches.waiting
    assert ("search", None) in log and all(ids in ({one, two}, set()) for kind, ids in log if kind == "pass")


def test_a_failed_search_fails_its_request_only(pair, monkeypatch):
    _, graphed = pair
    free, constrained = (
        graphed.engine.submit(graphed.request("x", seed=1, regex=regex, **FIXED)) for regex in (None, CODE)
    )

    def broken(self):
        raise ValueError("broken search")

    monkeypatch.setattr(guided.Correction, "search", broken)
    last = {}
    while graphed.engine.busy:
        last |= {event.request_id: event for event in graphed.engine.step()}
    assert isinstance(last[constrained], Failed) and "broken search" in str(last[constrained].error)
    assert isinstance(last[free], Done)


def test_a_request_can_be_cancelled_while_its_search_waits(pair):
    _, graphed = pair
    running = graphed.engine
    _, constrained = (running.submit(graphed.request("x", seed=1, regex=regex, **FIXED)) for regex in (None, CODE))
    while not running.searches.waiting:
        assert running.busy, "no step needed a search"
        running.step()
    running.cancel(constrained)
    (event,) = [event for event in running.step() if event.request_id == constrained]
    assert isinstance(event, Done) and event.result.finish_reason == "cancelled"
    assert not running.searches.waiting and not running.searches.done

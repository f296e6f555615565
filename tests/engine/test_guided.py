"""Constrained requests in captured passes: the same text as in uncaptured ones, and free requests do not wait for them.

Without a GPU nothing is captured, but the static tensors, and the copies into and out of them, are the same.
"""

import threading
from types import SimpleNamespace

import pytest

from gesso import Done, Draft
from gesso.constraints.automaton import Automaton
from gesso.constraints.budget import TookTooLong, may_pause
from gesso.constraints.guide import Guide
from gesso.constraints.regex import regex_term
from gesso.engine.events import Failed
from gesso.engine.runner import SearchTimes
from gesso.engine.searches import Searches
from tests.engine.models import with_engine, with_graphs
from tests.waiting import PATIENCE

CODE = "[ab]{3}[0-9]{4}"
SHORT = {"steps": 8, "canvas_length": 8, "max_new_tokens": 16}
FIXED = {**SHORT, "stopping": "fixed"}
SEARCH = ("search", None)  # an entry of a log


def outcome(g, requests, waiting=None):
    """Return the drafts and the result of each request. Append the number of waiting searches after each step."""
    ids = [g.engine.submit(request) for request in requests]
    seen = {i: [] for i in ids}
    while g.engine.busy:
        events = g.engine.step()
        if waiting is not None:
            waiting.append(len(g.engine.searches.waiting))
        for event in events:
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
def test_a_captured_constraint_gives_the_uncaptured_text(pair, options):
    """Alone, and beside free requests and one with pins."""
    plain, _ = pair

    def requests(g):
        shared = {**SHORT, **options}
        constrained = [g.request("x", seed=seed, regex=CODE, **shared) for seed in (1, 2)]
        free = g.request("one two", seed=3, **shared)
        return [*constrained, free, g.request("y", seed=4, regex="(?s).{4,}", pins={2: 200}, **shared)]

    def unused(*args):
        raise AssertionError("no pass of a backend that captures may compute all logits")

    expected = [outcome(plain, requests(plain)[:1]), outcome(plain, requests(plain))]
    assert any(corrected for drafts in expected[1] for *_, corrected in drafts[:-1] if corrected is True)
    graphed = with_graphs(plain, logits=unused)
    assert [outcome(graphed, requests(graphed)[:1]), outcome(graphed, requests(graphed))] == expected


def test_canvases_beside_a_constrained_one_advance_in_the_graph(pair):
    _, graphed = pair
    outcome(graphed, [graphed.request("x", seed=1, regex=CODE, **FIXED), graphed.request("y", seed=2, **FIXED)])
    assert any(size.canvases for size in graphed.engine.runner.backend.graphs.packed)


class Log:
    """The requests of each pass when it is launched, and each search, which asks the backend for logits of tokens."""

    def __init__(self):
        self.entries = []

    def replay(self, replay, work, cache):
        replayed = replay(work, cache)
        if replayed is not None:
            self.entries.append(("pass", {item.running.id for item in work if item.denoising}))
        return replayed

    def logits_of(self, logits_of, hidden_CH, tokens_U):
        if self.entries[-1:] != [SEARCH]:  # a search asks several times
            self.entries.append(SEARCH)
        return logits_of(hidden_CH, tokens_U)

    def graphed(self, g, **options):
        """Return the model with an engine of captured passes, which this log records."""
        return with_graphs(g, options, replay=self.replay, logits_of=self.logits_of)


def test_free_requests_do_not_wait_for_a_search(tiny):
    """The next pass of the free request is launched before the search, and the constrained one sits it out."""
    log, steps = Log(), []
    graphed = log.graphed(tiny)
    free, constrained = (
        graphed.engine.submit(graphed.request("x", seed=1, regex=regex, **FIXED)) for regex in (None, CODE)
    )
    while free in graphed.engine.running:
        steps.append([event.request_id for event in graphed.engine.step() if isinstance(event, Draft)])
    assert all(free in drafts for drafts in steps if drafts)
    before = [log.entries[at - 1] for at, entry in enumerate(log.entries) if entry == SEARCH]
    assert before and all(entry == ("pass", {free}) for entry in before if free in entry[1])
    assert ("pass", {free, constrained}) in log.entries


def test_a_search_pauses_when_the_pass_is_over_and_finds_the_same_text(tiny):
    """On a CPU every pass is over at once. One part of a search, or of a check, runs beside each."""

    def requests(g):
        return [g.request("x", seed=1, regex=regex, **FIXED) for regex in (None, "[cd]{3}[0-9]{4}")]

    expected, waiting = outcome(tiny, requests(tiny)), []
    graphed = with_graphs(tiny, {"search_times": SearchTimes(checks=0.0, check=0.0, beside_pass=0.0)})
    assert outcome(graphed, requests(graphed), waiting) == expected
    assert waiting.count(1) > 4  # a search has a part for each of the eight positions


class SlowRows(Automaton):
    """An automaton whose rows a thread makes for code that may pause, once `release` is set."""

    def __init__(self, term):
        super().__init__(term)
        self.release = threading.Event()
        self.waits = []

    def _make(self, state, seconds):
        if threading.current_thread() is threading.main_thread() and may_pause():
            raise TookTooLong("no time")
        self.waits.append(self.release.wait(PATIENCE))
        super()._make(state, seconds)


@pytest.mark.parametrize("captured", [False, True])
def test_free_requests_do_not_wait_for_a_slow_row(pair, captured):
    """A thread makes the row. The constrained request then writes the same text."""
    plain, graphed = pair
    g = graphed if captured else plain
    (expected,) = outcome(plain, [plain.request("x", seed=2, regex="[ef]{3}[0-9]{4}", **FIXED)])
    rows = SlowRows(regex_term("[ef]{3}[0-9]{4}"))
    request = g.request("x", seed=2, guide=Guide(rows, g.guides.words, g.guides.eos), **FIXED)
    constrained, free = (g.engine.submit(each) for each in (request, g.request("x", seed=1, **FIXED)))
    while free in g.engine.running:
        g.engine.step()
    assert constrained in g.engine.running and not rows.waits
    rows.release.set()
    while g.engine.busy:
        last = g.engine.step()
    assert last[-1].result.text == expected[-1][0] and rows.waits


def test_a_paused_search_goes_on_after_passes_of_free_requests(tiny):
    """Without graphs, no search runs beside a pass."""
    one_part = SearchTimes(least_at_once=0.0, most_at_once=0.0, share=0.0, between_passes=0.0)
    plain = with_engine(tiny, search_times=one_part)
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


def test_without_free_requests_a_search_runs_at_once(tiny):
    log = Log()
    graphed = log.graphed(tiny, search_times=SearchTimes(between_passes=PATIENCE))  # a busy machine must not pause it
    one, two = (graphed.engine.submit(graphed.request("x", seed=seed, regex=CODE, **FIXED)) for seed in (1, 2))
    while graphed.engine.busy:
        graphed.engine.step()
        assert not graphed.engine.searches.waiting
    assert SEARCH in log.entries and all(ids in ({one, two}, set()) for kind, ids in log.entries if kind == "pass")


def test_a_failed_search_fails_its_request_only(tiny):
    def broken(logits_of, hidden_CH, tokens_U):
        raise ValueError("broken search")

    graphed = with_graphs(tiny, logits_of=broken)
    free, constrained = (
        graphed.engine.submit(graphed.request("x", seed=1, regex=regex, **FIXED)) for regex in (None, CODE)
    )
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

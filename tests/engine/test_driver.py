"""The driver runs plans on one engine: rounds of requests and scores, their events, cancellation and failures."""

from concurrent.futures import Future

import pytest

from gesso import Commit, Done, Draft
from gesso.engine.driver import Driver
from gesso.engine.plan import candidates_of, generate, score
from gesso.engine.request import Request, Score
from gesso.infill.candidates import likeliest
from gesso.settings import Diffusion
from tests.likelihood import Likelihood

SMALL = Diffusion(canvas_length=16, steps=2)


def request(**changes):
    return Request(**{"prompt": (2, 200, 210), "max_new_tokens": 16, "diffusion": SMALL, "seed": 5} | changes)


@pytest.fixture
def driver(tiny):
    driver = Driver(tiny.engine)
    yield driver
    assert not driver.runs and not tiny.engine.busy
    tiny.engine.step()  # cancelled requests leave


def test_plan_receives_results_in_the_order_of_its_requests(tiny, driver):
    def plan():
        first = yield [
            request(seed=1, max_new_tokens=40),
            request(seed=2),
            Score(prompt=(2, 200), texts=((9,), (8, 7))),
        ]
        second = yield [request(seed=3)]
        return first, second

    (one, two, scores), (three,) = driver.run(plan())
    assert [result.seed for result in (one, two, three)] == [1, 2, 3]
    reference = Likelihood(tiny.model, (2, 200))
    assert scores.log_likelihoods == (reference.of((9,)), reference.of((8, 7)))


def test_scoring_runs_in_passes_of_the_engine_beside_other_requests(driver):
    drafts = []
    long = request(seed=9, diffusion=Diffusion(canvas_length=16, steps=40, stopping="fixed"))
    other = driver.submit(generate([long]), on_event=drafts.append)
    scores = driver.submit(score((2,) * 600, [(5, 6), (7, 8, 9)], 8192, None))
    while not scores.ended:
        driver.step()
        assert isinstance(drafts.pop(), Draft)
    assert len(scores.outcome()) == 2
    driver.cancel(other)


def test_at_most_at_once_requests_of_a_plan_are_in_the_engine(tiny, driver):
    requests = candidates_of(request(), 5)
    run = driver.submit(generate(requests), at_once=2)
    most = 0
    while not run.ended:
        most = max(most, len(tiny.engine.running))
        driver.step()
    assert most == 2 and len(run.ids) == 5
    assert run.outcome() == driver.run(generate(requests))


def test_events_go_to_the_run_of_their_request_in_order(driver):
    seen, ended = [], []
    runs = [
        driver.submit(generate([request(seed=i)]), on_event=seen.append, on_end=lambda run, i=i: ended.append((i, run)))
        for i in range(2)
    ]
    while not all(run.ended for run in runs):
        driver.step()
    assert ended == list(enumerate(runs))
    for run in runs:
        events = [event for event in seen if event.request_id == run.ids[0]]
        assert [type(event) for event in events] == [Draft, Draft, Commit, Done]
        assert [events[-1].result] == run.outcome()


def test_observer_may_cancel_its_run_and_a_cancelled_run_reports_no_end(tiny, driver):
    def plan():
        yield [request()]
        pytest.fail("a cancelled plan has no second round")

    run = driver.submit(
        plan(),
        on_event=lambda event: driver.cancel(run) if isinstance(event, Done) else None,
        on_end=lambda run: pytest.fail("cancelled"),
    )
    while not run.ended:
        driver.step()
    assert not tiny.engine.busy
    driver.step()  # the last events of its requests are ignored


def test_interrupt_in_one_plan_loses_no_event_of_another(driver):
    def interrupted():
        yield [request()]
        raise KeyboardInterrupt

    first, second = driver.submit(interrupted()), driver.submit(generate([request(seed=6)]))
    with pytest.raises(KeyboardInterrupt):
        while not first.ended:
            driver.step()
    driver.cancel(first)
    while not second.ended:
        driver.step()
    assert second.outcome()[0].seed == 6


def test_failed_request_ends_its_plan_alone_and_cancels_the_rest_of_the_round(tiny, driver):
    def broken(canvas_C, prediction, moment):
        raise RuntimeError("my sampler is broken")

    failing = request(diffusion=Diffusion(canvas_length=16, steps=2, sampler=broken))
    other = driver.submit(generate([request()]))
    run = driver.submit(generate([request(max_new_tokens=400), failing]))
    while not (run.ended and other.ended):
        driver.step()
    with pytest.raises(RuntimeError, match="my sampler"):
        run.outcome()
    assert len(other.outcome()) == 1


def test_error_of_the_plan_itself_ends_it(driver):
    def plan():
        yield [request()]
        raise ValueError("no second round")

    with pytest.raises(ValueError, match="no second round"):
        driver.run(plan())


def test_round_with_an_invalid_request_leaves_nothing_behind(driver):
    run = driver.submit(generate([request(), request(max_new_tokens=0)]))
    assert run.ended
    with pytest.raises(ValueError, match="max_new_tokens"):
        run.outcome()


def test_plan_without_requests_ends_at_once(driver):
    ended = []
    run = driver.submit(generate([]), on_end=ended.append)
    assert ended == [run] and run.outcome() == []


class Background:
    """Run the background work of plans when the test asks for it."""

    def __init__(self):
        self.pending = []

    def __call__(self, work, then):
        future = Future()
        self.pending.append((work, then, future))
        return future

    def execute(self):
        work, then, future = self.pending.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        then(future.result)


def test_plan_in_the_background_holds_up_no_step(driver):
    background = Background()
    run = driver.submit(generate([request()]), background=background)
    driver.step()
    assert not run.ids
    background.execute()
    while not background.pending:
        driver.step()
    assert not run.ended
    background.execute()
    assert run.ended and run.outcome() == driver.run(generate([request()]))


def test_plan_cancelled_before_its_background_work_never_runs(driver):
    def plan():
        pytest.fail("the work was cancelled")
        yield []

    background = Background()
    driver.cancel(driver.submit(plan(), background=background))
    background.execute()


def test_plan_cancelled_during_its_background_work_submits_nothing(driver):
    closed = []

    def plan():
        driver.cancel(run)  # as the engine's thread could while this code runs
        try:
            yield [request()]
        finally:
            closed.append(True)

    background = Background()
    run = driver.submit(plan(), background=background)
    background.execute()
    assert closed and not run.ids


def test_likeliest_of_several_candidates_is_that_of_the_reference(tiny, driver):
    wanted = request(seed=3)
    found = driver.run(likeliest(tiny, wanted, 3))
    results = tiny.run(candidates_of(wanted, 3))
    reference, end = Likelihood(tiny.model, wanted.prompt), tiny.defaults.eos_token_ids[0]
    best = max(results, key=lambda one: reference.of([*tiny.tokenizer.encode(one.text, bos=False), end]))
    assert (found.text, found.seed) == (best.text, best.seed)

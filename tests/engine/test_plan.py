"""Plans: rounds of requests and scores, carried out by one driver on an engine that somebody else steps."""

import pytest

from gesso.engine.plan import PlanRun, candidates_of, generate, likeliest, score
from gesso.engine.request import Request, Score
from gesso.settings import Diffusion
from tests.likelihood import Likelihood

SMALL = Diffusion(canvas_length=16, steps=2)


def request(**changes):
    return Request(**{"prompt": (2, 200, 210), "max_new_tokens": 16, "diffusion": SMALL, "seed": 5} | changes)


def carry_out(run, engine):
    run.start()
    while not run.ended:
        for event in engine.step():
            run.take(event)
    return run.result


def test_a_plan_is_sent_results_in_the_order_of_its_requests(tiny):
    def plan():
        asked = [request(seed=1, max_new_tokens=40), request(seed=2), Score(prompt=(2, 200), texts=((9,), (8, 7)))]
        first = yield asked
        second = yield [request(seed=3)]
        return first, second

    run = PlanRun(plan(), tiny.engine)
    (one, two, scores), (three,) = carry_out(run, tiny.engine)
    assert [result.seed for result in (one, two, three)] == [1, 2, 3]
    reference = Likelihood(tiny.model, (2, 200))
    assert scores == (reference.of((9,)), reference.of((8, 7)))
    assert len(run.ids) == 4 and not tiny.engine.busy


def test_scoring_happens_in_passes_of_the_engine_and_others_go_on_meanwhile(tiny):
    other = tiny.engine.submit(request(seed=9, diffusion=Diffusion(canvas_length=16, steps=40, stopping="fixed")))
    run = PlanRun(score(tiny, (2,) * 600, [(5, 6), (7, 8, 9)]), tiny.engine)
    run.start()
    while not run.ended:
        events = tiny.engine.step()
        assert any(event.request_id == other and event.kind == "draft" for event in events)
        for event in events:
            run.take(event)
    assert len(run.result) == 2
    tiny.engine.cancel(other)
    tiny.engine.step()


def test_a_plan_may_have_only_so_many_requests_in_the_engine_at_once(tiny):
    asked = candidates_of(request(), 5)
    run = PlanRun(generate(asked), tiny.engine, at_once=2)
    run.start()
    most = 0
    while not run.ended:
        most = max(most, len(tiny.engine.running))
        for event in tiny.engine.step():
            run.take(event)
    assert most == 2 and len(run.ids) == 5
    assert run.result == carry_out(PlanRun(generate(asked), tiny.engine), tiny.engine)


def test_a_failed_request_ends_the_plan_and_cancels_the_others_of_its_round(tiny):
    def broken(canvas_C, prediction, moment):
        raise RuntimeError("my sampler is broken")

    asked = [request(max_new_tokens=400), request(diffusion=Diffusion(canvas_length=16, steps=2, sampler=broken))]
    run = PlanRun(generate(asked), tiny.engine)
    with pytest.raises(RuntimeError, match="my sampler"):
        carry_out(run, tiny.engine)
    assert run.ended and not tiny.engine.busy
    assert all(run.take(event) for event in tiny.engine.step()), "the events of those cancelled are ignored"


def test_an_error_of_the_plan_itself_ends_it(tiny):
    def plan():
        yield [request()]
        raise ValueError("no second round")

    run = PlanRun(plan(), tiny.engine)
    with pytest.raises(ValueError, match="no second round"):
        carry_out(run, tiny.engine)
    assert run.ended and not tiny.engine.busy


def test_a_round_with_a_request_that_cannot_be_run_leaves_nothing_behind(tiny):
    run = PlanRun(generate([request(), request(max_new_tokens=0)]), tiny.engine)
    with pytest.raises(ValueError, match="max_new_tokens"):
        run.start()
    assert run.ended and not tiny.engine.busy
    tiny.engine.step()


def test_a_plan_that_needs_no_request_ends_at_once(tiny):
    run = PlanRun(generate([]), tiny.engine)
    assert run.start() and run.result == []


def test_the_likeliest_of_several_candidates_is_that_of_the_reference(tiny):
    asked = request(seed=3)
    found = carry_out(PlanRun(likeliest(tiny, asked, 3), tiny.engine), tiny.engine)
    results = tiny.run(candidates_of(asked, 3))
    reference, end = Likelihood(tiny.model, asked.prompt), tiny.defaults.eos_token_ids[0]
    best = max(results, key=lambda one: reference.of([*tiny.tokenizer.encode(one.text, bos=False), end]))
    assert (found.text, found.seed) == (best.text, best.seed)

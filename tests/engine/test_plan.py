"""Plans return valid answers only."""

from dataclasses import replace

import pytest

from gesso import ConstraintError, Result, Usage
from gesso.constraints.answer_check import AnswerCheck
from gesso.engine.plan import AnswerToCheck, generate, retry_seed
from gesso.engine.request import ATTEMPTS, Request

SEED = 2**64 - 1


def request(*right: str) -> Request:
    """Return a request whose answer must be one of these texts."""
    return Request(prompt=(1,), max_new_tokens=1, seed=SEED, validate=AnswerCheck(json_schema={"enum": list(right)}))


def run(requests, *rounds, attempts=ATTEMPTS, **result):
    """Run a plan with the texts of each round. Return its results and the seeds of all requests."""
    plan, seeds = generate(requests, attempts), []
    asked = next(plan)
    try:
        for texts in rounds:
            seeds += [one.seed for one in asked]
            usage = Usage(prompt_tokens=5, completion_tokens=2, denoising_steps=3)
            done = [Result(text, (7,), "stop", usage, one.seed) for text, one in zip(texts, asked, strict=True)]
            asked = plan.send([replace(one, **result) for one in done])
            if isinstance(asked[0], AnswerToCheck):
                right = [(one.check.json_schema["enum"], one.result.text) for one in asked]
                asked = plan.send([None if text in texts else "odd" for texts, text in right])
    except StopIteration as stop:
        return stop.value, seeds
    raise AssertionError("the plan asks for more")


def test_invalid_answers_are_written_again_with_other_seeds():
    results, seeds = run([request("a"), request("b"), request("c")], "xbx", "xc", "a")
    assert [result.text for result in results] == ["a", "b", "c"]
    again = retry_seed(SEED, 1)
    assert seeds == [SEED, SEED, SEED, again, again, retry_seed(SEED, 2)]
    assert len(set(seeds)) == 3 and all(0 <= seed < 2**64 for seed in seeds)
    assert [result.seed for result in results] == [retry_seed(SEED, 2), SEED, again]


def test_usage_covers_all_attempts():
    ((result,), _) = run([request("a")], "x", "a")
    assert result.usage == Usage(prompt_tokens=5, completion_tokens=2, denoising_steps=6)


def test_an_answer_that_stays_invalid_is_an_error_with_the_reason():
    with pytest.raises(ConstraintError, match="in 3 attempts: odd"):
        run([request("a"), request("b")], "ax", "x", "x")


def test_a_stream_is_not_written_again():
    with pytest.raises(ConstraintError, match="in a stream"):
        run([request("a")], "x", attempts=1)


@pytest.mark.parametrize("cut", [{"finish_reason": "length"}, {"finish_reason": "cancelled"}, {"stop": "\n"}])
def test_texts_that_were_cut_off_are_not_checked(cut):
    ((result,), _) = run([request("a")], "x", **cut)
    assert result.text == "x"

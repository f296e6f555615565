"""Settings at and beyond their bounds are rejected by name or answered, without harm to other clients."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.attack.watching import (
    QUICK,
    assert_nothing_left,
    assert_refused,
    attack,
    bystanders,
    short,
    text,
)
from tools.load.wire import COMPLETIONS

pytestmark = pytest.mark.attack

CANVAS = tiny.CONFIG["canvas_length"]  # longest canvas of the server
CONTEXT = tiny.CONFIG["text_config"]["max_position_embeddings"]

BEYOND = {
    "t_max and t_min above float32": {"t_max": 1e308, "t_min": 1e308},
    "t_max above float32": {"t_max": 1e39},
    "t_max and t_min that are zero in float32": {"t_max": 1e-46, "t_min": 1e-46},
    "t_min that is denormal in float32": {"t_min": 1e-40},
    "entropy_bound above float32": {"entropy_bound": 1e308},
    "confidence above float32": {"confidence": 1e308},
    "a canvas longer than the model's": {"canvas_length": CANVAS + 1},
    "a canvas of the whole context": {"canvas_length": CONTEXT - 100},
    "no steps": {"steps": 0},
    "too many steps": {"steps": 1001},
    "negative stability": {"stability": -1},
    "greed above 1": {"greed": 1.0001},
    "a pin beyond the answer": {"pins": {"99999999": 200}},
    "a pin beyond the vocabulary": {"pins": {"0": 2**31}},
    "too many candidates": {"drafts": {"candidates": 21}},
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_setting_beyond_its_bounds_is_rejected(server, name):
    assert_refused(attack(server, COMPLETIONS, short(diffusion=QUICK | BEYOND[name])), 400)


def test_the_longest_canvas_is_answered(server):
    diffusion = QUICK | {"canvas_length": CANVAS, "steps": 2}
    assert attack(server, COMPLETIONS, short(max_tokens=CANVAS, diffusion=diffusion)).status == 200


def test_extreme_temperatures_are_answered_and_do_not_fail_other_requests(server):
    """Prefill takes several steps, so other requests are in the batch when a temperature is first used."""
    extreme = [{"t_max": 100.0, "t_min": 100.0}, {"t_max": 1e-3, "t_min": 1e-3}]  # the bounds of the settings
    bodies = [short(prompt=f"{n}" + "x" * 2000, diffusion=QUICK | extreme[n % 2]) for n in range(4)]
    with bystanders(server), ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: attack(server, COMPLETIONS, body), bodies))
    assert all(text(answer) for answer in answers)


def test_tiny_temperatures_give_json_or_an_error(server):
    for more in ({"logprobs": 5}, {"regex": "[a-z]{4}"}, {"choice": ["yes", "no"]}):
        for tiny_value in (1e-3, 1e-20, 1e-40, 1e-46, 5e-324):
            diffusion = QUICK | {"t_max": tiny_value, "t_min": tiny_value}
            answer = attack(server, COMPLETIONS, short(diffusion=diffusion, **more))
            if answer.status == 200:
                assert answer.json["choices"]  # strict JSON: no NaN
            else:
                assert_refused(answer, 400)


def test_candidates_after_a_long_prompt_do_not_stall_others(server):
    body = short(prompt="x" * 800, suffix="\nreturn\n", best_of=4, diffusion=QUICK | {"steps": 2})
    with bystanders(server):
        answer = attack(server, COMPLETIONS, body)
        assert answer.status in (200, 400), (answer.status, answer.message)


EXTREMES = {
    "canvas_length": [1, 2, CANVAS, 0, -1, CANVAS + 1, CONTEXT, 2**31, 2**63],
    "steps": [1, 2, 0, -1, 1001, 2**63],
    "stability": [0, 3, 1000, -1, 1001, 2**63],
    "settle": [0, 3, 1000, 1001, 2**63],
    "preset": ["fast", "quality", "none such"],
    "write": ["canvas", "tokens", "verified", "none such"],
    "sampler": ["ddim", "entropy-bound", "autoregressive", "none such"],
    "stopping": ["plateau", "fixed", "none such"],
    "eos_settles": [True, False, 1],
    "pins": [{"0": 200}, {"15": 5}, {"16": 200}, {"0": 384}, {"999999999": 200}, {"-1": 200}],
    "greed": [0, 1, 0.5, -0.1, 1.1, 5e-324],
    "top_k": [0, 1, 5, 1_000_000, -1, 1_000_001, 2**63],
    "top_p": [0, 1, 0.5, -0.1, 1.1, 5e-324],
    "min_p": [0, 1, 0.5, -0.1, 1.1, 5e-324],
}
FLOATS = ("t_max", "t_min", "entropy_bound", "confidence")
floats = st.sampled_from([5e-324, 1e-46, 1e-40, 1e-7, 1e7, 3.4e38, 1e39, 1e308, 0.0, -1.0]) | st.floats(0, 10)
one_setting = st.one_of(
    st.sampled_from([(name, value) for name, values in EXTREMES.items() for value in values]),
    st.tuples(st.sampled_from(FLOATS), floats),
    floats.map(lambda value: ("temperatures", value)),
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    changed=st.lists(one_setting, min_size=1, max_size=3).map(dict),
    more=st.sampled_from([{}, {"logprobs": 20}, {"logprobs": 21}, {"n": 2}, {"n": 17}, {"seed": 2**64}])
    | st.sampled_from([{"regex": "[a-z]{3}"}, {"choice": ["a", "b"]}, {"temperature": 5e-324}, {"temperature": 2.1}]),
)
def test_no_setting_causes_a_server_error(server, changed, more):
    if "temperatures" in changed:
        changed["t_max"] = changed["t_min"] = changed.pop("temperatures")
    answer = attack(server, COMPLETIONS, short(diffusion=QUICK | changed, **more))
    if answer.status == 200:
        assert answer.json["choices"]  # strict JSON: no NaN
    else:
        assert_refused(answer, 400)


def test_these_attacks_leave_nothing(server):
    with bystanders(server):
        pass
    assert_nothing_left(server)

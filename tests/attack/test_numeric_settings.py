"""Settings at the edges of their bounds and beyond: refused by name, or answered, and never at the cost of others."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gesso.bench.wire import COMPLETIONS
from tests import tiny
from tests.attack.watching import (
    QUICK,
    assert_nothing_left,
    assert_refused,
    attack,
    attacked_server,
    bystanders,
    short,
)

pytestmark = pytest.mark.attack
server = attacked_server("--max-batch", "4")

CANVAS = tiny.CONFIG["canvas_length"]  # the longest canvas that the server may be asked for
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
def test_a_setting_beyond_its_bounds_is_refused(server, name):
    assert_refused(attack(server, COMPLETIONS, short(diffusion=QUICK | BEYOND[name])), 400)


def test_the_longest_canvas_is_answered(server):
    diffusion = QUICK | {"canvas_length": CANVAS, "steps": 2}
    assert attack(server, COMPLETIONS, short(max_tokens=CANVAS, diffusion=diffusion)).status == 200


def test_temperatures_that_overflow_fail_nobody_else(server):
    """The prompts take several steps to read, so that others are in the batch when a temperature is first used."""
    extreme = [{"t_max": 1e308, "t_min": 1e308}, {"t_max": 1e-46, "t_min": 1e-46}]
    asked = [short(prompt=f"{n}" + "x" * 2000, diffusion=QUICK | extreme[n % 2]) for n in range(6)]
    with bystanders(server):
        threads = [threading.Thread(target=attack, args=(server, COMPLETIONS, body)) for body in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_tiny_temperatures_give_json_or_an_error(server):
    for more in ({"logprobs": 5}, {"regex": "[a-z]{4}"}, {"choice": ["yes", "no"]}):
        for tiny_value in (1e-3, 1e-20, 1e-40, 1e-46, 5e-324):
            diffusion = QUICK | {"t_max": tiny_value, "t_min": tiny_value}
            answer = attack(server, COMPLETIONS, short(diffusion=diffusion, **more))
            if answer.status == 200:
                assert answer.json["choices"]  # strict JSON: no NaN
            else:
                assert_refused(answer, 400)


def test_candidates_after_a_long_prompt_do_not_stop_others(server):
    body = short(prompt="x" * 3000, suffix="\nreturn\n", best_of=16, diffusion=QUICK | {"steps": 2})
    with bystanders(server):
        answer = attack(server, COMPLETIONS, body)
        assert answer.status in (200, 400), (answer.status, answer.message)


positive = st.floats(0, 10, exclude_min=True) | st.sampled_from([5e-324, 1e-46, 1e-40, 1e-7, 1e7, 3.4e38, 1e39, 1e308])
any_float = positive | st.sampled_from([0.0, -1.0, -1e308])
diffusions = st.fixed_dictionaries(
    {"canvas_length": st.sampled_from([1, 2, 16, 64]) | st.sampled_from([0, -1, CANVAS + 1, CONTEXT, 2**31, 2**63])},
    optional={
        "preset": st.sampled_from(["fast", "quality", "none such"]),
        "steps": st.sampled_from([1, 2, 8, 0, -1, 1001, 2**63]),
        "entropy_bound": any_float,
        "t_max": any_float,
        "t_min": any_float,
        "stability": st.sampled_from([0, 1, 3, 1000, -1, 1001, 2**63]),
        "confidence": any_float,
        "greed": st.floats(-0.5, 1.5),
        "settle": st.sampled_from([0, 1, 3, 1000, 1001, 2**63]),
        "sampler": st.sampled_from(["entropy-bound", "ancestral", "ddim", "argmax", "confidence-threshold", "x"]),
        "stopping": st.sampled_from(["stable", "plateau", "fixed"]),
        "eos_settles": st.booleans(),
        "pins": st.dictionaries(
            st.sampled_from(["0", "3", "15", "16", "999999999"]), st.sampled_from([5, 200, 383, 384])
        ),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    diffusion=diffusions,
    more=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2) | st.sampled_from([5e-324, 2.0001, -1.0]),
            "logprobs": st.sampled_from([0, 1, 20, 21]),
            "n": st.sampled_from([1, 2, 17]),
            "seed": st.sampled_from([0, 2**64 - 1, 2**64]),
        },
    ),
)
def test_no_setting_is_a_fault_of_the_server(server, diffusion, more):
    diffusion.setdefault("steps", 8)
    answer = attack(server, COMPLETIONS, short(diffusion=diffusion, **more))
    if answer.status == 200:
        assert answer.json["choices"]
    else:
        assert_refused(answer, 400)


def test_nothing_is_left_of_all_this(server):
    with bystanders(server):
        pass
    assert_nothing_left(server)

"""What samplers and stopping rules declare, and the statistics that they get.

C positions, V vocabulary.
"""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from gesso.checkpoint.generation import GenerationDefaults
from gesso.diffusion.moment import Sampler
from gesso.diffusion.prediction import BLOCK, LIKELY, top_tokens
from gesso.diffusion.stopping import Stopping
from gesso.engine.engine import Engine
from gesso.errors import CheckpointError, InputError
from gesso.presets import read_preset
from gesso.removed import REMOVED
from gesso.serve.openai.text_fields import CompletionFields
from gesso.serve.validation import from_validation
from tests.engine_requests import SMALL, finish, request

# --- the most probable tokens -----------------------------------------------------------------------------------------


def test_equal_tokens_are_in_ascending_order():
    assert top_tokens(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]]), 4).tolist() == [[1, 3, 2, 4]]


@pytest.mark.parametrize("levels", [2, 50, 100_000], ids=lambda levels: f"{levels} values")
def test_top_tokens_are_the_first_of_a_stable_sort(levels):
    """Few values: most tokens are equal. Without blocks, with as many as tokens to find, and with more."""
    for vocabulary in (LIKELY * BLOCK + 1, LIKELY * BLOCK, 40 * BLOCK):
        values_RV = torch.randint(0, levels, (5, vocabulary)).float()
        expected_RK = values_RV.sort(dim=-1, descending=True, stable=True).indices[:, :LIKELY]
        assert torch.equal(top_tokens(values_RV, LIKELY), expected_RK)


# --- declarations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watching(Sampler):
    """Accept everything, and note what there is to read."""

    seen: list
    memory: int = 0
    needs: ClassVar = frozenset()

    def __call__(self, canvas_C, prediction, moment):
        self.seen.append((prediction.logits_CV is not None, len(moment.history)))
        return prediction.candidate_C, torch.ones_like(canvas_C, dtype=torch.bool)

    def __hash__(self):
        return id(self)


class WatchingLogits(Watching):
    needs = frozenset({"logits"})


def run(tiny, *rules: dict):
    """Run requests with these rules in one batch."""
    engine = Engine(tiny.model, tiny.decode)
    fixed = {"steps": 4, "stopping": "fixed"}
    wanted = [
        request(seed=seed, max_new_tokens=8, diffusion=replace(SMALL, **fixed | rule))
        for seed, rule in enumerate(rules)
    ]
    finish(engine, *(engine.submit(each) for each in wanted))


@pytest.mark.parametrize("memory", [0, 1, 2, 1000])
def test_a_sampler_gets_the_logits_and_the_history_that_it_declares(tiny, memory):
    plain, reading = Watching([], memory), WatchingLogits([], memory)
    run(tiny, {"sampler": plain}, {"sampler": reading})
    lengths = [min(step, memory) for step in range(4)]
    assert plain.seen == [(False, length) for length in lengths]
    assert reading.seen == [(True, length) for length in lengths]


@pytest.mark.parametrize("memory", [0, 2])
def test_a_stopping_rule_gets_the_logits_of_this_step_and_the_history_that_it_declares(tiny, memory):
    seen = []

    class Judge(Stopping):
        needs = frozenset({"logits"})

        def __call__(self, history, judged_C, settings):
            seen.append(([past.logits_CV is not None for past in history], settings.steps))
            return False

    Judge.memory = memory
    run(tiny, {"stopping": Judge()})
    assert seen == [([False] * min(step, memory) + [True], 4) for step in range(4)]


def test_a_function_gets_the_whole_history_and_no_logits(tiny):
    seen = []

    def sampler(canvas_C, prediction, moment):
        seen.append(len(moment.history))
        assert prediction.logits_CV is None
        return prediction.candidate_C, torch.ones_like(canvas_C, dtype=torch.bool)

    run(tiny, {"sampler": sampler, "stopping": lambda history, judged_C: len(history) == 3})
    assert seen == [0, 1, 2]


class Odd(Sampler):
    needs = frozenset({"topmost"})

    def __call__(self, canvas_C, prediction, moment):
        raise AssertionError


class Bare:
    needs = frozenset({"logits"})

    def __call__(self, canvas_C, prediction, moment):
        raise AssertionError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": Odd()}, "needs must be among logits, got .*topmost"),
        ({"sampler": Bare()}, "derives from gesso.diffusion.moment.Sampler"),
        ({"stopping": WatchingLogits([])}, "which is a rule for sampler"),
        ({"stopping": 3}, "must be a name, a function, or an object"),
    ],
)
def test_rules_that_cannot_work_are_rejected_at_once(tiny, settings, words):
    with pytest.raises(InputError, match=words):
        tiny.request("a", **settings, max_new_tokens=4)


# --- names that are gone ----------------------------------------------------------------------------------------------

GONE = {"argmax": "sampler", "credit": "sampler", "plateau": "stopping", "schedule": "stopping"}
SETTINGS = ("slide", "accept_ratio")


def in_python(tiny, main, tmp_path, name, value):
    with pytest.raises(InputError) as caught:
        tiny.generate("a", max_new_tokens=4, **{name: value})
    return str(caught.value)


def in_a_command(tiny, main, tmp_path, name, value):
    return main("generate", "a", f"--{name.replace('_', '-')}", str(value)).err


def in_a_file_of_defaults(tiny, main, tmp_path, name, value):
    path = tmp_path / "config.toml"
    path.write_text(f"[generate]\n{name.replace('_', '-')} = {json.dumps(value)}\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GESSO_CONFIG", str(path))
        return main("generate", "a").err


def in_a_preset_file(tiny, main, tmp_path, name, value):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"diffusion": {name: value}}))
    with pytest.raises(InputError) as caught:
        read_preset(path)
    return str(caught.value)


def in_generation_config(tiny, main, tmp_path, name, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({"gesso": {name: value}}))
    with pytest.raises(CheckpointError) as caught:
        GenerationDefaults.from_directory(tmp_path, tiny.config)
    return str(caught.value)


def over_http(tiny, main, tmp_path, name, value):
    with pytest.raises(ValueError) as caught:
        CompletionFields.model_validate({"prompt": "abc", "diffusion": {name: value}})
    return from_validation(caught.value).body["error"]["message"]


SURFACES = [in_python, in_a_command, in_a_file_of_defaults, in_a_preset_file, in_generation_config, over_http]


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("name", GONE)
def test_a_removed_rule_is_an_error_that_names_its_replacement(tiny, main, tmp_path, surface, name):
    assert "examples.samplers.rules:" in REMOVED[name]
    assert REMOVED[name] in surface(tiny, main, tmp_path, GONE[name], name)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_removed_setting_is_an_error_that_says_why(tiny, main, tmp_path, surface, name):
    assert "was removed, because" in REMOVED[name]
    assert REMOVED[name] in surface(tiny, main, tmp_path, name, 1)

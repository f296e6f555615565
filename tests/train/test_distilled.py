"""Training on recorded canvases: what is shown, the loss, rejected runs, and resuming."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gesso.errors import InputError
from gesso.train import state
from gesso.train.batch import collate, corrupt
from gesso.train.distilled import Distilled
from gesso.train.objective import Objective, ObjectiveSettings
from gesso.train.recipe import DistillSettings, load
from gesso.train.run import eos_of, train
from gesso.train.shared_recipe import shared_recipe
from gesso.train.trajectories import (
    RecordedCanvas,
    Trajectories,
    Trajectory,
    read_shard,
    recorded_files,
    shard_path,
    write_shard,
)
from tests.distill.conftest import g, recording, short  # noqa: F401 (fixtures)
from tests.train.test_trainer import losses, write_recipe

BATCHES = {"rank": 0, "world": 1, "stride": 1, "canvas_lengths": (16,)}


@pytest.fixture
def recipe(tmp_path, rows, short, recording):  # noqa: F811
    text = write_recipe(tmp_path, rows, short, steps=4).read_text()
    text = text.replace("scratch = true", "").replace('canvases_per_example = "all"', "self_conditioning = 0.75")
    path = tmp_path / "distill.toml"
    path.write_text(text + f'\n[distill]\ntrajectories = ["{recording}"]\nrows = 0.25\n')
    return load(path)


def source(recipe, g, **changes):  # noqa: F811
    settings = replace(recipe.distill, **changes)
    return Distilled(settings, recipe.data, g.tokenizer, eos_of(g.directory))


def test_a_rejected_text_is_never_trained_on(recipe, g, recording):  # noqa: F811
    stored = [entry for path in recorded_files(recording)[1:] for entry in read_shard(path)]
    accepted = {(*entry.before, *entry.text) for entry in stored if entry.accepted}
    rejected = {(*entry.before, *entry.text) for entry in stored if not entry.accepted}
    assert accepted and rejected and not accepted & rejected
    for objective in ("trajectory", "ordinary"):
        batches = source(recipe, g, objective=objective).batches(4, 0, **BATCHES)
        shown = [example for _ in range(20) for example in next(batches)]
        own = {example.tokens for example in shown if example.source == "recorded run"}
        assert own == accepted
        assert sum(example.source != "recorded run" for example in shown) == 20, "one row in each batch"
        assert all((example.trajectory is not None) == (objective == "trajectory") for example in shown
                   if example.source == "recorded run")  # fmt: skip


def test_batches_are_a_function_of_their_number(recipe, g):  # noqa: F811
    batches = source(recipe, g).batches(4, 0, **BATCHES)
    first = [next(batches) for _ in range(7)]

    def content(batch):
        return [(example.tokens, example.source, example.line) for example in batch]

    assert content(next(source(recipe, g).batches(4, 5, **BATCHES))) == content(first[5])
    halves = [next(source(recipe, g).batches(4, 5, rank, 2, stride=1, canvas_lengths=(16,))) for rank in (0, 1)]
    assert content([*halves[0], *halves[1]]) == content(first[5])
    with pytest.raises(InputError, match=r"objective.canvas_lengths = \[16\]"):
        source(recipe, g).batches(4, 0, 0, 1, stride=1, canvas_lengths=(32,))
    with pytest.raises(InputError, match="leave room for a recorded"):
        source(recipe, g, rows=0.9).batches(4, 0, **BATCHES)


def make_batch(examples, conditioning, seed=0):
    batch = collate(
        examples, canvas_length=16, per_example=1, eos=1, pad=0, learn_text="response", seed=seed, first=0,
        conditioning=conditioning,
    )  # fmt: skip
    return batch, corrupt(batch, 384, conditioning=conditioning, seed=seed, first=0)


def test_examples_with_self_conditioning_show_later_steps_and_the_others_the_first(recipe, g):  # noqa: F811
    examples = [example for _, example in zip(range(8), _recorded(recipe, g), strict=False)]
    batch, noise = make_batch(examples, 0.5)
    assert len(noise.conditioned) == 4 and noise.recorded_K.all()
    for i, example in enumerate(examples):
        canvases, temperatures = example.trajectory.canvas_NC, example.trajectory.temperature_N
        shown = [step for step, tokens in enumerate(canvases) if tokens.tolist() == noise.noisy_KC[i].tolist()]
        assert len(shown) == 1 and (shown[0] > 0) == (i in noise.conditioned)
        assert noise.steps_K[i] == shown[0]
        for step in range(shown[0]):
            assert noise.before_DKC[step, i].tolist() == canvases[step].tolist()
            assert noise.temperature_DK[step, i] == temperatures[step]
    assert len(examples[0].trajectory.canvas_NC) == 5
    assert len(next(_recorded(recipe, g, depth=2)).trajectory.canvas_NC) == 3
    picked = {make_batch(examples[:1], 1.0, seed)[1].noisy_KC[0].numpy().tobytes() for seed in range(40)}
    assert len(picked) == len(examples[0].trajectory.canvas_NC) - 1, "every later step comes up"


def _recorded(recipe, g, **changes):  # noqa: F811
    for batch in source(recipe, g, rows=0.0, **changes).batches(4, 0, **BATCHES):
        yield from batch


def test_rows_in_the_same_batch_keep_their_noise(recipe, g):  # noqa: F811
    examples = next(source(recipe, g).batches(4, 0, **BATCHES))
    _, mixed = make_batch(examples, 0.5)
    plain = [replace(example, trajectory=None) for example in examples]
    _, alone = make_batch(plain, 0.5)
    rows = [i for i, example in enumerate(examples) if example.trajectory is None]
    assert rows and mixed.recorded_K.tolist() == [i not in rows for i in range(4)]
    assert torch.equal(mixed.noisy_KC[rows], alone.noisy_KC[rows])
    assert torch.equal(mixed.before_DKC[0, rows], alone.noisy_KC[rows]) and (mixed.temperature_DK[:, rows] == 1).all()
    assert (mixed.steps_K[rows] == 1).all()
    assert alone.recorded_K is None and not torch.equal(mixed.noisy_KC[0], alone.noisy_KC[0])


@pytest.mark.parametrize("objective", ["trajectory", "mixed"])
def test_losses_of_recorded_canvases_are_those_of_the_process(recipe, g, objective):  # noqa: F811
    """The decoder losses, recomputed step by step with the inference code of the model."""
    examples = [example for _, example in zip(range(16), _recorded(recipe, g), strict=False)]
    if objective == "mixed":
        examples[1::2] = [replace(example, trajectory=None) for example in examples[1::2]]
    batch, noise = make_batch(examples, 0.75)
    assert len(set(noise.steps_K[::2])) > 2, "different steps are shown"
    with torch.no_grad():
        found = Objective(g.model, ObjectiveSettings(), certainty=0.7)(batch, noise).decoder_B
        for i, example in enumerate(examples):
            cache = g.model.new_cache(1, 400)
            g.model.encode(torch.tensor([example.tokens[: example.spans[0][0]]]), cache)
            logits = None
            for step in range(noise.steps_K[i] if i in noise.conditioned else 0):
                before = g.model.denoise(noise.before_DKC[step, i][None], cache, logits)
                logits = before / noise.temperature_DK[step, i]
            log_CV = g.model.denoise(noise.noisy_KC[i][None], cache, logits)[0].log_softmax(-1)
            target_C = batch.clean_KC[i]
            right_C = (log_CV.argmax(-1) == target_C) & (example.trajectory is not None)
            entropy_C = -(log_CV.exp() * log_CV).sum(-1)
            loss_C = -log_CV[torch.arange(16), target_C] + 0.7 * right_C * entropy_C
            torch.testing.assert_close(found[i], loss_C.mean(), rtol=1e-4, atol=1e-5)


def test_a_resumed_run_equals_an_uninterrupted_one(recipe, tmp_path):
    for out, parts in (("whole", (4,)), ("parts", (2, 4))):
        for steps in parts:
            settings = replace(recipe.run, out=str(tmp_path / out), steps=steps, save_every=2)
            # The rate depends on the number of steps: a constant one leaves the parts the same.
            constant = replace(recipe.optimizer, min_lr=recipe.optimizer.lr, warmup=0)
            train(replace(recipe, run=settings, optimizer=constant), report=lambda _: None)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    whole, parts = (state.latest(tmp_path / out) / "weights.safetensors" for out in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_a_changed_recording_is_noticed_on_resuming(recipe, recording, tmp_path):  # noqa: F811
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in recorded_files(recording):
        (copy / path.name).write_bytes(path.read_bytes())
    recipe = replace(recipe, distill=replace(recipe.distill, trajectories=(str(copy),)))
    train(recipe, report=lambda _: None)
    entries = read_shard(shard_path(copy, 0))
    write_shard(shard_path(copy, 0), [replace(entry, accepted=True) for entry in entries], 16)
    with pytest.raises(InputError, match="00000.safetensors has changed"):
        train(recipe, report=lambda _: None)
    assert str(tmp_path) not in shared_recipe(recipe) and 'trajectories = ["copy"]' in shared_recipe(recipe)


def test_recordings_must_be_usable_together(recording, tmp_path):  # noqa: F811
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.json").write_text('{"canvas_length": 8}')
    with pytest.raises(InputError, match="canvases of one length"):
        Trajectories([recording, other])
    trajectory = Trajectory(np.zeros((2, 8), np.int32), np.ones(2, np.float32))
    write_shard(shard_path(other, 0), [RecordedCanvas(np.int32([2]), np.int32([5, 1]), trajectory, 0, False)], 8)
    with pytest.raises(InputError, match="accepted no run"):
        Trajectories([other])


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("objective", {"canvases_per_example": 2}), ("objective", {"draws": (2,)}),
        ("data", {"source": "a:b"}),
    ],
)  # fmt: skip
def test_settings_that_recorded_canvases_do_not_support_are_rejected(recipe, section, changes):
    with pytest.raises(InputError, match=r"\[distill\] needs"):
        replace(recipe, **{section: replace(getattr(recipe, section), **changes)})


@pytest.mark.parametrize("changes", [{"trajectories": ()}, {"objective": "both"}, {"certainty": -1.0}, {"rows": 1.0}])
def test_wrong_settings_are_rejected(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        DistillSettings(**{"trajectories": ("x",), **changes})

"""Training runs of a tiny model: learning, resuming, several processes, errors."""

import itertools
import json
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import gesso
from gesso import GessoError
from gesso.errors import InputError
from gesso.eval.scorer import scorer
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma, Layer
from gesso.train import state
from gesso.train.objective import Objective
from gesso.train.optimizers import learning_rate
from gesso.train.recipe import load
from gesso.train.run import train
from tests.tiny import CONFIG
from tests.train.conftest import watched
from tests.train.forked import start, train_in_group
from tests.waiting import PATIENCE

RECIPE = """
[model]
scratch = true

[data]
files = ["{data}"]
max_length = 512

[objective]
canvases_per_example = "all"

[optimizer]
lr = 3e-3
warmup = 5
weight_decay = 0.01

[run]
out = "{out}"
steps = {steps}
batch_size = 4
save_every = 4
"""


def write_recipe(tmp_path, rows, small, out="out", steps=12, extra=""):
    text = RECIPE.format(data=rows, out=tmp_path / out, steps=steps)
    text = text.replace("scratch = true", f'scratch = true\npath = "{small}"')
    path = tmp_path / f"{out}.toml"
    path.write_text(text + extra)
    return path


def packed_recipe(tmp_path, rows, small, out, steps, extra=""):
    path = write_recipe(tmp_path, rows, small, out=out, steps=steps, extra=extra)
    path.write_text(path.read_text().replace("max_length = 512", "max_length = 512\npack = true"))
    return path


def metrics(out):
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def losses(out):
    return [(line["step"], line["loss"], line["gradient"]) for line in metrics(out)]


def test_tiny_model_memorizes_its_examples(tmp_path, rows, small):
    examples = rows.read_text().splitlines(keepends=True)[:4]
    rows.write_text("".join(examples))
    recipe = load(write_recipe(tmp_path, rows, small, steps=180))
    run, optimizer = replace(recipe.run, save_every=180), replace(recipe.optimizer, lr=1.5e-2)
    train(replace(recipe, run=run, optimizer=optimizer), report=lambda _: None)
    tail = metrics(tmp_path / "out")[-20:]
    assert sum(line["loss"] for line in tail) / len(tail) < 0.1
    g = gesso.load(tmp_path / "out" / "model")
    for row in map(json.loads, examples):
        assert g.generate(row["prompt"], max_new_tokens=32, seed=1).text == row["completion"]


def stop_after(recipe, step):
    """Abort a run by an error right after the given step, like a power failure."""

    class Cut(Exception):
        pass

    def report(line):
        if line["step"] == step + 1:
            raise Cut

    try:
        train(recipe, report)
    except Cut:
        return


def test_packed_run_has_the_losses_of_a_padded_one(tmp_path, rows, small):
    for name, pack in (("padded", False), ("packed", True)):
        recipe = load(write_recipe(tmp_path, rows, small, out=name, steps=2))
        train(replace(recipe, data=replace(recipe.data, pack=pack)), report=lambda _: None)
    for one, other in zip(losses(tmp_path / "padded"), losses(tmp_path / "packed"), strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("write", [write_recipe, packed_recipe], ids=["padded", "packed"])
def test_resumed_run_has_identical_losses_and_weights(tmp_path, rows, small, write):
    for out, legs in (("whole", (4,)), ("legs", (2, 4))):
        recipe = load(write(tmp_path, rows, small, out=out, steps=4))
        for steps in legs:
            stop_after(replace(recipe, run=replace(recipe.run, save_every=2)), steps)
    assert losses(tmp_path / "legs") == losses(tmp_path / "whole")
    one, other = (gesso.load(tmp_path / name / "model").model for name in ("whole", "legs"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_two_processes_with_sharded_weights_equal_one(tmp_path, rows, small):
    """All weights with packing, which each process does for its own examples; and an adapter without."""
    adapter = '\n[lora]\nrank = 4\ntargets = ["attention", "experts"]\n'
    runs = []
    for name, extra in (("full", ""), ("adapter", adapter)):
        for out in (f"{name}-one", f"{name}-two"):
            write = write_recipe if extra else packed_recipe
            runs.append(write(tmp_path, rows, small, out=out, steps=2, extra=extra))
            if extra:
                runs[-1].write_text(runs[-1].read_text().replace("scratch = true", "scratch = false"))
    full, full_twice, lora, lora_twice = runs
    for recipe in (full, lora):
        train(load(recipe), report=lambda _: None)
    with ExitStack() as stack:
        ran = []
        for recipe in (full_twice, full_twice, lora_twice):  # the second time resumes a finished run
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ran.append((recipe, probe.getsockname()[1]))
    processes = [start(train_in_group, rank, ran) for rank in range(2)]
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    # Two steps only: AdamW turns the sign of a tiny gradient into a full step, so rounding errors grow quickly.
    for name, tolerance in (("full", 1e-5), ("adapter", 1e-5)):
        pairs = zip(metrics(tmp_path / f"{name}-one"), metrics(tmp_path / f"{name}-two"), strict=True)
        for one, two in pairs:
            assert one["step"] == two["step"]
            assert one["loss"] == pytest.approx(two["loss"], rel=tolerance)
            assert one["gradient"] == pytest.approx(two["gradient"], rel=10 * tolerance)
    models = [gesso.load(tmp_path / name / "model").model for name in ("full-one", "full-two")]
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert (a - b).norm() < 1e-3 * a.norm()
    one, two = (load_file(tmp_path / f"adapter-{n}" / "adapter" / "adapter_model.safetensors") for n in ("one", "two"))
    assert one.keys() == two.keys()
    for name, factor in one.items():
        assert factor.any() and (factor - two[name]).norm() < 0.02 * factor.norm(), name


def test_accumulated_batches_equal_one_large_batch(tmp_path, rows, small):
    """Compare one batch of eight with two of four. Rows of one length have the same order in both."""
    rows.write_text("".join(json.dumps({"prompt": f"{i}: ", "completion": 9 * str(i)}) + "\n" for i in range(8)))
    recipe = load(write_recipe(tmp_path, rows, small, steps=1))
    found = []
    for size, times in ((8, 1), (4, 2)):
        out = tmp_path / f"size-{size}"
        train(replace(recipe, run=replace(recipe.run, batch_size=size, accumulate=times, out=str(out))), lambda _: None)
        found.append(metrics(out)[0])
    for name in ("loss", "decoder", "encoder", "gradient"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-4), name


def test_workers_prepare_the_same_batches(tmp_path, rows, small):
    recipe = load(write_recipe(tmp_path, rows, small, steps=5))
    for name, workers in (("none", 0), ("two", 2)):
        train(replace(recipe, run=replace(recipe.run, out=str(tmp_path / name), workers=workers)), lambda _: None)
    assert losses(tmp_path / "none") == losses(tmp_path / "two")


def test_batches_take_the_canvas_lengths_in_turn(tmp_path, rows, small):
    lengths = []

    def note(arguments, _):
        lengths.append(arguments[0].clean_KC.shape[-1])

    recipe = load(write_recipe(tmp_path, rows, small, steps=4))
    with watched(Objective, note):
        train(replace(recipe, objective=replace(recipe.objective, canvas_lengths=(8, 32))), lambda _: None)
    assert lengths == [8, 32, 8, 32]
    one = replace(recipe, objective=replace(recipe.objective, canvas_lengths=(8,)))
    train(replace(one, run=replace(one.run, out=str(tmp_path / "one"), steps=1)), lambda _: None)
    assert gesso.load(tmp_path / "one" / "model").config.canvas_length == 8, "the length of the training"
    assert gesso.load(tmp_path / "out" / "model").config.canvas_length == 16, "the model's own, after several lengths"


def test_initial_residual_stream_has_constant_scale():
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    config = Config.from_dict(CONFIG | {"text_config": CONFIG["text_config"] | layers})
    model = DiffusionGemma(config)
    begin(model, seed=0)
    sizes = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda _, given, out: sizes.append(out[0].square().mean().sqrt().item()))
    model.encode(torch.randint(0, config.vocab_size, (1, 64)), model.new_cache(1, 128))
    assert len(sizes) == 4 and all(0.7 < size < 2.0 for size in sizes), (
        "the residual stream neither vanishes nor explodes"
    )


def test_autocast_narrows_the_residual_stream(tmp_path, rows, small):
    dtypes = set()

    def note(arguments, _):
        dtypes.add(arguments[0].dtype)

    recipe = load(write_recipe(tmp_path, rows, small, steps=1))
    with watched(Layer, note):
        train(replace(recipe, run=replace(recipe.run, autocast="bfloat16")), lambda _: None)
    assert dtypes == {torch.bfloat16}


def test_run_out_of_time_resumes_exactly(tmp_path, rows, small):
    recipe = load(write_recipe(tmp_path, rows, small, steps=4))
    train(replace(recipe, run=replace(recipe.run, out=str(tmp_path / "whole"))), lambda _: None)
    for legs in range(4):
        assert len(losses(tmp_path / "out")) == legs if legs else True
        train(recipe, lambda _: None, minutes=0)  # out of time after one step
        assert (tmp_path / "out" / "model").is_dir(), "the current model is exported"
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")


def test_loss_not_finite_stops_the_run_and_saves_its_examples(tmp_path, rows, small):
    steps = itertools.count(1)

    def break_fifth(_, losses):
        return replace(losses, total_B=losses.total_B * float("nan")) if next(steps) == 5 else losses

    with watched(Objective, break_fifth), pytest.raises(GessoError, match="step 5 is not finite") as caught:
        train(load(write_recipe(tmp_path, rows, small)), report=lambda _: None)
    saved = next((tmp_path / "out").glob("not-finite-*.json"))
    assert str(saved) in str(caught.value)
    assert json.loads(saved.read_text())["step"] == 5
    examples = json.loads(saved.read_text())["examples"]
    assert len(examples) == 4
    assert all(example["source"] == str(rows) and example["line"] >= 1 for example in examples)
    assert state.latest(tmp_path / "out").name == "step-00000004"


@pytest.mark.parametrize("extra", ["autocast", "checkpoint_activations"])
def test_memory_options_keep_the_losses(tmp_path, rows, small, extra):
    recipe = load(write_recipe(tmp_path, rows, small, steps=3))
    changed = {"autocast": "bfloat16"} if extra == "autocast" else {"checkpoint_activations": True}
    for name, options in (("plain", {}), ("changed", changed)):
        run = replace(recipe.run, out=str(tmp_path / name), **options)
        train(replace(recipe, run=run), report=lambda _: None)
    tolerance = 0.02 if extra == "autocast" else 1e-5
    for one, two in zip(losses(tmp_path / "plain"), losses(tmp_path / "changed"), strict=True):
        assert one[1] == pytest.approx(two[1], rel=tolerance)


def test_eval_during_training_leaves_losses_unchanged(tmp_path, rows, small):
    plain = load(write_recipe(tmp_path, rows, small, out="plain", steps=4))
    train(plain, report=lambda _: None)
    scored = load(write_recipe(tmp_path, rows, small, out="scored", steps=4, extra=EVAL))
    train(scored, report=lambda _: None, score=scorer(small, "sudoku", count=2, seed=0, steps=2))
    assert losses(tmp_path / "plain") == losses(tmp_path / "scored")
    lines = metrics(tmp_path / "scored")
    assert [("sudoku_exact" in line) for line in lines] == [False, True, False, True]
    assert 0 <= lines[1]["sudoku_cells"] <= 1
    assert lines[1]["sudoku_steps"] >= 2


EVAL = """
[eval]
task = "sudoku"
every = 2
count = 2
steps = 2
"""


def test_learning_rate_warms_up_and_follows_a_cosine():
    rates = [learning_rate(1.0, 0.1, 4, step, 12) for step in range(13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[8] == pytest.approx(0.55)
    assert rates[12] == pytest.approx(0.1)
    assert rates[4:] == sorted(rates[4:], reverse=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text + "\n[trainer]\n", "trainer"),
        (lambda text: text.replace("lr = 3e-3", "learning_rate = 3e-3"), "learning_rate"),
        (lambda text: text.replace("batch_size = 4", ""), "batch_size"),
        (lambda text: text.replace("steps = 12", "steps = 0"), "steps"),
        (lambda text: text.replace("lr = 3e-3", "lr = -1.0"), "lr"),
        (lambda text: text.replace('"all"', '"most"'), "canvases_per_example"),
        (lambda text: text.replace("[run]", "[run"), "TOML"),
    ],
)
def test_invalid_recipe_is_rejected_by_name(tmp_path, rows, small, change, words):
    path = write_recipe(tmp_path, rows, small)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=words):
        load(path)

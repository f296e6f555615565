"""The recipe that is derived from data: a function of the rows, the model, the device and the options."""

import json
import shutil
from dataclasses import asdict

import pytest

from gesso import bundled
from gesso.adapters import LoraSettings
from gesso.checkpoint.random_weights import config_of
from gesso.errors import InputError
from gesso.train import plan as module
from gesso.train.plan import TrainOptions, make_plan
from gesso.train.recipe import (
    DataSettings,
    HeldOutSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RunSettings,
)


def write(path, count, length=8):
    rows = [{"prompt": f"{number}: ", "completion": "x" * (1 + number % length)} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def plan(tmp_path, small):  # noqa: F811
    def make(count=100, device="cpu", length=8, **given):
        data = write(tmp_path / "chats.jsonl", count, length)
        return make_plan(TrainOptions(**{"data": (data,), "model": str(small), **given}), device)

    return make


def test_a_small_model_learns_few_rows_by_heart(plan):
    learned = plan(200)
    recipe, run = learned.recipe, learned.recipe.run
    assert (learned.rows, learned.held_out, recipe.held_out) == (200, 0, None)
    assert (run.batch_size, run.accumulate, run.out) == (8, 1, "runs/chats")
    assert run.steps == 552 >= 200 * 22 / 8, "22 epochs, in eight parts of the same length"
    assert recipe.data.max_length == learned.longest == 15
    assert (recipe.lora.rank, recipe.lora.alpha) == (64, 128.0)
    assert recipe.lora.targets == ("attention", "mlp", "experts", "self_conditioning")
    assert (recipe.objective.draws, recipe.objective.encoder_weight) == ((2,), 0.0)
    assert recipe.optimizer.min_lr == recipe.optimizer.lr / 10
    assert recipe.optimizer.warmup == round(run.steps / 10)
    assert plan(200) == learned


def test_more_rows_than_a_small_model_learns_by_heart_are_held_out_in_part(plan):
    found = plan(300)
    assert (found.rows, found.held_out) == (285, 15)
    assert found.recipe.held_out.every == found.recipe.run.steps / 8, "so the last step is evaluated"


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"), [(5, 1, 400), (20, 6, 100), (50, 8, 40), (300, 8, 15.7), (2000, 8, 3)]
)
def test_few_rows_get_small_batches_and_many_epochs(plan, rows, batch, epochs):
    found = plan(rows)
    assert found.recipe.run.batch_size == batch
    assert found.epochs == pytest.approx(epochs, rel=0.03)


def test_long_responses_are_shown_to_a_small_model_more_often(plan):
    usual, long = plan(60, length=27), plan(60, length=55)
    assert usual.epochs == pytest.approx(34, rel=0.05)
    assert long.epochs == pytest.approx(2 * usual.epochs, rel=0.05)


def test_the_memory_of_a_gpu_is_forecast(plan):
    assert plan().memory is None
    expected = plan(device="cuda").memory
    assert expected is not None and 0 < expected.weights < expected.adapter < expected.step
    assert any(line.startswith("memory   about 1.") for line in plan(device="cuda").lines())
    quantized = plan(device="cuda", quantize="fp8").memory
    assert quantized is not None and quantized.weights < expected.weights


def test_options_take_precedence(plan):
    found = plan(
        epochs=2, lr=1e-3, rank=4, targets=("experts",), batch_size=10, seed=3, out="o", eval_every=7, patience=2,
        held_out=("none",), log=("wandb",), quantize="int4",
    ).recipe  # fmt: skip
    assert (found.run.steps, found.run.batch_size, found.run.seed, found.run.out) == (21, 10, 3, "o")
    assert (found.optimizer.lr, found.lora.rank, found.lora.alpha, found.lora.targets) == (1e-3, 4, 8.0, ("experts",))
    assert (found.held_out, found.run.log, found.model.quantize) == (None, ("wandb",), "int4")
    assert plan(steps=9).recipe.run.steps == 9


def test_held_out_files_leave_all_rows_to_train_on(plan, tmp_path):
    found = plan(held_out=(write(tmp_path / "held.jsonl", 7),))
    assert (found.rows, found.held_out) == (100, 7)


def test_device_decides_precision_canvas_and_batches(plan, monkeypatch):
    cpu, gpu = plan().recipe, plan(device="cuda").recipe
    assert (cpu.model.dtype, gpu.model.dtype) == ("float32", "bfloat16")
    assert (cpu.objective.canvas_lengths, gpu.objective.canvas_lengths) == ((12,), (16,))
    monkeypatch.setitem(module.TOKENS, "cuda", 720)
    found = plan(device="cuda", batch_size=16).recipe.run
    assert (found.batch_size, found.accumulate) == (4, 4), "five rows of 142 tokens fit, and batches have one size"


def test_long_rows_are_skipped_and_long_texts_cut(plan, tmp_path):
    extra = tmp_path / "long.jsonl"
    rows = [{"prompt": "a", "completion": "b" * 300}, {"text": "c" * 300}, {"text": "d"}]
    extra.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = str(tmp_path / "chats.jsonl")
    found = plan(20, data=(data, str(extra)), max_length=100, held_out=("none",))
    assert (found.cut, found.recipe.data.cut, found.recipe.data.max_length) == (1, True, 100)
    (skipped,) = found.rejected
    assert skipped.line == 1 and "too long: 303 tokens" in skipped.reason
    shown = "\n".join(found.lines())
    assert "long.jsonl:1: too long" in shown and "1 texts are longer than 100 tokens" in shown
    assert found.rows == 20 + 4 + 1, "the long text has four sections"


def test_mostly_unusable_data_is_rejected_with_reasons(plan, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a"}\n' * 3 + '{"text": "a"}\n')
    with pytest.raises(InputError, match=r"3 of 4 rows cannot be used:\n.*bad\.jsonl:1: expected either messages"):
        plan(data=(str(bad),))


def test_rate_falls_with_the_width(plan, large):
    assert plan(model=str(large)).recipe.optimizer.lr == 1.5e-4, "the published rate"
    assert plan().recipe.optimizer.lr > 1.5e-4


def test_lines_say_what_was_chosen(plan):
    lines = plan(50).lines()
    assert lines[0] == "data     50 rows to train on, none held out; longest 14 tokens"
    assert "41 epochs" in lines[3] and len(lines) == 5


@pytest.mark.parametrize(
    ("data", "name"),
    [("a/chats.jsonl.gz", "chats"), ("owner/rows:test", "rows"), ("b.parquet", "b"), ("o/r:data/x.json", "r")],
)
def test_run_has_the_name_of_the_data(data, name):
    assert module._name(data) == name


def test_held_out_rows_may_be_longer_than_those_to_train_on(plan, tmp_path, small):  # noqa: F811
    found = plan(held_out=(write(tmp_path / "held.jsonl", 20, length=20),))
    assert found.longest == found.recipe.data.max_length == 26
    assert found.held_out == 20


def test_a_row_over_the_limit_keeps_texts_whole(plan, tmp_path):
    extra = tmp_path / "long.jsonl"
    extra.write_text(json.dumps({"prompt": "a", "completion": "b" * 300}) + "\n" + json.dumps({"text": "c"}) + "\n")
    found = plan(20, data=(str(tmp_path / "chats.jsonl"), str(extra)), max_length=100).recipe.data
    assert (found.max_length, found.cut) == (100, False)


def test_sections_of_long_texts_have_tokens_before_their_canvas(plan, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text((json.dumps({"text": "word " * 100}) + "\n") * 12)
    found = plan(data=(str(texts),), max_length=16, device="cuda").recipe
    assert found.data.cut and found.objective.canvas_lengths == (8,)


def test_mostly_unusable_data_can_be_checked(small, tmp_path):  # noqa: F811
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a"}\n' * 3 + '{"text": "a"}\n')
    found = make_plan(TrainOptions(data=(str(bad),), model=str(small), held_out=("none",)), "cpu", check=True)
    assert len(found.rejected) == 3


@pytest.fixture
def large(tmp_path):
    """The configuration and tokenizer of a checkpoint in the shape of the 26B, without weights."""
    directory = tmp_path / "large"
    directory.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(bundled.directory() / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config_of("26b-a4b").raw, default=dict))
    return directory


@pytest.mark.parametrize(("rows", "held_out", "steps", "every"), [(20, 2, 336, 42), (200, 10, 136, 17)])
def test_from_a_billion_parameters_on_the_recipe_is_the_published_one(tmp_path, large, rows, held_out, steps, every):
    data = write(tmp_path / "chats.jsonl", rows)
    plan = make_plan(TrainOptions(data=(data,), model=str(large)), "cuda")
    batch = min(16, (rows - held_out) // 3)
    assert (plan.rows, plan.held_out) == (rows - held_out, held_out)
    assert asdict(plan.recipe) == {
        "model": asdict(ModelSettings(path=str(large), dtype="bfloat16")),
        "data": asdict(DataSettings(files=(data,), max_length=plan.longest, on_bad_row="skip", pack=True)),
        "objective": asdict(ObjectiveSettings(canvases_per_example=4, canvas_lengths=(64,))),
        "optimizer": asdict(OptimizerSettings(lr=1.5e-4, min_lr=1.5e-4 / 10, warmup=round(steps / 10))),
        "run": asdict(
            RunSettings(out="runs/chats", steps=steps, batch_size=batch, save_every=every, checkpoint_activations=True)
        ),
        "lora": asdict(LoraSettings(rank=16, alpha=32.0, targets=("attention", "mlp"))),
        "held_out": asdict(HeldOutSettings(every=every)),
        "eval": None,
        "distill": None,
    }

"""The recipe that is derived from data: a function of the rows, the model, the device and the options."""

import json

import pytest

from gesso.errors import InputError
from gesso.train import plan as module
from gesso.train.plan import Given, make_plan


def write(path, count, length=8):
    rows = [{"prompt": f"{number}: ", "completion": "x" * (1 + number % length)} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def plan(tmp_path, small):  # noqa: F811
    def make(count=100, device="cpu", length=8, **given):
        data = write(tmp_path / "chats.jsonl", count, length)
        return make_plan(Given(**{"data": (data,), "model": str(small), **given}), device)

    return make


def test_defaults_fit_the_data(plan):
    found = plan(200)
    recipe, run = found.recipe, found.recipe.run
    assert (found.rows, found.held_out) == (190, 10)
    assert (run.batch_size, run.accumulate, run.out) == (16, 1, "runs/chats")
    assert run.steps == 136 >= 190 * 11 / 16, "2,000 rows shown at least: 11 epochs"
    assert recipe.data.max_length == found.longest == 15
    assert (recipe.lora.rank, recipe.lora.alpha, recipe.lora.targets) == (16, 32.0, ("attention", "mlp"))
    assert recipe.held_out.every == run.steps / 8, "so the last step is evaluated"
    assert recipe.optimizer.min_lr == recipe.optimizer.lr / 10
    assert recipe.optimizer.warmup == round(run.steps / 10)
    assert plan(200) == found


@pytest.mark.parametrize(("rows", "batch", "epochs"), [(5, 1, 400), (50, 16, 42.7), (2000, 16, 3)])
def test_few_rows_get_small_batches_and_many_epochs(plan, rows, batch, epochs):
    found = plan(rows)
    assert found.recipe.run.batch_size == batch
    assert found.epochs == pytest.approx(epochs, rel=0.02)
    assert (found.recipe.held_out is None) == (rows < 10)


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
    monkeypatch.setitem(module.TOKENS, "cuda", 400)
    found = plan(device="cuda", batch_size=16).recipe.run
    assert (found.batch_size, found.accumulate) == (4, 4), "five rows of 78 tokens fit, and batches have one size"
    monkeypatch.setattr(module, "LARGE", 1)
    assert plan(device="cuda").recipe.run.checkpoint_activations


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


def test_rate_falls_with_the_width(plan, monkeypatch):
    assert plan().recipe.optimizer.lr > 1.5e-4
    monkeypatch.setattr(module, "PUBLISHED_WIDTH", 64)
    assert plan().recipe.optimizer.lr == 1.5e-4


def test_lines_say_what_was_chosen(plan):
    lines = plan(50).lines()
    assert lines[0] == "data     48 rows to train on, 2 held out; longest 14 tokens"
    assert "42.7 epochs" in lines[3] and len(lines) == 5


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
    found = make_plan(Given(data=(str(bad),), model=str(small), held_out=("none",)), "cpu", check=True)
    assert len(found.rejected) == 3

"""Held-out rows: never trained on, evaluated under fixed noise, and the best weights are exported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train import held_out as module
from gesso.train.data import Dataset, Example
from gesso.train.held_out import HeldOut, choose, question
from gesso.train.recipe import DataSettings, HeldOutSettings, load
from gesso.train.run import train
from tests.train.test_trainer import losses, metrics, stop_after, write_recipe

EOS = 1
LORA = "\n[lora]\nrank = 4\nalpha = 8.0\ntargets = ['attention', 'mlp']\n"


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl", range(24))


def write(path, numbers):
    rows = [{"prompt": f"{number}: ", "completion": f"{number:b} or {number:x}"} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe_of(tmp_path, rows, small, out, steps=6, **settings):  # noqa: F811
    recipe = load(write_recipe(tmp_path, rows, small, out=out, steps=steps, extra=LORA))
    return replace(recipe, held_out=HeldOutSettings(**{"every": 2, **settings}))


def dataset(tokenizer, *files):
    return Dataset(DataSettings(files=tuple(map(str, files)), max_length=64), tokenizer, EOS)


@pytest.fixture(scope="module")
def tokenizer(tiny_directory):
    return Tokenizer.from_directory(tiny_directory)


def test_rows_are_chosen_by_their_content_and_equal_rows_together(tmp_path, tokenizer):
    data = dataset(tokenizer, write(tmp_path / "a.jsonl", range(100)))
    chosen = data.take_out(choose(data))
    assert len(chosen) == 5
    turned = dataset(tokenizer, write(tmp_path / "b.jsonl", reversed(range(100))))
    assert {example.tokens for example in turned.take_out(choose(turned))} == {example.tokens for example in chosen}
    twice = dataset(tokenizer, tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    held = twice.take_out(choose(twice))
    assert len(held) == 10 and {example.tokens for example in held} == {example.tokens for example in chosen}


@pytest.mark.parametrize(("rows", "held"), [(9, 0), (10, 2), (50, 2), (200, 10), (5000, 200)])
def test_five_percent_are_held_out_within_limits(tmp_path, tokenizer, rows, held):
    assert len(choose(dataset(tokenizer, write(tmp_path / "a.jsonl", range(rows))))) == held


def test_held_out_rows_are_never_trained_on(tmp_path, tokenizer):
    data = dataset(tokenizer, write(tmp_path / "a.jsonl", range(40)))
    held = {example.tokens for example in data.take_out(choose(data))}
    batches = data.batches(5)
    seen = {example.tokens for _ in range(20) for example in next(batches)}
    assert len(held) == 2 and len(seen) == 38 and not held & seen


def test_loss_of_a_step_does_not_depend_on_the_interval(tmp_path, rows, small):  # noqa: F811
    for every in (2, 3):
        train(recipe_of(tmp_path, rows, small, f"by{every}", every=every), report=lambda _: None)
    one, other = ({line["step"]: line for line in metrics(tmp_path / f"by{every}")} for every in (2, 3))
    assert [step for step in one if "held_out" in one[step]] == [2, 4, 6]
    assert one[6]["held_out"] == other[6]["held_out"]
    assert one[6]["held_out"] == pytest.approx(one[6]["held_out_decoder"] + one[6]["held_out_encoder"])
    assert [line["loss"] for line in one.values()] == [line["loss"] for line in other.values()]


def test_best_weights_are_exported_and_the_run_stops_early(tmp_path, rows, small, monkeypatch):  # noqa: F811
    found = iter([3.0, 1.0, 2.0, 1.5, 0.0])
    weights: dict[int, dict[str, torch.Tensor]] = {}

    def evaluate(self, step, objective):
        self.losses[step] = next(found)
        parameters = objective.model.named_parameters()
        weights[step] = {name: p.detach().clone() for name, p in parameters if p.requires_grad}
        return {module.KEY: self.losses[step]}

    monkeypatch.setattr(HeldOut, "evaluate", evaluate)  # losses that fall and rise at given steps
    recipe = recipe_of(tmp_path, rows, small, "out", steps=20, patience=2)
    train(recipe, report=lambda _: None)
    assert metrics(tmp_path / "out")[-1]["step"] == 8, "two evaluations after the best one, at step 4"
    exported = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    name = next(name for name in weights[4] if name.endswith("q_proj.weight_adapters.lora_default.B"))
    tensors = [tensor for key, tensor in exported.items() if "decoder" in key and key.endswith("q_proj.lora_B.weight")]
    assert any(torch.equal(weights[4][name], tensor) for tensor in tensors)
    assert not any(torch.equal(weights[8][name], tensor) for tensor in tensors)
    train(recipe, report=lambda _: pytest.fail("a run that stopped early is finished"))


def test_resumed_run_has_the_same_held_out_losses_and_adapter(tmp_path, rows, small):  # noqa: F811
    whole, legs = (recipe_of(tmp_path, rows, small, name, steps=6) for name in ("whole", "legs"))
    train(whole, report=lambda _: None)
    stop_after(legs, 3)
    train(legs, report=lambda _: None)
    assert losses(tmp_path / "legs") == losses(tmp_path / "whole")
    assert [line.get("held_out") for line in metrics(tmp_path / "legs")] == [
        line.get("held_out") for line in metrics(tmp_path / "whole")
    ]
    one, other = (tmp_path / name / "adapter" / "adapter_model.safetensors" for name in ("whole", "legs"))
    assert one.read_bytes() == other.read_bytes()


def test_only_the_weights_of_the_best_step_are_stored(tmp_path, rows, small):  # noqa: F811
    recipe = recipe_of(tmp_path, rows, small, "out", steps=6)
    held = HeldOut(recipe, recipe.held_out, [], Tokenizer.from_directory(small), EOS)
    Path(recipe.run.out).mkdir()
    held.resume([{"step": 2, "held_out": 2.0}, {"step": 4, "held_out": 1.0}])
    held.keep(4, {"a": torch.ones(2)})
    assert held.stored_step() == 4 and torch.equal(held.best_weights()["a"], torch.ones(2))
    held.keep(5, {"a": torch.zeros(2)})
    assert held.stored_step() == 4, "step 5 is not the best"


def test_samples_show_the_question_and_the_answer(tmp_path, small):  # noqa: F811
    tokenizer = Tokenizer.from_directory(small)
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    prompt = tokenizer.chat(messages[:1]).tokens
    example = Example((*prompt, *tokenizer.encode("So.", bos=False), 106), ((len(prompt), len(prompt) + 4),), "a", 1)
    rows = write(tmp_path / "rows.jsonl", range(12))
    recipe = recipe_of(tmp_path, rows, small, "out")
    Path(recipe.run.out).mkdir()
    shown = []
    held = HeldOut(recipe, recipe.held_out, [example], tokenizer, EOS, lambda model, prompts: ["No."], shown.extend)
    held.sample(2, torch.nn.Module())
    (sample,) = shown
    assert (sample.prompt, sample.answer, sample.expected) == ("Why?", "No.", "So.")
    assert json.loads((tmp_path / "out" / "samples.jsonl").read_text())["answer"] == "No."
    assert question(tokenizer.encode("The capital of France is"), tokenizer) == "The capital of France is"


@pytest.mark.parametrize("settings", [{}, {"files": ("none.jsonl",)}])
def test_too_few_rows_are_rejected(tmp_path, small, settings, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    Path("none.jsonl").write_text("")
    with pytest.raises(InputError, match="no row can be held out"):
        train(recipe_of(tmp_path, write(tmp_path / "a.jsonl", range(5)), small, "out", **settings), lambda _: None)


def test_held_out_rows_do_not_go_with_averaged_weights(tmp_path, rows, small):  # noqa: F811
    recipe = recipe_of(tmp_path, rows, small, "out")
    with pytest.raises(InputError, match=r"without run\.ema"):
        train(replace(recipe, run=replace(recipe.run, ema=0.9)), lambda _: None)


def test_samples_with_unusual_line_separators_survive_a_resumption(tmp_path, rows, small):
    recipe = load(write_recipe(tmp_path, rows, small, steps=1))
    recipe.run.out and (tmp_path / "out").mkdir()
    held_out = HeldOut(recipe, HeldOutSettings(every=1), [], None, 1)
    line = json.dumps({"step": 1, "answer": "a\u2028b\x85c"}, ensure_ascii=False) + "\n"
    held_out.samples_file.write_text(line + '{"step"', encoding="utf-8")
    held_out.resume([{"step": 1, "held_out": float("nan")}, {"step": 2, "held_out": 1.0}])
    assert held_out.samples_file.read_text(encoding="utf-8") == line
    assert held_out.best == 2, "a loss that is not a number is never the best"

"""Muon: orthogonalized steps, skipped steps, and resuming."""

from dataclasses import replace

import torch

from gesso.train.muon import Muon, orthogonal
from gesso.train.recipe import load
from gesso.train.run import train
from tests.train.test_trainer import losses, metrics, write_recipe


def test_muon_orthogonalizes_matrices_and_resumes_exactly(tmp_path, rows, small):
    straight = orthogonal(torch.randn(3, 40, 24, generator=torch.Generator().manual_seed(0)))
    sizes = torch.linalg.svdvals(straight)
    assert sizes.min() > 0.5 and sizes.max() < 1.5
    recipe = load(write_recipe(tmp_path, rows, small, steps=6))
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, kind="muon"))
    for out, legs in (("whole", (6,)), ("legs", (2, 6))):
        for steps in legs:
            run = replace(recipe.run, out=str(tmp_path / out), steps=6, save_every=2)
            if steps == 2:  # two runs that are out of time after one step
                for _ in range(2):
                    train(replace(recipe, run=run), lambda _: None, minutes=0)
            else:
                train(replace(recipe, run=run), lambda _: None)
    assert losses(tmp_path / "whole") == losses(tmp_path / "legs")
    encoder = [line["encoder"] for line in metrics(tmp_path / "whole")]
    assert encoder[-1] < encoder[0] - 0.3


def test_muon_skips_the_step_if_found_inf_is_set():
    weight = torch.nn.Parameter(torch.randn(4, 6))
    before, optimizer = weight.detach().clone(), Muon([weight], lr=0.1, momentum=0.9, weight_decay=0.1)
    weight.grad, optimizer.found_inf = torch.full((4, 6), float("nan")), torch.tensor(1.0)
    optimizer.step()
    assert torch.equal(weight, before)
    weight.grad, optimizer.found_inf = torch.ones(4, 6), torch.tensor(0.0)
    optimizer.step()
    assert weight.isfinite().all() and not torch.equal(weight, before)

"""Training of the tower that reads Sudokus, on grids of 3 x 3 cells."""

import json
import random

import pytest
import torch

import gesso
from examples.sudoku_images import train
from examples.sudoku_images.stream import Stream, batch, loader, random_grid
from examples.sudoku_images.tower import Targets, new_tower, see
from gesso.bundled import SOLVER

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def targets():
    g = gesso.load(SOLVER)
    return Targets(g.model, g.tokenizer)


def test_pictures_are_a_function_of_seed_and_number():
    pixels, digits = batch(range(4), 0, 3)
    assert pixels.shape == (4, 81, 768) and pixels.dtype == torch.uint8 and digits.shape == (4, 9)
    again, _ = batch(range(2, 4), 0, 3)
    assert torch.equal(again, pixels[2:])
    for other in (batch(range(4), 1, 3), batch(range(4), 0, 3, held_out=True)):
        assert not torch.equal(other[0], pixels)


def test_workers_draw_the_pictures_of_one_process():
    alone, shared = (loader(Stream(2, 0, 3), workers) for workers in (0, 2))
    for _ in range(2):
        assert torch.equal(next(alone)[1], next(shared)[1])


def test_half_of_the_grids_break_the_rules_of_sudoku():
    def repeats(grid):
        rows = [grid[i : i + 9].replace("0", "") for i in range(0, 81, 9)]
        return any(len({*row}) < len(row) for row in rows)

    assert 60 < sum(repeats(random_grid(random.Random(seed), 9)) for seed in range(200)) < 140


def test_pictures_in_a_batch_are_seen_as_one_by_one(targets):
    vision = new_tower(3, 320, 0, CPU)
    pixels, _ = batch(range(3), 0, 3)
    together = see(vision, pixels, torch.float32)
    alone = torch.stack([vision(one, 9, 9, torch.float32) for one in pixels])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_loss_is_least_at_the_embeddings_of_the_digits(targets):
    digits = torch.tensor([[5, 3, 0], [9, 1, 2]])
    soft = torch.cat([targets.first_DH[digits[:, :1]], targets.rest_DH[digits[:, 1:]]], dim=1)
    assert torch.equal(targets.distances(soft).argmin(-1), digits)
    assert targets.loss(soft, digits) < 0.01 < targets.loss(soft + 2, digits)
    assert targets.loss(soft, digits.flip(0)) > 5


def test_a_short_run_learns_and_logs_held_out_accuracy(tmp_path):
    options = ["--out", str(tmp_path), "--side", "3", "--steps", "30", "--batch", "8", "--drawn", "8", "--workers", "1"]
    options += ["--first", "32", "--shown", "8", "--pool", "64", "--hardest", "0", "--held-out", "8", "--every", "0"]
    options += ["--lr", "0.01"]
    train.main([*options, "--device", "cpu"])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 31)]
    first, last = (sum(line["loss"] for line in part) for part in (lines[:5], lines[-5:]))
    assert last < 0.8 * first
    assert {"cells", "clues", "grids", "difficulty", "pictures"} <= lines[-1].keys()

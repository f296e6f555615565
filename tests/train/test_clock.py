"""Training while the wall clock is set."""

import itertools
import json
import time

import pytest

from gesso.train.recipe import load
from gesso.train.run import train
from tests.train.test_trainer import write_recipe

DAY = 86_400.0


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_minutes_and_speed_of_a_training_run_ignore_jumps_of_the_wall_clock(tmp_path, rows, small, monkeypatch, jump):
    began, jumps = time.time(), itertools.count()
    monkeypatch.setattr(time, "time", lambda: began + jump * next(jumps))
    train(load(write_recipe(tmp_path, rows, small, steps=3)), report=lambda _: time.time(), minutes=60)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["tokens_per_second"] > 1 for line in lines), "a step has not taken a day"

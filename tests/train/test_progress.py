"""The progress of a run: one line per report, with held-out loss, memory and time left."""

import re

import torch

from gesso.train.held_out import HeldOutSample
from gesso.train.progress import TrainingProgress

CPU = torch.device("cpu")


def metrics(step, **more):
    return {"step": step, "loss": 2.0, "tokens_per_second": 1234.0, **more}


def test_plain_lines_have_losses_speed_memory_and_time_left(capsys):
    seconds = iter(range(0, 100, 5))
    with TrainingProgress(20, CPU, clock=lambda: next(seconds)) as shown:
        for step in range(1, 5):
            shown.step(metrics(step, **({"held_out": 3.0} if step == 2 else {})))
    first, second, last = capsys.readouterr().err.splitlines()  # at steps 1, 2 and 4: not more than one in ten seconds
    assert re.fullmatch(r"step 1/20 · loss 2\.0000 · 1,234 tokens/s · \d+\.\d GB", first)
    assert re.fullmatch(r"step 2/20 · loss 2\.0000 · held out 3\.0000 · .* · 1:30 left", second)
    assert re.fullmatch(r"step 4/20 · loss 2\.0000 · held out 3\.0000 · .* · 1:20 left", last)


def test_samples_are_shown_on_one_line_each_without_control_characters(capsys):
    sample = HeldOutSample(step=1, prompt="a\nb" + "c" * 300, answer="\x1b[2Jd\ne [bold]", expected="")
    with TrainingProgress(20, CPU) as shown:
        shown.samples([sample])
    prompt, answer = capsys.readouterr().err.splitlines()
    assert prompt == "  …" + "c" * 200
    assert "\x1b" not in answer and answer.endswith("d e [bold]")


def test_nothing_is_shown_if_not_visible(capsys):
    with TrainingProgress(20, CPU, visible=False) as shown:
        shown.step(metrics(20, held_out=1.0))
        shown.samples([HeldOutSample(step=1, prompt="a", answer="b", expected="c")])
    assert capsys.readouterr().err == ""

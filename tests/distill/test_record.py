"""Recorded runs are the runs: every canvas follows from the one before, and the last prediction is the text."""

import shutil
from dataclasses import replace

import pytest
import torch

from gesso import GessoError, InputError
from gesso.backends.torch import summarize
from gesso.diffusion.canvas import Process
from gesso.distill import record as recording_module
from gesso.distill.prompts import RowPrompts, TaskPrompts
from gesso.distill.record import record
from gesso.eval.own_data import SCORES
from gesso.train.data import Dataset
from gesso.train.recipe import DataSettings
from gesso.train.trajectories import Trajectories, read_index, read_shard, recorded_files
from tests.distill.conftest import OPTIONS, Words
from tests.full_disk import full_disk
from tests.other_process import other_process_with


def entries(directory):
    found = [entry for path in recorded_files(directory)[1:] for entry in read_shard(path)]
    return [replace(entry, before=entry.before.tolist(), text=entry.text.tolist()) for entry in found]


@torch.no_grad()
def replayed(g, request, entry, number):
    """Run the network on the recorded canvases. Return the canvas after each step, and the last argmax."""
    process = Process(
        settings=request.diffusion, source=g.engine.source, seed=request.seed, vocab_size=g.config.vocab_size,
        eos=request.eos, device=torch.device("cpu"),
    )  # fmt: skip
    cache = g.model.new_cache(1, len(entry.before))
    prompt = len(request.prompt)
    for piece in (entry.before[:prompt], entry.before[prompt:]):  # as the engine reads them: to the last bit
        if piece:
            g.model.encode(torch.tensor([piece]), cache)
    canvas, previous, after = process.blank(number, 16, {}), None, []
    for i, tokens in enumerate(entry.trajectory.canvas_NC):
        assert canvas.tokens_C.tolist() == tokens.tolist()
        logits_CV = g.model.denoise(canvas.tokens_C[None], cache, previous)[0] / float(
            entry.trajectory.temperature_N[i]
        )
        canvas = process.advance(canvas, summarize(g.model, logits_CV, process.candidates(canvas, logits_CV)))
        previous = logits_CV[None]
        after.append(canvas)
    return after


def test_replaying_a_step_from_the_recorded_canvas_gives_the_next_one(g, recording):
    found = entries(recording)
    assert len(found) > len(Words()), "some runs have two full canvases"
    numbers = {}
    for entry in found:
        number = numbers[entry.run] = numbers.get(entry.run, -1) + 1
        request = Words().ask(g, entry.run, OPTIONS).request
        after = replayed(g, request, entry, number)
        assert after[-1].reason is not None and all(canvas.reason is None for canvas in after[:-1])
        text = after[-1].result_C.tolist()
        ended = entry.text[-1] in request.eos
        assert text[: len(entry.text)] == entry.text and (ended or len(entry.text) == 16)


def test_entries_follow_the_runs_and_their_verifier(g, recording):
    for entry in entries(recording):
        request = Words().ask(g, entry.run, OPTIONS).request
        (result,) = g.run([request])
        before = tuple(entry.before[len(request.prompt) :])
        kept = [token for token in entry.text if token not in request.eos]
        assert tuple(entry.before[: len(request.prompt)]) == request.prompt
        assert result.tokens[: len(before)] == before
        assert list(result.tokens[len(before) : len(before) + len(kept)]) == kept
        assert entry.accepted == (entry.run % 2 == 0)


def test_a_stop_string_ends_the_recorded_text(g, tmp_path):
    class Stopped(Words):
        def ask(self, g, index, options):
            whole = super().ask(g, index, options)
            (result,) = g.run([whole.request])
            return super().ask(g, index, {**options, "stop": result.text[4]})

    assert record(g, Stopped(2), tmp_path, {}, OPTIONS, batch=2)
    for entry in entries(tmp_path):
        (result,) = g.run([Stopped(2).ask(g, entry.run, OPTIONS).request])
        assert result.finish_reason == "stop" and entry.text == [*result.tokens, g.eos_token_id]


def test_an_interrupted_recording_continues_with_the_same_runs(g, recording, tmp_path, monkeypatch):
    monkeypatch.setattr(recording_module, "SHARD", 2)  # six runs instead of hundreds
    assert record(g, Words(), tmp_path / "whole", {"model": "short"}, OPTIONS, batch=3)
    names = [path.name for path in recorded_files(tmp_path / "whole")]
    assert len(names) == 4
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    for name in (names[0], names[2]):
        (tmp_path / "part" / name).unlink()
    with pytest.raises(InputError, match="no complete recording"):
        Trajectories([tmp_path / "part"])
    assert not record(g, Words(), tmp_path / "part", {"model": "short"}, OPTIONS, batch=3, minutes=0)
    shown = []
    assert record(
        g, Words(), tmp_path / "part", {"model": "short"}, OPTIONS, batch=2, show=lambda *now: shown.append(now)
    )
    assert shown == [(5, 6), (6, 6)], "only the missing runs were recorded"
    for name in names:
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(InputError, match=r"recorded with different settings \(model, options\)"):
        record(g, Words(), tmp_path / "part", {"model": "another"}, {**OPTIONS, "steps": 6}, batch=2)
    assert read_index(recording)["accepted"] == 3


def test_what_a_killed_process_has_left_is_removed_and_a_second_process_is_rejected(g, recording, tmp_path):
    directory = tmp_path / "part"
    shutil.copytree(recording, directory)
    _, shard = recorded_files(directory)
    (directory / "index.json").unlink()
    shard.rename(directory / f".{shard.name}.0123456789abcdef.partial")
    names = {path.name for path in recording.iterdir()}
    with (
        other_process_with(directory / ".lock"),
        pytest.raises(GessoError, match="another process is writing to .*part"),
    ):
        record(g, Words(), directory, {"model": "short"}, OPTIONS, batch=3)
    assert record(g, Words(), directory, {"model": "short"}, OPTIONS, batch=3)
    assert {path.name for path in directory.iterdir()} == names
    assert shard.read_bytes() == (recording / shard.name).read_bytes()


def test_a_full_disk_is_one_line_and_the_recording_continues(g, tmp_path):
    directory = tmp_path / "full"
    assert not record(g, Words(), directory, {"model": "short"}, OPTIONS, batch=3, minutes=0)
    with full_disk(100), pytest.raises(GessoError, match="full cannot be written: File too large. Free some space"):
        record(g, Words(), directory, {"model": "short"}, OPTIONS, batch=3)
    assert not [path.name for path in directory.iterdir() if path.name.startswith(".")]
    assert record(g, Words(), directory, {"model": "short"}, OPTIONS, batch=3)


def test_text_without_canvases_of_several_steps_is_rejected(g, tmp_path):
    for options in ({"write": "tokens"}, {"steps": 1}):
        with pytest.raises(InputError, match="no canvases of several steps"):
            record(g, Words(), tmp_path, {}, options, batch=2)


def test_items_of_a_task_are_judged_by_its_score(tiny):
    prompts = TaskPrompts("structured", 30, 0, None)
    rows = list(prompts.rows())
    assert len(rows) == len(prompts) == 30 and any("tools" in row for row in rows)
    for index in range(30):
        asked = prompts.ask(tiny, index, {})
        (bad,) = tiny.run([asked.request]) if index == 0 else (None,)
        assert bad is None or not asked.accepts(bad)
    with pytest.raises(InputError, match="--accept must be one of fields, valid, share or none"):
        TaskPrompts("structured", 1, 0, "exact")
    with pytest.raises(InputError, match="--task must be one of"):
        TaskPrompts("decide", 1, 0, None)


def test_rows_are_answered_from_their_last_prompt(g, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "2 + 2 = ", "completion": "4"}\n{"prompt": "a", "completion": "b"}\n')
    dataset = Dataset(DataSettings(files=(str(path),), max_length=64), g.tokenizer, g.eos_token_id)
    prompts = RowPrompts([str(path)], dataset, None, 0, "exact")
    asked = prompts.ask(g, 0, {"max_new_tokens": 4})
    (result,) = g.run([asked.request])
    assert g.decode(asked.request.prompt) == "2 + 2 = "
    assert asked.accepts(result) == SCORES["exact"](result.text, ("4",))
    assert len(prompts) == 2 and list(prompts.rows()) == []

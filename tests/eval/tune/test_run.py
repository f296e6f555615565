"""A whole tuning run on the tiny model and on fake evaluators: split, verdict, files and command line."""

import json
import random
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import gesso
from gesso import Diffusion, InputError
from gesso.eval import OwnData, Sudoku
from gesso.eval.task import Item
from gesso.eval.tune import report, run
from gesso.eval.tune.candidates import DRAWN, candidates, changes
from gesso.eval.tune.measure import Bench, ByModel, ByTask
from gesso.eval.tune.search import DEFAULT, Goal, Measured, Search, Table
from gesso.presets import read_preset
from gesso.settings import STOPPINGS, WRITES
from tests.tiny import make

SHORT = {"max_new_tokens": 8}


# --- candidates and items ---------------------------------------------------------------------------------------------


def test_candidates_are_a_fixed_set_with_every_way_of_writing_and_stopping_rule():
    default = Diffusion(steps=24, entropy_bound=0.03, t_max=1.0, t_min=0.1)
    found = candidates(default, WRITES, 64, seed=0)
    assert found == candidates(default, WRITES, 64, seed=0) != candidates(default, WRITES, 64, seed=1)
    assert found[DEFAULT] == default and len(set(found)) == len(found) >= DRAWN + len(WRITES)
    assert {one.write for one in found} == set(WRITES)
    assert {one.stopping for one in found} == set(STOPPINGS)  # "fixed" is that of writing by token
    for name in ("steps", "entropy_bound", "confidence", "t_max", "stability", "eos_settles", "greed", "canvas_length"):
        assert len({getattr(one, name) for one in found}) > 1, name
    only = candidates(default, ["verified"], 64, seed=0)
    assert {one.write for one in only[1:]} == {"verified"}
    tokens = candidates(default, ["tokens"], 64, seed=0)
    assert len(tokens) > 5 and {one.write for one in tokens[1:]} == {"tokens"}
    assert changes(tokens[2], default) == "write tokens, greed 1"
    assert candidates(tokens[1], ["canvas"], 64, seed=0)[1].steps > 1  # a default without steps
    assert changes(default, default) == "default"
    assert changes(replace(default, steps=3, greed=1.0), default) == "steps 3, greed 1"


def rows(count: int, copies: int = 1) -> list[Item]:
    return [Item(name=f"{n}/{copy}", prompt=f"prompt {n}", expected="") for n in range(count) for copy in range(copies)]


def test_held_out_rows_are_disjoint_from_tuning_rows():
    for copies in (1, 3):
        tuning, held_out = run.split(rows(40, copies), 500, seed=0)
        assert len(tuning) + len(held_out) == 40 * copies
        assert not {item.prompt for item in tuning} & {item.prompt for item in held_out}
        assert len(held_out) == pytest.approx(20 * copies, abs=copies)
    assert len(run.split(rows(40), 5, seed=0)[1]) == 5
    assert run.split(rows(40), 9, seed=0) == run.split(rows(40), 9, seed=0) != run.split(rows(40), 9, seed=1)
    with pytest.raises(InputError, match="at least 6 different prompts"):
        run.split(rows(5, 4), 500, seed=0)
    tuning, held_out = run.draw(Sudoku(), 3, 4, seed=0)
    assert (len(tuning), len(held_out)) == (3, 4)
    assert not {item.prompt for item in tuning} & {item.prompt for item in held_out}


def test_items_on_both_sides_are_rejected(tiny):
    items = rows(9)
    with pytest.raises(InputError, match="both for tuning and held out"):
        run.tune(tiny, "x", ByModel(), items[:5], items[4:], writes=["verified"], options=SHORT)


# --- verdict ----------------------------------------------------------------------------------------------------------


def tuning_of(quality: float, passes: float, held_out: int = 500, chosen: int = 1, **changed) -> run.Tuning:
    """Return a run whose choice has a given probability of success and mean passes; the default has 0.8 and 10."""
    table = Table()
    for item in range(held_out):
        hard, luck = random.Random(f"hard {item}").random(), random.Random(f"luck {item}")
        for one, (share, steps) in enumerate(((0.8, 10.0), (quality, passes))):
            score = float(0.95 * hard + 0.05 * luck.random() < share)
            table.add(one, item, Measured({"exact": score, "valid": 1.0}, steps + luck.gauss(0, 2)))
    given = {
        "name": "fake", "goal": Goal(scores=("exact",), tolerance=0.02, held_out=held_out),
        "settings": (Diffusion(), Diffusion(steps=5)), "search": Search(table, [(8, [0, 1])], [0, 1]), "chosen": chosen,
        "held_out": table, "items": (8, held_out), "seed": 0, "seconds": 1.0, "ended": None,
    }  # fmt: skip
    return run.Tuning(**given | changed)


@pytest.mark.parametrize(
    ("tuning", "confirmed", "reason"),
    [
        (tuning_of(0.8, 5.0), True, "fewer passes beyond noise"),
        (tuning_of(0.8, 10.0), False, "do not differ from the default's beyond noise"),
        (tuning_of(0.7, 5.0), False, " points, and the tolerance is 2.0 points"),
        (tuning_of(0.8, 5.0, held_out=20), False, "More held-out items"),
        (tuning_of(0.8, 5.0, chosen=DEFAULT), False, "no settings take fewer passes"),
        (tuning_of(0.8, 5.0, held_out=0), False, "not confirmed on held-out items"),
        (tuning_of(0.8, 5.0, ended="interrupt"), False, "stopped before"),
        (tuning_of(0.8, 5.0, ended="time"), True, "fewer passes"),
        (tuning_of(0.8, 5.0, 0, DEFAULT, ended="time", search=Search(Table())), False, "before all settings had"),
    ],
)
def test_the_default_stays_unless_the_choice_is_confirmed(tuning, confirmed, reason):
    found, why = tuning.verdict
    assert found == confirmed and reason in why
    assert tuning.best == tuning.settings[int(confirmed)]
    text = report.summary(tuning)
    assert text.startswith(("fake: 2 settings; ", "fake: 0 of 2 settings, as time was short; "))
    assert ("keep the default settings" in text) == (not confirmed)
    assert json.loads(json.dumps(report.to_dict(tuning), allow_nan=False))["confirmed"] == confirmed
    if tuning.search.table.answers:
        ElementTree.fromstring(report.plot(tuning))


def test_another_score_that_falls_beyond_noise_is_a_veto():
    good = tuning_of(0.8, 5.0)
    for item, answer in good.held_out.answers[1].items():
        good.held_out.answers[1][item] = Measured({**answer.scores, "valid": float(item % 4 > 0)}, answer.passes)
    assert good.verdict == (False, "valid is lower beyond noise and by more than the tolerance")


# --- runs with a model ------------------------------------------------------------------------------------------------


def small(tiny, judge, tuning, held_out, **options) -> run.Tuning:
    few = {"writes": ["canvas", "tokens"], "options": SHORT, "seed": 1}
    return run.tune(tiny, "small", judge, tuning, held_out, **few | options)


@pytest.fixture
def quick(tiny, monkeypatch):
    """Few candidates of few steps: the canvases of the tiny model do not settle."""
    monkeypatch.setattr("gesso.eval.tune.candidates.DRAWN", 2)
    monkeypatch.setattr("gesso.eval.tune.measure.PRESETS", {"quality": Diffusion(steps=4)})
    monkeypatch.setattr(tiny, "defaults", replace(tiny.defaults, diffusion=Diffusion(steps=3)))
    return tiny


def test_the_same_seed_gives_the_same_result_and_progress_is_reported(quick):
    tuning, held_out = run.draw(Sudoku(), 4, 3, seed=0)
    stages = []
    one = small(quick, ByTask(Sudoku()), tuning, held_out, progress=lambda *stage: stages.append(stage))
    two = small(quick, ByTask(Sudoku()), tuning, held_out)
    assert (one.search, one.chosen, one.held_out, one.verdict) == (two.search, two.chosen, two.held_out, two.verdict)
    assert stages[0] == ("round 1: 6 settings", 0, 24) and stages[24][1:] == (24, 24)
    with pytest.raises(InputError, match="unknown score 'beauty'"):
        small(quick, ByTask(Sudoku()), tuning, held_out, scores=["beauty"])


def test_answers_without_a_reference_are_judged_by_the_model(quick):
    judge = ByModel()
    found = small(quick, judge, rows(8), [replace(item, prompt=f"x {item.prompt}") for item in rows(4)])
    assert found.goal.scores == ("likelihood", "agreement") and not found.goal.bounded
    answer = found.search.table.answers[DEFAULT][0]
    assert answer.scores["likelihood"] < 0 and 0 <= answer.scores["agreement"] <= 1
    assert "agreement with a run of the preset quality" in report.summary(found)
    assert {prompt for prompt, _ in judge.expected} >= {repr(item.prompt) for item in rows(8)}


def test_settings_that_take_far_more_passes_are_abandoned(quick):
    settings = [Diffusion(steps=steps, stopping="fixed") for steps in (2, 3, 9)]
    items = [replace(item, meta={"answers": ()}) for item in rows(24)]
    judge = ByTask(OwnData(data=(), kind="python"))
    bench = Bench(g=quick, judge=judge, items=items, settings=settings, options=SHORT, seed=0)
    found = Table()
    for answer in bench([0, 1, 2], range(24)):
        found.add(*answer)
    assert found.errors == {2: "more than 2 times the passes of the default"}
    assert [len(found.answers[one]) for one in (0, 1)] == [24, 24] and 2 <= len(found.answers[2]) < 24


def test_a_prompt_that_the_default_cannot_answer_is_named(quick):
    items = [*rows(7), Item(name="too long", prompt="1 " * 9000, expected="")]
    with pytest.raises(InputError, match="too long: .*context"):
        small(quick, ByModel(), items, [Item(name="y", prompt="y", expected="")])


# --- command line -----------------------------------------------------------------------------------------------------


def test_tune_ends_to_end_on_the_bundled_model(main, tmp_path, monkeypatch):
    monkeypatch.setattr("gesso.eval.tune.candidates.DRAWN", 0)
    prompts, out, plot = (tmp_path / name for name in ("my.jsonl", "tuned.json", "tuned.svg"))
    words = ("one", "two", "red", "blue", "hot", "cold", "up", "down")
    prompts.write_text("".join(json.dumps({"prompt": f"{word} =", "answer": "x"}) + "\n" for word in words))
    done = main("tune", str(prompts), "--way", "tokens", "--max-new-tokens", "3", "--batch", "4",
                "--out", str(out), "--plot", str(plot))  # fmt: skip
    assert done.code == 0, done.err
    assert "my.jsonl: 3 settings" in done.out and "round 1: 3 settings" in done.err
    assert "held-out items (4)" in done.out and "More held-out items give a narrower interval" in done.out
    ElementTree.fromstring(plot.read_text())
    stored = json.loads(out.read_text())
    assert stored["tuning"]["task"] == "my.jsonl"
    assert read_preset(out) == Diffusion(**stored["diffusion"])


def test_write_changes_a_local_checkpoint_only_if_the_choice_is_confirmed(main, tmp_path, monkeypatch):
    directory = make(tmp_path / "model")
    path = directory / "generation_config.json"
    path.write_text('{"max_new_tokens": 9, "eos_token_id": 1}')
    prompts = tmp_path / "my.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"prompt {n}"}) + "\n" for n in range(20)))
    command = ["tune", str(prompts), "-m", str(directory), "--write"]
    monkeypatch.setattr(run, "tune", lambda *_, **__: tuning_of(0.7, 5.0))
    assert "stay as they are" in main(*command).err
    assert json.loads(path.read_text()) == {"max_new_tokens": 9, "eos_token_id": 1}
    monkeypatch.setattr(run, "tune", lambda *_, **__: tuning_of(0.8, 5.0))
    assert main(*command).code == 0
    raw = json.loads(path.read_text())
    assert (raw["max_new_tokens"], raw["eos_token_id"], raw["max_denoising_steps"]) == (9, 1, 5)
    assert gesso.load(directory).defaults.diffusion == Diffusion(steps=5)
    monkeypatch.setattr(run, "tune", lambda *_, **__: tuning_of(0.8, 5.0, ended="interrupt"))
    path.write_text("{}")
    done = main(*command, "--out", str(tmp_path / "a.json"))
    assert (done.code, path.read_text(), (tmp_path / "a.json").exists()) == (130, "{}", False)
    assert "Stopped by Ctrl-C" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either a file of prompts or --task"),
        (["{rows}", "--task", "sudoku"], "either a file of prompts or --task"),
        (["--task", "decide"], "--task must be one of"),
        (["--task", "structured", "--clues", "30"], "--clues applies to --task sudoku"),
        (["{rows}", "--way", "best"], "--way must be one of"),
        (["{rows}", "--score", "exact", "--score", "json"], "give --score once"),
        (["{rows}", "--score", "likelihood"], "no settings matter"),
        (["{mixed}"], "1 of 2 rows have an answer"),
        (["{rows}", "--out", "preset.txt"], "--out must end in .json"),
        (["{rows}", "--write"], "belongs to the package"),
        (["{rows}", "--write", "-m", "gesso-sudoku"], "belongs to the package"),
        (["{rows}", "--write", "-m", "someone/model"], "not a checkpoint's directory"),
        (["{rows}", "--write", "-m", "{here}", "--way", "tokens"], "cannot decide token by token"),
    ],
)
def test_unusable_arguments_are_rejected_before_a_model_is_loaded(main, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setattr(gesso, "load", lambda *_, **__: pytest.fail("loaded a model first"))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "mixed.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "answer": "c"}\n')
    places = {"rows": tmp_path / "rows.jsonl", "mixed": tmp_path / "mixed.jsonl", "here": tmp_path}
    done = main("tune", *(one.format(**places) for one in arguments))
    assert (done.code, message in done.err) == (2, True), done.err

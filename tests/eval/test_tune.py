"""A whole tuning run on the tiny model and on fake judges: candidates, split, verdict, files and command line."""

import json
import math
import random
from contextlib import contextmanager
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import gesso
from gesso import PRESETS, Diffusion, InputError
from gesso.eval import OwnData, Sudoku
from gesso.eval.evaluate import Evaluation, Outcome
from gesso.eval.task import LOG_PROBABILITY, Item
from gesso.eval.tune import grid, report, run
from gesso.eval.tune.grid import SettingsCandidate, candidates, changes
from gesso.eval.tune.judge import ByModel, ByTask
from gesso.eval.tune.run import Tuner, Tuning, goal_of
from gesso.presets import read_preset
from gesso.settings import choose
from tests.tiny import make

SHORT = {"max_new_tokens": 8, "seed": 1}


@contextmanager
def unwatched(name):
    yield lambda done, total: None


# --- candidates and items ---------------------------------------------------------------------------------------------


def test_candidates_are_the_default_presets_and_a_grid_around_the_default():
    default = Diffusion(steps=24, entropy_bound=0.03, t_max=1.0, t_min=0.1)
    found = candidates(default)
    assert found == candidates(default) and found[0] == SettingsCandidate("default", default)
    assert len({one.settings for one in found}) == len(found) == 13
    by_name = {one.name: one.settings for one in found}
    assert all(by_name[name] == PRESETS[name] for name in ("balanced", "fast", "laptop"))
    assert by_name["verified, canvas_length 32"].canvas_length == 32
    for name in ("entropy_bound", "confidence", "eos_settles", "greed", "canvas_length", "write"):
        assert len({getattr(one.settings, name) for one in found}) > 1, name
    assert not any(one.settings.by_token for one in candidates(default, canvases_only=True))
    by_token = choose(default, write="verified")
    assert len(candidates(by_token)) > 9, "a default that decides token by token is compared with canvases"
    assert changes(default, default) == "default"
    assert changes(replace(default, steps=3, greed=1.0), default) == "steps 3, greed 1"


def rows(count: int, copies: int = 1) -> list[Item]:
    return [
        Item(name=f"{n}/{copy}", prompt=f"prompt {n}", expected="", meta={"answers": ()})
        for n in range(count)
        for copy in range(copies)
    ]


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


def test_the_scores_that_must_not_fall_are_named_or_the_first_of_a_task_or_all_of_the_model():
    assert goal_of(ByTask(Sudoku()), ()) == Sudoku().scores[:1]
    assert goal_of(ByTask(Sudoku()), Sudoku().scores[1:]) == Sudoku().scores[1:]
    assert goal_of(ByModel(OwnData(data=())), ()) == (LOG_PROBABILITY, "agreement")
    with pytest.raises(InputError, match="unknown score 'beauty'"):
        goal_of(ByTask(Sudoku()), ["beauty"])


# --- runs with a judge whose truth is known ---------------------------------------------------------------------------


class Fake:
    """Answers with a given probability of success and mean number of passes for settings of so many steps.

    An item is as hard with all settings, and their luck is independent.
    """

    scores = ("exact", "valid")

    def __init__(self, truth: dict[int, tuple[float, float]], failing: int | None = None) -> None:
        self.truth, self.failing, self.calls = truth, failing, []

    def evaluate(self, g, items, settings, options, progress) -> Evaluation:
        self.calls.append((settings.steps, len(items)))
        share, passes = self.truth[settings.steps]
        outcomes = []
        for done, item in enumerate(items, 1):
            hard, luck = random.Random(f"hard {item.name}").random(), random.Random(f"{settings.steps} {item.name}")
            exact = float(0.95 * hard + 0.05 * luck.random() < share)
            steps = max(1, round(passes + luck.gauss(0, 2)))
            scores = {"exact": exact, "valid": 1.0}
            failure = "no such canvas" if done == self.failing else None
            outcomes.append(
                Outcome(
                    name=item.name, seed=0, expected="", scores=scores, seconds=0.1, denoising_steps=steps,
                    error=failure,
                )
            )  # fmt: skip
            progress(done, len(items))
        return Evaluation(
            task="fake", data={}, fingerprint=str(len(items)), model={}, settings={}, seed=0, seconds=len(items) / 10,
            outcomes=tuple(outcomes),
        )  # fmt: skip


def fake_tuning(judge, held_out: int = 500, items: int = 64, **options) -> Tuning:
    """Return the result of a run whose candidates are named by their steps; the first is the default."""
    found = Tuning(
        name="fake",
        goal=("exact",),
        tolerance=0.02,
        candidates=[SettingsCandidate(f"steps {steps}", Diffusion(steps=steps)) for steps in judge.truth],
        items=(items, held_out),
        seed=0,
    )
    asked = rows(items + held_out)
    tuner = Tuner(g=None, judge=judge, options={}, watch=unwatched, **options)
    tuner.run(found, asked[:items], asked[items:])
    return found


DEFAULT = (0.8, 20.0)


@pytest.mark.parametrize(
    ("others", "held_out", "best", "reason"),
    [
        ({2: (0.8, 10.0)}, 500, 2, "fewer passes beyond noise"),
        ({2: (0.8, 10.0), 3: (0.8, 15.0), 4: (0.4, 2.0)}, 500, 2, "fewer passes beyond noise"),
        ({2: (0.8, 20.0), 3: (0.5, 5.0)}, 500, None, "no settings take fewer passes"),
        ({2: (0.8, 10.0)}, 20, None, "More held-out items"),
        ({2: (0.8, 10.0)}, 2, None, "not confirmed on held-out items"),
        ({}, 500, None, "before any other settings"),
    ],
)
def test_the_fewest_passes_of_equal_quality_are_chosen_and_replace_the_default_if_confirmed(
    others, held_out, best, reason
):
    found = fake_tuning(Fake({48: DEFAULT, **others}), held_out)
    confirmed, why = found.verdict
    assert confirmed == (best is not None) and reason in why
    assert found.best.steps == (best or 48)
    text = report.summary(found)
    assert text.startswith(f"fake: {len(others) + 1} settings") and ("keep the default settings" in text) == (not best)
    assert json.loads(json.dumps(report.to_dict(found), allow_nan=False))["confirmed"] == confirmed
    ElementTree.fromstring(report.plot(found))


def test_a_choice_that_is_worse_on_held_out_items_is_not_confirmed():
    found = fake_tuning(Fake({48: DEFAULT, 2: (0.8, 10.0)}))
    worse = fake_tuning(Fake({48: DEFAULT, 2: (0.6, 10.0)}, failing=None))
    assert worse.choice is None
    found.confirmation = replace(found.confirmation, change=worse.trials[1].change)
    assert not found.verdict[0] and " points, and the tolerance is 2.0 points" in found.verdict[1]


def test_another_score_that_falls_beyond_noise_is_a_veto():
    found = fake_tuning(Fake({48: DEFAULT, 2: (0.8, 10.0)}))
    change = found.confirmation.change
    lower = replace(change.scores["valid"], mean=-0.25, low=-0.3, high=-0.2)
    found.confirmation = replace(found.confirmation, change=replace(change, scores={**change.scores, "valid": lower}))
    assert found.verdict == (False, "valid is lower beyond noise and by more than the tolerance")


def test_a_choice_that_fails_on_a_held_out_item_is_not_confirmed():
    class Failing(Fake):
        def evaluate(self, g, items, settings, options, progress):
            self.failing = 70 if settings.steps == 2 else None  # one of the held-out items
            return super().evaluate(g, items, settings, options, progress)

    found = fake_tuning(Failing({48: DEFAULT, 2: (0.8, 10.0)}))
    assert found.verdict == (False, "the choice failed on a held-out item: no such canvas")


def test_items_that_the_default_cannot_answer_end_the_run():
    with pytest.raises(InputError, match="0/0: no such canvas"):
        fake_tuning(Fake({48: DEFAULT, 2: (0.8, 10.0)}, failing=1))


def test_items_on_both_sides_are_rejected():
    judge, items = Fake({48: DEFAULT}), rows(9)
    tuning = Tuning(
        name="x",
        goal=("exact",),
        tolerance=0.02,
        candidates=[SettingsCandidate("default", Diffusion())],
        items=(5, 5),
        seed=0,
    )
    with pytest.raises(InputError, match="both for tuning and held out"):
        Tuner(g=None, judge=judge, options={}, watch=unwatched).run(tuning, items[:5], items[4:])


def test_each_finished_candidate_is_reported_with_its_differences():
    lines = []
    fake_tuning(Fake({48: DEFAULT, 2: (0.8, 10.0)}), finished=lambda trial: lines.append(report.line(trial)))
    assert [line.partition(":")[0] for line in lines] == ["steps 48", "steps 2"]
    assert "passes, -" in lines[1] and "points (" in lines[1] and "passes, " not in lines[0]


def test_in_limited_time_the_trials_that_ended_count():
    """An answer takes a second. The trials get 96 s of 240, and the held-out items most of the rest."""
    seconds = 0.0

    class Timed(Fake):
        def evaluate(self, g, items, settings, options, progress):
            def tick(done, total):
                nonlocal seconds
                seconds += 1
                progress(done, total)

            return replace(super().evaluate(g, items, settings, options, tick), seconds=float(len(items)))

    judge = Timed({48: DEFAULT, 2: (0.8, 10.0), 3: (0.8, 15.0), 4: (0.8, 5.0)})
    found = fake_tuning(judge, 500, items=32, minutes=4, clock=lambda: seconds)
    assert [trial.candidate.name for trial in found.trials] == ["steps 48", "steps 2", "steps 3"]
    assert found.ended == "time" and found.choice.candidate.name == "steps 2"
    assert 40 < found.confirmation.change.count < 72 and seconds <= 240
    assert report.summary(found).startswith("fake: 3 of 4 settings")


@pytest.mark.parametrize("stage", ["trials", "held-out items"])
def test_an_interrupt_keeps_the_trials_and_confirms_nothing(stage):
    class Interrupted(Fake):
        def evaluate(self, g, items, settings, options, progress):
            if len(self.calls) == (2 if stage == "trials" else 3):
                raise KeyboardInterrupt
            return super().evaluate(g, items, settings, options, progress)

    found = fake_tuning(Interrupted({48: DEFAULT, 2: (0.8, 10.0), 3: (0.8, 15.0)}))
    assert found.ended == "interrupt" and len(found.trials) == (2 if stage == "trials" else 3)
    assert not found.verdict[0] and "stopped before" in found.verdict[1] and found.best.steps == 48
    assert "Stopped by Ctrl-C" in report.summary(found)


# --- runs with a model ------------------------------------------------------------------------------------------------


FEW = [SettingsCandidate("default", Diffusion(steps=3)), SettingsCandidate("steps 1", Diffusion(steps=1))]


def tuned(g, judge, items, held_out) -> Tuning:
    found = Tuning(
        name="small", goal=goal_of(judge, ()), tolerance=0.02, candidates=FEW, items=(len(items), len(held_out)), seed=1
    )
    Tuner(g=g, judge=judge, options=SHORT, watch=unwatched).run(found, items, held_out)
    return found


def test_the_same_seed_gives_the_same_result(tiny):
    task = Sudoku()
    tuning, held_out = list(task.items("validation", 4, 0)), list(task.items("test", 3, 0))
    one, two = (tuned(tiny, ByTask(task), tuning, held_out) for _ in range(2))
    assert [trial.change for trial in one.trials] == [trial.change for trial in two.trials]
    assert one.trials[1].change.passes_ratio.mean == pytest.approx(1 / 3)
    assert (one.choice.candidate, one.verdict) == (two.choice.candidate, two.verdict)


def test_answers_without_a_reference_are_judged_by_the_model(tiny):
    judge = ByModel(OwnData(data=(), needs_answers=False), many_steps=Diffusion(steps=4))
    found = tuned(tiny, judge, rows(4), [replace(item, prompt=f"x {item.prompt}") for item in rows(3)])
    for trial in found.trials:
        for outcome in trial.evaluation.outcomes:
            assert outcome.scores[LOG_PROBABILITY] < 0 and 0 <= outcome.scores["agreement"] <= 1
    assert len(judge.references) in (1, 2), "one many-step run for the items of all candidates"
    empty = [replace(outcome, output="") for outcome in found.trials[0].evaluation.outcomes]
    from gesso.eval.tune.judge import _log_probabilities

    assert _log_probabilities(tiny, judge.rows, rows(4), empty) == [-math.log(tiny.config.vocab_size)] * 4


def test_a_run_out_of_time_leaves_the_engine_free(tiny):
    found = Tuning(name="small", goal=("exact",), tolerance=0.02, candidates=FEW, items=(4, 0), seed=1)
    judge = ByTask(OwnData(data=(), kind="python"))
    Tuner(g=tiny, judge=judge, options=SHORT, watch=unwatched, minutes=1e-9).run(found, rows(4), ())
    assert found.ended == "time" and found.trials == []
    assert tiny.generate("1 2", max_new_tokens=2, steps=1).text is not None and not tiny.engine.busy


# --- command line -----------------------------------------------------------------------------------------------------


def test_tune_from_prompts_to_a_preset(main, tmp_path, tiny_directory, monkeypatch):
    for name, few in {"TRIED": (), "DRAFTS": (8,), "BOUNDS": ()}.items():
        monkeypatch.setattr(grid, name, few)  # 13 settings of a model that never settles take a quarter of a minute
    prompts, out, plot = (tmp_path / name for name in ("my.jsonl", "tuned.json", "tuned.svg"))
    words = ("one", "two", "red", "blue", "hot", "cold", "up", "down")
    prompts.write_text("".join(json.dumps({"prompt": f"{word} =", "answer": "x"}) + "\n" for word in words))
    few = ("-m", str(tiny_directory), "--max-new-tokens", "3", "--batch", "4")
    done = main("tune", str(prompts), *few, "--out", str(out), "--plot", str(plot))
    assert done.code == 0, done.err
    assert "my.jsonl: 2 settings" in done.out
    shown = " ".join(done.err.split())
    assert "default: " in shown and "verified, canvas_length 8: " in shown, (
        "a line for each finished candidate, also in a pipe"
    )
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

    def ends_like(result: Tuning) -> None:
        def as_before(tuner, tuning, items, held_out):
            vars(tuning).update(vars(result))

        monkeypatch.setattr(Tuner, "run", as_before)  # an untrained model confirms nothing

    rejected, confirmed = (fake_tuning(Fake({48: DEFAULT, 2: (share, 10.0)})) for share in (0.5, 0.8))
    ends_like(rejected)
    assert "stay as they are" in main(*command).err
    assert json.loads(path.read_text()) == {"max_new_tokens": 9, "eos_token_id": 1}
    ends_like(confirmed)
    done = main(*command)
    assert done.code == 0 and "wrote the settings" in done.err, done
    raw = json.loads(path.read_text())
    assert (raw["max_new_tokens"], raw["eos_token_id"], raw["max_denoising_steps"]) == (9, 1, 2)
    assert gesso.load(directory).defaults.diffusion == Diffusion(steps=2)
    ends_like(replace(confirmed, ended="interrupt"))
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
        (["--task", "structured", "--score", "beauty"], "unknown score 'beauty'"),
        (["{rows}", "--score", "exact", "--score", "json"], "give --score once"),
        (["{rows}", "--score", "likelihood"], "no settings matter"),
        (["{mixed}"], "1 of 2 rows have an answer"),
        (["{rows}", "--out", "preset.txt"], "--out must end in .json"),
        (["{rows}", "--write"], "belongs to the package"),
        (["{rows}", "--write", "-m", "gesso-sudoku"], "belongs to the package"),
        (["{rows}", "--write", "-m", "someone/model"], "not a checkpoint's directory"),
    ],
)
def test_unusable_arguments_are_rejected_before_a_model_is_loaded(main, monkeypatch, tmp_path, arguments, message):
    if "--write" not in arguments:  # which checks the model's name first
        monkeypatch.setenv("GESSO_MODEL", "/nowhere")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "mixed.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "answer": "c"}\n')
    places = {"rows": tmp_path / "rows.jsonl", "mixed": tmp_path / "mixed.jsonl", "here": tmp_path}
    done = main("tune", *(one.format(**places) for one in arguments))
    assert (done.code, message in done.err) == (2, True), done.err

"""The result of a tuning run as text, JSON, SVG and facts of a preset."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gesso
from gesso.eval.estimate import Estimate
from gesso.eval.plot import Point, Series, svg
from gesso.eval.task import LOG_PROBABILITY
from gesso.eval.tune.grid import changes
from gesso.eval.tune.judge import AGREEMENT
from gesso.eval.tune.run import POINT, Trial, Tuning, shown_change
from gesso.presets import values

ENDED = {"time": "The time ended before everything was measured.", "interrupt": "Stopped by Ctrl-C."}


def line(trial: Trial) -> str:
    """Return passes and scores of a candidate, and their differences to the default, on one line."""
    evaluation = trial.evaluation
    change = trial.change
    cells = [f"{evaluation.denoising_steps.mean:.1f} passes{_saved(change.passes_ratio)}"]
    for name, score in evaluation.scores.items():
        mean = f"{score.mean:.3f}" if name == LOG_PROBABILITY else f"{POINT * score.mean:.1f} %"
        cells.append(f"{name} {mean}{_difference(change.scores[name], name)}")
    return f"{trial.candidate.name}: {'; '.join(cells)}"


def _saved(ratio: Estimate) -> str:
    if ratio.mean == 1 or ratio.low is None or ratio.high is None:
        return ""
    return f", {100 * (ratio.mean - 1):+.0f} % ({100 * (ratio.low - 1):+.0f} to {100 * (ratio.high - 1):+.0f})"


def _difference(score: Estimate, name: str) -> str:
    if score.low is None or score.high is None or score.low == score.high:
        return ""
    interval = f"{shown_change(score.low, name)} to {shown_change(score.high, name)}"
    return f", {shown_change(score.mean, name)} ({interval})"


def summary(tuning: Tuning) -> str:
    """Return all trials with their intervals, and the result."""
    return "\n".join(_lines(tuning))


def _lines(tuning: Tuning) -> Iterator[str]:
    tried = len(tuning.trials)
    candidates = len(tuning.candidates)
    count = f"{tried} of {candidates} settings" if tried < candidates else f"{candidates} settings"
    yield f"{tuning.name}: {count}, {tuning.seconds / 60:.1f} minutes"
    yield f"quality: {' and '.join(tuning.goal)}; tolerance {shown_change(tuning.tolerance, tuning.goal[0])[1:]}"
    yield f"\n{tuning.items[0]} tuning items, with paired differences to the default; * is the choice"
    for trial in sorted(tuning.trials, key=lambda trial: trial.change.passes_ratio.mean):
        yield f"{'*' if trial is tuning.choice else ' '} {line(trial)}"
    if tuning.confirmation is not None:
        yield f"\n{tuning.confirmation.change.count} held-out items, which had no part in the choice"
        yield f"  {line(tuning.confirmation)}"
    yield ""
    if tuning.ended is not None:
        yield ENDED[tuning.ended]
    confirmed, reason = tuning.verdict
    if confirmed and tuning.confirmation is not None:
        saved = 100 * (1 - tuning.confirmation.change.passes_ratio.mean)
        yield f"Result: {saved:.0f} % fewer passes ({reason})."
        yield f"  {changes(tuning.best, tuning.default)}"
    else:
        yield f"Result: keep the default settings. Reason: {reason}."


def facts(tuning: Tuning) -> dict[str, Any]:
    """Return the origin of the settings, for the file of the preset."""
    confirmed, reason = tuning.verdict
    return {
        "gesso": gesso.__version__,
        "task": tuning.name,
        "seed": tuning.seed,
        "confirmed": confirmed,
        "reason": reason,
        "tolerance": tuning.tolerance,
        "scores": list(tuning.goal),
        "tuning_items": tuning.items[0],
        "held_out": None if tuning.confirmation is None else tuning.confirmation.change.to_dict(),
    }


def to_dict(tuning: Tuning) -> dict[str, Any]:
    """Return everything that was measured, for JSON."""
    return {
        **facts(tuning),
        "best": values(tuning.best),
        "choice": None if tuning.choice is None else tuning.choice.candidate.name,
        "ended": tuning.ended,
        "seconds": tuning.seconds,
        "candidates": [
            {
                "name": trial.candidate.name,
                "settings": values(trial.candidate.settings),
                "scores": {name: asdict(score) for name, score in trial.evaluation.scores.items()},
                "passes": asdict(trial.evaluation.denoising_steps),
                "against_default": trial.change.to_dict(),
            }
            for trial in tuning.trials
        ],
    }


def plot(tuning: Tuning) -> str:
    """Return a score of every trial on the tuning items against its passes."""
    shown = AGREEMENT if LOG_PROBABILITY in tuning.goal else tuning.goal[0]
    points = []
    for trial in tuning.trials:
        score = trial.evaluation.scores[shown]
        passes = round(trial.evaluation.denoising_steps.mean, 1)
        points.append(Point(x=passes, y=score.mean, low=score.low, high=score.high, note=trial.candidate.name))
    return svg(
        [Series("default", points[:1], False), Series("others", points[1:], False)],
        title=f"{tuning.name}: {shown} against passes",
        x_label="passes per answer",
        y_label=shown,
    )

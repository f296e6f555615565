"""The result of a tuning run as text, JSON, SVG and facts of a preset."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import gesso
from gesso.eval.estimate import Estimate, estimate, estimate_score
from gesso.eval.plot import Point, Series, svg
from gesso.eval.tune.candidates import changes
from gesso.eval.tune.measure import AGREEMENT, LIKELIHOOD, REFERENCE
from gesso.eval.tune.run import POINT, Tuning, shown_change
from gesso.eval.tune.search import DEFAULT, Standing, Table, front, standing
from gesso.presets import values

ENDED = {"time": "The time ended before all items were measured.", "interrupt": "Stopped by Ctrl-C."}


def means(table: Table, candidate: int, items: Sequence[int]) -> dict[str, Estimate]:
    """Return the passes and all scores of a candidate with their intervals."""
    names = table.answers[candidate][items[0]].scores
    found = {"passes": estimate(table.passes(candidate, items))}
    for name in names:
        scores = table.scores(candidate, items, name)
        found[name] = estimate(scores) if name == LIKELIHOOD else estimate_score(scores)
    return found


# --- text -------------------------------------------------------------------------------------------------------------


def summary(tuning: Tuning) -> str:
    """Return the tables with their intervals, and the result."""
    return "\n".join(_lines(tuning))


def _lines(tuning: Tuning) -> Iterator[str]:
    table, goal = tuning.search.table, tuning.goal
    finished = tuning.search.rounds
    tried, known = len(finished[0][1] if finished else tuning.search.alive), len(tuning.settings)
    some = f"{tried} of {known} settings, as time was short" if tried < known else f"{known} settings"
    yield f"{tuning.name}: {some}; {len(finished)} rounds, {tuning.seconds / 60:.1f} minutes"
    yield f"quality: {_quality(tuning)}; tolerance {shown_change(goal.tolerance, goal.scores[0])[1:]}"
    shown = [one for one in tuning.search.alive if one not in table.errors]
    if items := table.common(shown):
        best = front(table, shown)
        yield f"\ntuning items ({len(items)}); * is on the Pareto front of quality and passes"
        yield from _rows(tuning, table, shown, items, best)
    if (found := tuning.confirmation) is not None:
        items = tuning.held_out.common((DEFAULT, tuning.chosen))
        yield f"\nheld-out items ({len(items)}), which had no part in the choice"
        yield from _rows(tuning, tuning.held_out, [DEFAULT, tuning.chosen], items, [])
        yield from _differences(found)
    confirmed, reason = tuning.verdict
    yield ""
    if tuning.ended is not None:
        yield ENDED[tuning.ended]
    if confirmed:
        assert found is not None
        yield f"Result: {100 * (1 - found.ratio.mean):.0f} % fewer passes ({reason})."
        yield f"  {changes(tuning.best, tuning.settings[DEFAULT])}"
    else:
        yield f"Result: keep the default settings. Reason: {reason}."
        if tuning.chosen != DEFAULT:
            yield f"  Best on the tuning items: {changes(tuning.settings[tuning.chosen], tuning.settings[DEFAULT])}"


def _quality(tuning: Tuning) -> str:
    if tuning.goal.bounded:
        return f"{' and '.join(tuning.goal.scores)}, by the expected answers"
    return (
        f"without expected answers: {LIKELIHOOD} (log-probability per token by the causal encoder, in nats) and "
        f"{AGREEMENT} with a run of the preset {REFERENCE}"
    )


def _rows(
    tuning: Tuning, table: Table, candidates: Sequence[int], items: Sequence[int], starred: Sequence[int]
) -> Iterator[str]:
    found = {one: means(table, one, items) for one in candidates}
    names = list(found[candidates[0]])
    yield "  " + "".join(f"{name:<24}" for name in names) + "settings"
    for one in sorted(candidates, key=lambda each: found[each]["passes"].mean):
        cells = "".join(f"{_cell(found[one][name], name):<24}" for name in names)
        words = changes(tuning.settings[one], tuning.settings[DEFAULT])
        mark = "  <- choice" if one == tuning.chosen != DEFAULT else ""
        yield f"{'*' if one in starred else ' '} {cells}{words}{mark}"


def _differences(found: Standing) -> Iterator[str]:
    saved = f"{100 * (found.ratio.mean - 1):+.0f} %"
    if found.ratio.low is not None and found.ratio.high is not None:
        saved += f" ({100 * (found.ratio.low - 1):+.0f} to {100 * (found.ratio.high - 1):+.0f})"
    yield f"  paired difference: passes {saved}"
    for name, change in found.scores.items():
        if change.low is not None and change.high is not None:
            interval = f"{shown_change(change.low, name)} to {shown_change(change.high, name)}"
            yield f"  paired difference: {name} {shown_change(change.mean, name)} ({interval})"


def _cell(found: Estimate, name: str) -> str:
    scale, digits = (1, 3) if name == LIKELIHOOD else (1, 1) if name == "passes" else (POINT, 1)
    if found.low is None or found.high is None:
        return f"{scale * found.mean:.{digits}f}"
    return f"{scale * found.mean:.{digits}f} ({scale * found.low:.{digits}f}, {scale * found.high:.{digits}f})"


# --- files ------------------------------------------------------------------------------------------------------------


def facts(tuning: Tuning) -> dict[str, Any]:
    """Return the origin of the settings, for the file of the preset."""
    confirmed, reason = tuning.verdict
    found = tuning.confirmation
    measured = {} if found is None else asdict(found)
    measured.pop("candidate", None)
    return {
        "gesso": gesso.__version__,
        "task": tuning.name,
        "seed": tuning.seed,
        "confirmed": confirmed,
        "reason": reason,
        "tolerance": tuning.goal.tolerance,
        "scores": list(tuning.goal.scores),
        "tuning_items": tuning.items[0],
        "held_out": None
        if found is None
        else {key: value for key, value in asdict(found).items() if key != "candidate"},
    }


def to_dict(tuning: Tuning) -> dict[str, Any]:
    """Return everything that was measured, for JSON."""
    table = tuning.search.table
    rows = []
    for one, settings in enumerate(tuning.settings):
        items = table.common((DEFAULT, one))
        rows.append(
            {
                "settings": values(settings),
                "count": len(items),
                "measured": {name: asdict(found) for name, found in means(table, one, items).items()} if items else {},
                "against_default": asdict(standing(table, one, tuning.goal.bounded)) if items else None,
                "in_last_round": one in tuning.search.alive,
                "error": table.errors.get(one),
            }
        )
    return {
        **facts(tuning),
        "best": values(tuning.best),
        "chosen": tuning.chosen,
        "ended": tuning.ended,
        "seconds": tuning.seconds,
        "rounds": [{"items": count, "candidates": alive} for count, alive in tuning.search.rounds],
        "candidates": rows,
    }


def plot(tuning: Tuning) -> str:
    """Return quality against passes: the front, all other settings, and the held-out items."""
    table, default = tuning.search.table, tuning.settings[DEFAULT]
    shown = AGREEMENT if not tuning.goal.bounded else tuning.goal.scores[0]
    alive = [one for one in tuning.search.alive if one not in table.errors]
    best = front(table, alive) if table.common(alive) else []

    def point(source: Table, one: int, items: Sequence[int], bars: bool) -> Point:
        found = means(source, one, items)
        score = found[shown]
        low, high = (score.low, score.high) if bars else (None, None)
        note = f"{changes(tuning.settings[one], default)}; {len(items)} items"
        return Point(round(found["passes"].mean, 1), score.mean, low, high, note)

    measured = {one: items for one in range(len(tuning.settings)) if (items := table.common((DEFAULT, one)))}
    lines = [
        Series("front", [point(table, one, measured[one], True) for one in best]),
        Series("others", [point(table, one, measured[one], False) for one in measured if one not in best], False),
    ]
    if tuning.confirmation is not None:
        items = tuning.held_out.common((DEFAULT, tuning.chosen))
        pair = [point(tuning.held_out, one, items, True) for one in (DEFAULT, tuning.chosen)]
        lines.append(Series("held out: default, choice", pair, False))
    return svg(
        [line for line in lines if line.points],
        title=f"{tuning.name}: {shown} against passes",
        x_label="passes per answer",
        y_label=shown,
    )

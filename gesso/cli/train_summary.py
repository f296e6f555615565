"""The last lines of `gesso train`: what came out, the commands that use it, or what to change if it is of no use."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gesso.errors import InputError

if TYPE_CHECKING:
    from gesso.train.learned import Learned
    from gesso.train.recipe import Recipe

RECIPE_FILE, CURVE_FILE = "recipe.toml", "loss.svg"
PROMPT_SHOWN = 100  # characters of a prompt that is part of a command
TEXT_SHOWN = 30  # characters from the beginning of a text to continue
USEFUL, WELL = 0.5, 0.9  # shares of the rows that are answered exactly


def summary(
    recipe: "Recipe", out: Path, metrics: Sequence[Mapping[str, float]], learned: "Learned | None"
) -> Iterator[str]:
    """Yield the results, and the commands that use them unless the training was in vain."""
    steps = int(metrics[-1]["step"]) if metrics else 0
    losses = {int(line["step"]): line["held_out"] for line in metrics if math.isfinite(line.get("held_out", math.inf))}
    best = min(losses, key=lambda step: (losses[step], step), default=None)
    unfinished = steps < recipe.run.steps
    stalled = _is_stalled(recipe, losses, best)
    exported = out / ("adapter" if recipe.lora else "model")
    evaluated = f"step {best}, held-out loss {losses[best]:.4f}" if best else f"step {steps}"
    yield f"{exported.name:<8} {exported} ({evaluated})"
    if unfinished:
        reason = f"no better held-out loss since step {best}" if stalled else "the same command continues"
        yield f"stopped  at step {steps} of {recipe.run.steps}: {reason}"
    yield f"loss     {out / CURVE_FILE}"
    if (out / RECIPE_FILE).is_file():
        yield f"recipe   {out / RECIPE_FILE}"
    if unfinished and not stalled:
        yield from _commands(recipe, out, exported)
        return
    if only_rose(losses):
        first, last = min(losses), max(losses)
        yield (
            f"held out the loss only rose, from {losses[first]:.2f} at step {first} to {losses[last]:.2f} at step "
            f"{last}: nothing in the rows that were trained on helps with the others"
        )
        yield "change   --held-out none learns the rows by heart; for other questions, add rows or name a larger model"
        return
    if learned is not None:
        yield (
            f"learned  {learned.exact} of {learned.tried} rows: asked again, the model answers these exactly as the "
            "rows do"
        )
        if learned.share < WELL:
            yield f"change   {_advice(recipe, learned)}"
        if learned.share < USEFUL:
            return
    yield from _commands(recipe, out, exported)


def only_rose(losses: Mapping[int, float]) -> bool:
    """Return whether no evaluation was as good as the first."""
    first, *later = (losses[step] for step in sorted(losses)) if losses else (0.0,)
    return bool(later) and first < min(later)


def _is_stalled(recipe: "Recipe", losses: Mapping[int, float], best: int | None) -> bool:
    """Return whether the run stopped because the held-out loss had not improved for some evaluations."""
    if recipe.held_out is None or best is None:
        return False
    return sum(step > best for step in losses) >= recipe.held_out.patience


def _advice(recipe: "Recipe", learned: "Learned") -> str:
    if learned.ambiguous:
        return (
            f"{learned.ambiguous} rows share their question with a row that has another answer, such as "
            f"{learned.example!r}: give each question one answer"
        )
    return (
        f"--steps {2 * recipe.run.steps} trains twice as long (with another --out); shorter answers are learned sooner"
    )


def _commands(recipe: "Recipe", out: Path, exported: Path) -> Iterator[str]:
    """Yield the commands that use the trained model."""
    base = ["-m", recipe.model.path] if recipe.model.path and recipe.lora else []
    base += ["--quantize", recipe.model.quantize] if recipe.model.quantize else []
    use = ["--adapter", str(exported)] if recipe.lora else ["-m", str(exported)]
    name = re.sub(r"[^\w-]", "-", out.resolve().name)  # the characters that the name of an adapter may have
    serve = ["--adapter", f"{name}={exported}"] if recipe.lora else use
    command, *arguments = asks(recipe)
    yield f"{command:<8} {shlex.join(['gesso', command, *arguments, *base, *use])}"
    yield f"serve    {shlex.join(['gesso', 'serve', *base, *serve])}"


def asks(recipe: "Recipe") -> list[str]:
    """Return a command for the trained model, without its options, that asks in the form of the training data."""
    from gesso.train.reading import first_rows

    if recipe.data.source:
        return ["eval", recipe.eval.task] if recipe.eval else ["generate", "PROMPT"]
    try:
        rows = list(first_rows(recipe.data.files))
    except InputError:  # a file that was removed during the training
        rows = []
    if any("messages" in row for row in rows):
        return ["chat"]
    prompts = [row.get("prompt") or row["text"].partition("\n")[0][:TEXT_SHOWN] for row in rows]
    short = (prompt for prompt in prompts if prompt.isprintable() and not prompt.startswith("-"))
    return ["generate", next((prompt for prompt in short if 0 < len(prompt) <= PROMPT_SHOWN), "PROMPT")]

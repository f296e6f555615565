"""Score a model while it trains: `[eval]` in a recipe."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso.eval import task

if TYPE_CHECKING:
    from gesso.model.transformer import DiffusionGemma


def scorer(
    directory: Path, name: str, *, count: int, seed: int, steps: int | None
) -> "Callable[[DiffusionGemma], dict[str, float]]":
    """Return a function that gives the scores of a model on `count` validation items of a task.

    Tokenizer and generation defaults come from the checkpoint in `directory`.
    """
    from gesso.api import Gesso
    from gesso.chat.tokenizer import Tokenizer
    from gesso.checkpoint.generation import GenerationDefaults
    from gesso.eval.evaluate import evaluate
    from gesso.model.config import Config

    chosen = task(name)
    items = list(chosen.items("validation", count, seed))
    defaults = GenerationDefaults.from_directory(directory, Config.from_directory(directory))
    tokenizer = Tokenizer.from_directory(directory)
    options: dict[str, Any] = {} if steps is None else {"steps": steps}

    def score(model: "DiffusionGemma") -> dict[str, float]:
        g = Gesso(model, tokenizer, defaults, directory, max_batch=8, max_length=None)
        evaluation = evaluate(g, chosen, items, seed=seed, **options)
        scores = {f"{name}_{kind}": value.mean for kind, value in evaluation.scores.items()}
        return {**scores, f"{name}_steps": evaluation.denoising_steps.mean}

    return score

"""Answer prompts while a model trains: the samples of `gesso train`."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gesso.chat.prompt import Prompt
    from gesso.model.transformer import DiffusionGemma


def answerer(directory: Path) -> "Callable[[DiffusionGemma, Sequence[Prompt]], list[str]]":
    """Return a function that gives a model's answers to prompts, with the checkpoint's settings."""
    from gesso.api import Gesso
    from gesso.chat.tokenizer import Tokenizer
    from gesso.checkpoint.generation import GenerationDefaults
    from gesso.model.config import Config

    config = Config.from_directory(directory)
    defaults = GenerationDefaults.from_directory(directory, config)
    tokenizer = Tokenizer.from_directory(directory)
    most = min(defaults.max_new_tokens, config.canvas_length)  # one canvas: training waits for the samples

    def answers(model: "DiffusionGemma", prompts: "Sequence[Prompt]") -> list[str]:
        g = Gesso(model, tokenizer, defaults, directory, max_batch=max(len(prompts), 1), max_length=None)
        try:
            results = g.run([g.request(prompt, seed=0, max_new_tokens=most) for prompt in prompts])
            return [result.text for result in results]
        finally:  # training needs the memory of its cache and captured passes, and the model refers to itself
            del g
            gc.collect()

    return answers

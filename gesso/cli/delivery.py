"""Print the answers of `gesso generate` and `gesso chat`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from gesso.cli.terminal import note, print_json, print_text

if TYPE_CHECKING:
    from gesso.chat.answer import Answer
    from gesso.engine.events import Result
    from gesso.engine.ways import Writing


def deliver(result: "Result", *, as_json: bool, writing: "Writing", answer: "Answer | None" = None) -> None:
    """Print the text on stdout and the rest on stderr, or everything as one JSON object on stdout.

    `answer` is the parsed answer of a chat. How the model writes is shown if it was measured.
    """
    usage = result.usage
    if as_json:
        parts = {} if answer is None else {"thinking": answer.thinking, "malformed_calls": answer.malformed}
        usage_and_rate = {**asdict(usage), "tokens_per_step": usage.tokens_per_step}
        print_json({**asdict(result), "usage": usage_and_rate, **parts})
        return
    for warning in result.warnings:
        note(warning)
    if answer and answer.thinking:
        note(answer.thinking)
    print_text(result.text)
    note(
        f"{usage.completion_tokens} tokens, {usage.denoising_steps} steps ({usage.tokens_per_step:.1f} tokens/step), "
        f"canvases {usage.canvases}, finish {result.finish_reason}, seed {result.seed}"
        + (f", {writing.summary}" if writing.rates else "")
    )

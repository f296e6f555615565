"""Edit a span of a text. The text around the span is copied from the caller's string and never decoded from tokens."""

from dataclasses import replace
from typing import Any

import torch

from gesso.constraints.constraint import NAMES
from gesso.diffusion.noise import HashSource
from gesso.engine.plan import Plan
from gesso.errors import InputError
from gesso.infill.boundary import nearest_start
from gesso.infill.holes import Hole, fill_prompt, method_for, plain_prompt, visible_hole
from gesso.infill.infill import fill
from gesso.infill.model import InfillModel
from gesso.infill.requests import HoleRequest, base_request, fill_holes, heal, is_possible, token_count
from gesso.infill.results import EditResult, InfillResult
from gesso.infill.span import check_span, instruction_turn


def edit(
    model: InfillModel,
    text: str,
    span: tuple[int, int],
    *,
    instruction: str | None,
    level: float,
    method: str,
    context: int | None,
    **options: Any,
) -> Plan[EditResult]:
    """Return a plan for a new text in a span; the arguments are those of `Gesso.edit`."""
    start, end = check_span(text, span, level)
    before = text[:start]
    present = text[start:end]
    after = text[end:]
    shown = visible_hole(model.tokenizer, before, after, context)
    if instruction is not None:
        turn = instruction_turn(model.tokenizer, instruction, shown.before + present + shown.after)
        shown = replace(shown, opening=tuple(turn))
    elif level == 1 and not (before or after):
        raise InputError("the span is the whole text: at level 1 there is no text around it; give an instruction")
    if level < 1:
        filled = yield from _revise(model, shown, present, level, method, **options)
    else:
        filled = yield from fill(model, shown, method=method, lengths=None, candidates=1, **options)
    whole = {**vars(filled), "text": before + filled.text + after}
    del whole["candidates"]
    return EditResult(**whole, replacement=filled.text)


def _revise(
    model: InfillModel, shown: Hole, present: str, level: float, method: str, **options: Any
) -> Plan[InfillResult]:
    """Replace a share `level` of the span's tokens by noise and pin the others; the number of tokens stays.

    A canvas that only starts from the other tokens would be closer to the diffusion process. But a model may replace
    tokens that are nearly clean: a small model changed more at level 0.02 than at 0.2. With pins, a low level is a
    small change with every model.
    """
    given = [name for name in ("max_new_tokens", "stop", *NAMES, "schema_options") if options.pop(name, None)]
    if given:
        raise InputError(f"{given[0]} requires level 1; below level 1 the span keeps its number of tokens")
    method = method_for(method, model.tokenizer, shown)
    prompt = fill_prompt if method == "prompt" else plain_prompt
    length = token_count(model, present)
    base = base_request(model, prompt(model.tokenizer, shown, shown.before), max_new_tokens=length, **options)
    canvas = base.canvas_length(model.config)

    def request_for(shown_before: str, dropped: str) -> HoleRequest:
        tokens = model.tokenizer.encode(dropped + present, bos=False)
        if method == "prompt":  # the end follows the text, as in training
            after = [model.eos_token_id]
        else:
            near = nearest_start(model.tokenizer, shown.after, -len(tokens) % canvas)
            after = model.tokenizer.encode(near, bos=False)
        pins = {len(tokens) + i: token for i, token in enumerate(after)}
        noised = _noised(len(tokens), level, base.seed)
        request = replace(
            base,
            prompt=prompt(model.tokenizer, shown, shown_before),
            max_new_tokens=len(tokens) + len(after),
            pins=pins | {i: token for i, token in enumerate(tokens) if i not in noised},
            guide=model.guides.within(dropped, ""),
        )
        return HoleRequest(request=request, hole_length=len(tokens))

    shown_before, dropped = heal(model, shown, ())
    chosen = request_for(shown_before, dropped)
    if dropped and not is_possible(chosen.request):  # a long token became noise, and no other token fits in its place
        dropped = ""
        chosen = request_for(shown.before, dropped)
    filled = yield from fill_holes(model, [chosen], dropped, ())
    return InfillResult(
        text=filled.texts[0],
        tokens=filled.tokens[0],
        finish_reason="stop",
        usage=filled.usage(0),
        seed=base.seed,
        method=method,
    )


def _noised(length: int, level: float, seed: int) -> set[int]:
    """Return the positions that become noise: each with probability `level`, and at least one.

    The seed decides. With the same seed, a higher level includes all positions of a lower one.
    """
    uniform_C = HashSource().at(seed, 0, 0, torch.device("cpu")).uniform(length)
    return {int(uniform_C.argmin()), *torch.nonzero(uniform_C < level).flatten().tolist()}

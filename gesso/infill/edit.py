"""Edit a span of a text. The text around the span is copied from the caller's string and never decoded from tokens."""

from dataclasses import replace

import torch

from gesso.constraints.spec import ConstraintSpec
from gesso.diffusion.noise import HashSource
from gesso.engine.plan import Plan
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.infill.boundary import nearest_start
from gesso.infill.holes import Hole, fill_prompt, method_for, plain_prompt, visible_hole
from gesso.infill.infill import fill
from gesso.infill.requests import HoleRequest, fill_holes, heal, is_possible, token_count, with_prompt
from gesso.infill.results import EditResult, InfillResult
from gesso.infill.span import check_span, instruction_turn
from gesso.request.info import ModelInfo
from gesso.request.spec import EditSpec, HoleSpec


def edit(info: ModelInfo, change: EditSpec, base: Request, constraint: ConstraintSpec | None) -> Plan[EditResult]:
    """Return a plan for a new text in a span.

    `base` is the request that those of the plan are variations of. The constraint is that on the text in the span.
    """
    start, end = check_span(change.text, change.span, change.level)
    before = change.text[:start]
    present = change.text[start:end]
    after = change.text[end:]
    shown = visible_hole(info.tokenizer, before, after, change.context)
    if change.instruction is not None:
        turn = instruction_turn(info.tokenizer, change.instruction, shown.before + present + shown.after)
        shown = replace(shown, opening=tuple(turn))
    elif change.level == 1 and not (before or after):
        raise InputError("the span is the whole text: at level 1 there is no text around it; give an instruction")
    if change.level < 1:
        _check_kept(change, base, constraint)
        filled = yield from _revise(info, shown, present, change, base)
    else:
        hole = HoleSpec(prefix=before, suffix=after, method=change.method, max_new_tokens=change.max_new_tokens)
        filled = yield from fill(info, shown, hole, base, constraint)
    whole = {**vars(filled), "text": before + filled.text + after}
    del whole["candidates"]
    return EditResult(**whole, replacement=filled.text)


def _check_kept(change: EditSpec, base: Request, constraint: ConstraintSpec | None) -> None:
    """Reject options that have no meaning for a span that keeps its number of tokens."""
    given = ["max_new_tokens"] if change.max_new_tokens else []
    given += ["stop"] if base.stop else []
    if constraint is not None:
        given += [*constraint.given, *(["schema_options"] if constraint.schema_options else [])]
    if given:
        raise InputError(f"{given[0]} requires level 1; below level 1 the span keeps its number of tokens")


def _revise(info: ModelInfo, shown: Hole, present: str, change: EditSpec, base: Request) -> Plan[InfillResult]:
    """Replace a share `level` of the span's tokens by noise and pin the others; the number of tokens stays.

    A canvas that only starts from the other tokens would be closer to the diffusion process. But a model may replace
    tokens that are nearly clean: a small model changed more at level 0.02 than at 0.2. With pins, a low level is a
    small change with every model.
    """
    method = method_for(change.method, info.tokenizer, shown)
    prompt = fill_prompt if method == "prompt" else plain_prompt
    length = token_count(info, present)
    base = with_prompt(info, base, prompt(info.tokenizer, shown, shown.before), length)
    canvas = base.canvas_length(info.config)

    def request_for(shown_before: str, dropped: str) -> HoleRequest:
        tokens = info.tokenizer.encode(dropped + present, bos=False)
        if method == "prompt":  # the end follows the text, as in training
            after = [info.eos_token_id]
        else:
            near = nearest_start(info.tokenizer, shown.after, -len(tokens) % canvas)
            after = info.tokenizer.encode(near, bos=False)
        pins = {len(tokens) + i: token for i, token in enumerate(after)}
        noised = _noised(len(tokens), change.level, base.seed)
        request = replace(
            base,
            prompt=prompt(info.tokenizer, shown, shown_before),
            max_new_tokens=len(tokens) + len(after),
            pins=pins | {i: token for i, token in enumerate(tokens) if i not in noised},
            guide=info.guides.within(dropped, ""),
        )
        return HoleRequest(request=request, hole_length=len(tokens))

    shown_before, dropped = heal(info, shown, ())
    chosen = request_for(shown_before, dropped)
    if dropped and not is_possible(chosen.request):  # a long token became noise, and no other token fits in its place
        dropped = ""
        chosen = request_for(shown.before, dropped)
    filled = yield from fill_holes(info, [chosen], dropped, ())
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

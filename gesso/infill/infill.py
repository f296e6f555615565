"""Fill a hole in a text. The text around it is copied from the caller's strings and never decoded from tokens."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gesso.constraints.answer_check import AnswerCheck
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.events import Usage
from gesso.engine.plan import AnswerToCheck, Plan, candidates_of, retry_seed, score, total_usage, until_valid
from gesso.engine.request import ATTEMPTS, Request
from gesso.errors import InputError
from gesso.infill.boundary import nearest_start
from gesso.infill.candidates import log_likelihoods
from gesso.infill.holes import Hole, fill_prompt, method_for, plain_prompt, visible_hole
from gesso.infill.requests import (
    HoleRequest,
    fill_holes,
    guide_within,
    heal,
    is_possible,
    tokens_for,
    with_prompt,
)
from gesso.infill.results import HoleCandidate, HolesResult, InfillResult
from gesso.request.info import ModelInfo
from gesso.request.spec import HoleSpec

# A pinned hole takes at most this part of a canvas; the text after it takes the rest.
LONGEST_HOLE = 2  # one half
USUAL_HOLE = 4  # one quarter, without max_new_tokens
ROUND = 8  # lengths tried per round, after the first round


def infill(info: ModelInfo, hole: HoleSpec, base: Request, constraint: ConstraintSpec | None) -> Plan[InfillResult]:
    """Return a plan for the text between two texts.

    `base` is the request that those of the plan are variations of. The constraint is that on the text in the hole.
    """
    shown = visible_hole(info.tokenizer, hole.prefix, hole.suffix, hole.context)
    if not (hole.prefix or hole.suffix):
        raise InputError("prefix and suffix are empty: there is no text around the hole; use generate instead")
    return (yield from fill(info, shown, hole, base, constraint))


def infill_holes(infill: Callable[..., InfillResult], parts: Sequence[str], **options: Any) -> HolesResult:
    """Fill the holes between several texts from left to right, each by `infill(prefix, suffix, **options)`."""
    if isinstance(parts, str) or len(parts) < 2:
        raise InputError("parts are the texts around the holes, in order: two or more, one more than there are holes")
    if "" in parts[1:-1]:
        raise InputError("two holes have nothing between them; make them one")
    text, middles = parts[0], []
    for part in parts[1:]:
        middles.append(infill(text, part, **options))
        options["seed"] = middles[0].seed
        text += middles[-1].text + part
    return HolesResult(text, tuple(middles))


@dataclass(frozen=True, kw_only=True)
class HoleText:
    """The text of one hole, which can be written several times."""

    info: ModelInfo
    shown: Hole
    hole: HoleSpec
    base: Request
    constraint: ConstraintSpec | None

    def write(self, numbers: Sequence[int], attempt: int) -> Plan[list[InfillResult]]:
        base = self.base.with_seed(retry_seed(self.base.seed, attempt))
        result = yield from _fill(self.info, self.shown, self.hole, base, self.constraint)
        return [result]

    def to_check(self, number: int, result: InfillResult) -> AnswerToCheck | None:
        """A text that a stop string or its length may have cut off is not checked."""
        is_whole = result.finish_reason == "stop" or (result.method == "pinned" and self.shown.after)
        schema = None if self.constraint is None else self.constraint.json_schema
        if schema is None or self.base.stop or not is_whole:
            return None
        return AnswerToCheck(AnswerCheck(json_schema=schema), result)


def fill(
    info: ModelInfo, shown: Hole, hole: HoleSpec, base: Request, constraint: ConstraintSpec | None
) -> Plan[InfillResult]:
    """Fill a hole with a text that is valid under the JSON schema of the constraint, if it has one."""
    text = HoleText(info=info, shown=shown, hole=hole, base=base, constraint=constraint)
    (result,) = yield from until_valid(text, 1, ATTEMPTS)
    return result


def _fill(
    info: ModelInfo, shown: Hole, hole: HoleSpec, base: Request, constraint: ConstraintSpec | None
) -> Plan[InfillResult]:
    """Fill a hole by the method that suits the model and the text."""
    method = method_for(hole.method, info.tokenizer, shown)
    if method == "pinned" and shown.after:
        return (yield from _search(info, shown, hole, base, constraint))
    if hole.lengths is not None:
        raise InputError("lengths are for a hole with a pinned suffix; without one the model chooses the length")
    prompt = fill_prompt if method == "prompt" else plain_prompt
    base = with_prompt(info, base, prompt(info.tokenizer, shown, shown.before), hole.max_new_tokens)
    shown_before, dropped = heal(info, shown, base.stop)
    hole_length = base.max_new_tokens + tokens_for(info, dropped)
    request = replace(
        base,
        prompt=prompt(info.tokenizer, shown, shown_before),
        max_new_tokens=hole_length,
        guide=guide_within(info, dropped, "", constraint),
    )
    seeded = candidates_of(request, hole.candidates)
    requests = [HoleRequest(request=seeded_request, hole_length=hole_length) for seeded_request in seeded]
    filled = yield from fill_holes(info, requests, dropped, base.stop)
    tried: tuple[HoleCandidate, ...] = ()
    best = 0
    if hole.candidates > 1:
        scores = yield from log_likelihoods(info, request, [dropped + text for text in filled.texts])
        best = scores.index(max(scores))
        tried = tuple(
            HoleCandidate(length=len(tokens), text=text, log_likelihood=likelihood)
            for tokens, text, likelihood in zip(filled.tokens, filled.texts, scores, strict=True)
        )
    return InfillResult(
        text=filled.texts[best],
        tokens=filled.tokens[best],
        finish_reason=filled.results[best].finish_reason,
        usage=filled.usage(best),
        seed=base.seed,
        method=method,
        candidates=tried,
    )


# --- search for the length of a hole before pinned text -------------------------------------------------------------


def _search(
    info: ModelInfo, shown: Hole, hole: HoleSpec, base: Request, constraint: ConstraintSpec | None
) -> Plan[InfillResult]:
    """Try holes of several lengths, one batch per round, and return the likeliest text.

    A score is log p(middle + after | before). It is computed over the encoded text, not over the tokens of the canvas.
    p(middle | before, after) is proportional to it whatever the length of the middle, because `before` and `after` are
    the same for all candidates, so lengths compare fairly. A mean over tokens would not: a longer middle of easy tokens
    would outweigh an unlikely `after`. For the same reason all candidates pin and score the same part of `after`,
    although a canvas with a short hole has space for more.
    """
    began = time.monotonic()
    most = hole.max_new_tokens
    candidates = hole.candidates
    prompt = plain_prompt(info.tokenizer, shown, shown.before)
    base = with_prompt(info, base, prompt, 1 if most is None else most)
    stop = base.stop
    base = replace(base, stop=())  # the pinned text may contain a stop string
    canvas = base.canvas_length(info.config)
    if canvas < LONGEST_HOLE:
        raise InputError(f"a canvas of {canvas} token is too short for a hole and the text after it")
    if hole.lengths is None:
        limit = max(1, min(canvas // USUAL_HOLE if most is None else most, canvas // LONGEST_HOLE))
        trying = first_lengths(limit)
    else:
        trying = _check_lengths(hole.lengths, canvas - 1)
        limit = trying[-1]
    shown_before, dropped = heal(info, shown, stop, limit=canvas - limit - 1)
    after = nearest_start(info.tokenizer, shown.after, canvas - limit - tokens_for(info, dropped))
    pins = info.tokenizer.encode(after, bos=False)
    base = replace(
        base,
        prompt=plain_prompt(info.tokenizer, shown, shown_before),
        guide=guide_within(info, dropped, after, constraint),
    )

    def request_for(length: int) -> HoleRequest:
        hole_length = length + tokens_for(info, dropped)
        pinned = {hole_length + i: token for i, token in enumerate(pins)}
        request = replace(base, max_new_tokens=hole_length + len(pins), pins=pinned)
        return HoleRequest(request=request, hole_length=hole_length)

    likeliest: dict[int, HoleCandidate] = {}  # by length
    tokens: dict[int, tuple[int, ...]] = {}  # of these candidates
    usages: list[Usage] = []
    tried: list[int] = []
    while trying:
        tried += trying
        requests = {length: request_for(length) for length in trying}
        possible = [length for length in trying if constraint is None or is_possible(requests[length].request)]
        if not (possible or likeliest):
            requests[trying[-1]].request.reach.check()  # raises the reason
        lengths: list[int] = []  # of the candidates of this round
        seeded: list[HoleRequest] = []
        for length in possible:
            for request in candidates_of(requests[length].request, candidates):
                lengths.append(length)
                seeded.append(replace(requests[length], request=request))
        filled = yield from fill_holes(info, seeded, dropped, stop)
        joined = [info.tokenizer.encode(dropped + text + after, bos=False) for text in filled.texts]
        scores = yield from score(base.prompt, joined, info.max_length, base.adapter)
        for i, length in enumerate(lengths):
            candidate = HoleCandidate(length=length, text=filled.texts[i], log_likelihood=scores[i])
            if length not in likeliest or candidate.log_likelihood > likeliest[length].log_likelihood:
                likeliest[length] = candidate
                tokens[length] = filled.tokens[i]
        usages += [result.usage for result in filled.results]
        best = max(sorted(likeliest), key=lambda length: likeliest[length].log_likelihood)
        is_late = hole.seconds is not None and time.monotonic() - began >= hole.seconds
        trying = closer_lengths(sorted(tried), best) if hole.lengths is None and not is_late else []
    return InfillResult(
        text=likeliest[best].text,
        tokens=tokens[best],
        finish_reason="length" if best == limit else "stop",
        usage=total_usage(usages, len(tokens[best])),
        seed=base.seed,
        method="pinned",
        candidates=tuple(likeliest[length] for length in sorted(likeliest)),
    )


def first_lengths(limit: int) -> list[int]:
    """Return the lengths of the first round: 1, 2, 3, 4, 6, 8, 12, 16, 24 … below the limit, and the limit."""
    doubled = {base << power for base in (2, 3) for power in range(limit.bit_length())}
    return sorted({1, limit} | {length for length in doubled if length < limit})


def closer_lengths(tried: Sequence[int], best: int) -> list[int]:
    """Return untried lengths between the best one and its neighbours, evenly spread; none ends the search."""
    below = max((length for length in tried if length < best), default=0)
    above = min((length for length in tried if length > best), default=best + 1)
    untried = [length for length in range(below + 1, above) if length not in tried]
    if len(untried) <= ROUND:
        return untried
    return [untried[i * len(untried) // ROUND] for i in range(ROUND)]


def _check_lengths(given: Sequence[int], longest: int) -> list[int]:
    for length in given:
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= longest:
            raise InputError(f"a hole's length must be from 1 to {longest} tokens to fit the canvas, got {length!r}")
    if not given:
        raise InputError("lengths is empty; give at least one length, or leave it out to search for the length")
    return sorted(set(given))

"""Infill and edit: from the text around a hole to requests, and from what the engine wrote to the text that fills it.

What is given is never read back from tokens: a result is the caller's own strings with a new one between them.

How a hole is filled is a `Plan`, which returns what fills it in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gesso.constraints.constraint import NAMES
from gesso.diffusion.noise import HashSource
from gesso.engine.events import Result, Usage
from gesso.engine.plan import Plan, candidates_of, generate, log_likelihoods, score, together
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.infill.boundary import after_beginning, before_stop, nearest_start, whole_characters
from gesso.infill.holes import Hole, check_lengths, closer, fill_prompt, hole, lengths, method_for, plain_prompt
from gesso.infill.span import check_span, instruction_turn

if TYPE_CHECKING:
    from gesso.api import Gesso

LONGEST_HOLE = 2  # at most one in so many tokens of a canvas is the hole, the others are what comes after it
USUAL_HOLE = 4  # the same, when no max_new_tokens is given


@dataclass(frozen=True)
class Candidate:
    """A middle that was tried: the tokens of its hole, its text, and how likely the encoder finds it, in nats."""

    length: int
    text: str
    log_likelihood: float  # of the middle and of what comes after it, given what comes before


@dataclass(frozen=True)
class InfillResult(Result):
    """`text` is the missing middle; `tokens` are as written, and may begin with the end of the prefix: see `Healer`."""

    method: str = "prompt"
    candidates: tuple[Candidate, ...] = ()  # where several were tried: of each length the best, or of each seed


@dataclass(frozen=True)
class HolesResult:
    """`text` is the whole, `middles` are what fills its holes."""

    text: str
    middles: tuple[InfillResult, ...]


@dataclass(frozen=True)
class EditResult(Result):
    """`text` is the whole text, `replacement` what now stands in the span."""

    replacement: str = ""
    method: str = "prompt"


# --- infill ---------------------------------------------------------------------------------------------------------


def infill(
    g: "Gesso",
    prefix: str,
    suffix: str,
    *,
    method: str,
    lengths: Sequence[int] | None,
    context: int | None,
    candidates: int = 1,
    **options: Any,
) -> Plan[InfillResult]:
    shown = hole(g.tokenizer, prefix, suffix, context)
    if not (prefix or suffix):
        raise InputError("prefix and suffix are empty: there is no text around the hole; generate writes from nothing")
    return (yield from _fill(g, shown, method, lengths, candidates, **options))


def _fill(
    g: "Gesso", shown: Hole, method: str, lengths: Sequence[int] | None, candidates: int, **options: Any
) -> Plan[InfillResult]:
    method = method_for(method, g.tokenizer, shown)
    if method == "pinned" and shown.after:
        return (yield from _search(g, shown, lengths, candidates, **options))
    if lengths is not None:
        raise InputError("lengths are for a hole with a pinned suffix; without one the model ends by itself")
    prompt = fill_prompt if method == "prompt" else plain_prompt
    constraint = _constraint(options)
    base = _request(g, prompt(g.tokenizer, shown, shown.before), **options)
    kept, dropped = _heal(g, shown, base.stop)
    hole = base.max_new_tokens + _room_for(g, dropped)  # what was taken off the prompt is written, too
    request = replace(
        base,
        prompt=prompt(g.tokenizer, shown, kept),
        max_new_tokens=hole,
        guide=g.guides.within(dropped, "", **constraint),
    )
    asks = [Ask(one, hole) for one in candidates_of(request, candidates)]
    written = yield from _write(g, asks, dropped, base.stop)
    tried: tuple[Candidate, ...] = ()
    best = 0
    if candidates > 1:
        scores = yield from log_likelihoods(g, request.prompt, [dropped + text for text in written.texts])
        best = scores.index(max(scores))
        lengths_tried = [len(tokens) for tokens in written.tokens]
        tried = tuple(map(Candidate, lengths_tried, written.texts, scores))
    reason, usage = written.results[best].finish_reason, written.usage(best)
    return InfillResult(written.texts[best], written.tokens[best], reason, usage, base.seed, method, tried)


def infill_holes(g: "Gesso", parts: Sequence[str], **options: Any) -> HolesResult:
    if isinstance(parts, str) or len(parts) < 2:
        raise InputError("parts are the texts around the holes, in order: two or more, one more than there are holes")
    if "" in parts[1:-1]:
        raise InputError("two holes have nothing between them; make them one")
    text, middles = parts[0], []
    for part in parts[1:]:
        middles.append(g.infill(text, part, **options))
        options["seed"] = middles[0].seed
        text += middles[-1].text + part
    return HolesResult(text, tuple(middles))


def _search(
    g: "Gesso", shown: Hole, given: Sequence[int] | None, candidates: int, **options: Any
) -> Plan[InfillResult]:
    """Round by round, holes of several lengths side by side in the engine; the likeliest whole wins.

    A score is log p(middle + after | before), over the text as it will be read and not over the tokens of the canvas.
    That compares lengths fairly as it stands: p(middle | before, after) is proportional to it, whatever the length of
    the middle, because `before` and `after` are the same for all. A mean over tokens would not do, it would let a
    longer middle of easy tokens outweigh what comes after being unlikely. For the same reason all candidates pin and
    score the same stretch of `after`, though a short hole would leave room for more.
    """
    most, constraint = options.pop("max_new_tokens", None), _constraint(options)
    constrained = any(value is not None for value in constraint.values())
    base = _request(
        g, plain_prompt(g.tokenizer, shown, shown.before), max_new_tokens=1 if most is None else most, **options
    )
    stop, base = base.stop, replace(base, stop=())  # what comes after may well have a stop string in it
    canvas = base.canvas_length(g.config)
    if canvas < LONGEST_HOLE:
        raise InputError(f"a canvas of {canvas} token has no room for a hole and what comes after it")
    if given is None:
        limit = max(1, min(canvas // USUAL_HOLE if most is None else most, canvas // LONGEST_HOLE))
        trying = lengths(limit)
    else:
        trying = check_lengths(given, canvas - 1)
        limit = trying[-1]
    kept, dropped = _heal(g, shown, stop, room=canvas - limit - 1)
    after = nearest_start(g.tokenizer, shown.after, canvas - limit - _room_for(g, dropped))
    pins = g.tokenizer.encode(after, bos=False)

    base = replace(
        base, prompt=plain_prompt(g.tokenizer, shown, kept), guide=g.guides.within(dropped, after, **constraint)
    )

    def ask(length: int) -> Ask:
        hole = length + _room_for(g, dropped)  # what was taken off the prompt is written, too
        pinned = {hole + i: token for i, token in enumerate(pins)}
        return Ask(replace(base, max_new_tokens=hole + len(pins), pins=pinned), hole)

    found: dict[int, Candidate] = {}
    tokens: dict[int, tuple[int, ...]] = {}
    usages: list[Usage] = []
    tried: list[int] = []
    while trying:
        tried += trying
        asks = {length: ask(length) for length in trying}
        able = [length for length in trying if not constrained or _possible(asks[length].request)]
        if not (able or found):
            asks[trying[-1]].request.reach.check()  # which says why
        each = [length for length in able for _ in range(candidates)]
        of_each = [replace(asks[length], request=one) for length in able
                   for one in candidates_of(asks[length].request, candidates)]  # fmt: skip
        written = yield from _write(g, of_each, dropped, stop)
        joined = [g.tokenizer.encode(dropped + text + after, bos=False) for text in written.texts]
        scores = yield from score(g, base.prompt, joined)
        for i, length in enumerate(each):
            tried_now = Candidate(length, written.texts[i], scores[i])
            if length not in found or tried_now.log_likelihood > found[length].log_likelihood:
                found[length], tokens[length] = tried_now, written.tokens[i]
        usages += [result.usage for result in written.results]
        best = max(sorted(found), key=lambda length: found[length].log_likelihood)
        trying = closer(sorted(tried), best) if given is None else []
    return InfillResult(
        found[best].text,
        tokens[best],
        "length" if best == limit else "stop",
        together(usages, len(tokens[best])),
        base.seed,
        "pinned",
        tuple(found[length] for length in sorted(found)),
    )


# --- edit -----------------------------------------------------------------------------------------------------------


def edit(
    g: "Gesso",
    text: str,
    span: tuple[int, int],
    *,
    instruction: str | None,
    level: float,
    method: str,
    context: int | None,
    **options: Any,
) -> Plan[EditResult]:
    start, end = check_span(text, span, level)
    before, present, after = text[:start], text[start:end], text[end:]
    shown = hole(g.tokenizer, before, after, context)
    if instruction is not None:
        turn = instruction_turn(g.tokenizer, instruction, shown.before + present + shown.after)
        shown = replace(shown, opening=tuple(turn))
    elif level == 1 and not (before or after):
        raise InputError("the span is the whole text: at level 1 there is no text around it; give an instruction")
    if level < 1:
        found = yield from _revise(g, shown, present, level, method, **options)
    else:
        found = yield from _fill(g, shown, method, None, 1, **options)
    whole = {**vars(found), "text": before + found.text + after}
    del whole["candidates"]
    return EditResult(**whole, replacement=found.text)


def _revise(g: "Gesso", shown: Hole, present: str, level: float, method: str, **options: Any) -> Plan[InfillResult]:
    """The span keeps its number of tokens, and all of them but a share of `level`, which become noise.

    Those that stay are pinned. A canvas that only starts from them would be truer to the process, but a model need not
    hold on to what it is shown nearly clean, and a small one does not: it changed more at level 0.02 than at 0.2.
    Pinned, a low level is a small change whatever the model.
    """
    if given := [name for name in ("max_new_tokens", "stop", *NAMES) if options.pop(name, None)]:
        raise InputError(f"{given[0]} goes with level 1; below, the span keeps its number of tokens")
    method = method_for(method, g.tokenizer, shown)
    prompt = fill_prompt if method == "prompt" else plain_prompt
    base = _request(g, prompt(g.tokenizer, shown, shown.before), max_new_tokens=_count(g, present), **options)
    canvas = base.canvas_length(g.config)

    def ask(kept: str, dropped: str) -> Ask:
        tokens = g.tokenizer.encode(dropped + present, bos=False)
        if method == "prompt":  # with its end in sight, as in training
            after = [g.defaults.eos_token_ids[0]]
        else:
            after = g.tokenizer.encode(nearest_start(g.tokenizer, shown.after, -len(tokens) % canvas), bos=False)
        pins = {len(tokens) + i: token for i, token in enumerate(after)}
        noised = _noised(len(tokens), level, base.seed)
        request = replace(
            base,
            prompt=prompt(g.tokenizer, shown, kept),
            max_new_tokens=len(tokens) + len(after),
            pins=pins | {i: token for i, token in enumerate(tokens) if i not in noised},
            guide=g.guides.within(dropped, ""),
        )
        return Ask(request, len(tokens))

    kept, dropped = _heal(g, shown, ())
    asked = ask(kept, dropped)
    if dropped and not _possible(asked.request):  # a long token became noise, and no other can stand in its place
        dropped, asked = "", ask(shown.before, "")
    written = yield from _write(g, [asked], dropped, ())
    return InfillResult(written.texts[0], written.tokens[0], "stop", written.usage(0), base.seed, method)


def _noised(length: int, level: float, seed: int) -> set[int]:
    """Which of so many tokens become noise: each with probability `level`, and one in any case.

    By the seed, as every draw; what one level takes, a higher one takes, too.
    """
    uniform_C = HashSource().at(seed, 0, 0, torch.device("cpu")).uniform(length)
    return {int(uniform_C.argmin()), *torch.nonzero(uniform_C < level).flatten().tolist()}


# --- asking, and reading what was written ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    request: Request
    hole: int  # how many of its tokens, from the first on, fill the hole


@dataclass(frozen=True)
class Written:
    """What was written into each of several holes."""

    texts: list[str]
    tokens: list[tuple[int, ...]]
    results: list[Result]

    def usage(self, which: int) -> Usage:
        return together([result.usage for result in self.results], len(self.tokens[which]))


def _write(g: "Gesso", asks: Sequence[Ask], dropped: str, stop: Sequence[str]) -> Plan[Written]:
    """Have all asks written side by side; `dropped` is what was taken off the prompt, and written first."""
    results = yield from _run(g, [ask.request for ask in asks])
    tokens = [result.tokens[: ask.hole] for ask, result in zip(asks, results, strict=True)]
    texts = [_middle(g, ask, result, dropped) for ask, result in zip(asks, results, strict=True)]
    return Written([before_stop(text, stop) for text in texts], tokens, results)


def _middle(g: "Gesso", ask: Ask, result: Result, dropped: str) -> str:
    """What fills the hole."""
    stopped = result.finish_reason == "stop" and len(result.tokens) <= ask.hole
    decode = g.decode if stopped else partial(whole_characters, g.decode)
    return after_beginning(decode, g.guides.words, result.tokens[: ask.hole], dropped)


def _heal(g: "Gesso", shown: Hole, stop: Sequence[str], room: int | None = None) -> tuple[str, str]:
    """The text to end the prompt with, and what is taken off it."""
    kept, dropped = g.healer.split(shown.before)
    # The engine looks for stop strings in all that is written, what was taken off the prompt included.
    meets_stop = set(dropped) & set("".join(stop))
    # What is pinned behind the hole must not pass for a part of it, as spaces before spaces would.
    goes_on = any(shown.after.startswith(dropped[cut:]) for cut in range(1, len(dropped)))
    too_long = room is not None and _room_for(g, dropped) > room
    return (shown.before, "") if meets_stop or goes_on or too_long else (kept, dropped)


def _room_for(g: "Gesso", dropped: str) -> int:
    """How many tokens surely write it: a search writes a long token by shorter ones."""
    guide = g.guides.within(dropped, "")
    return 0 if guide is None else max(guide.shortest, _count(g, dropped))


def _possible(request: Request) -> bool:
    """Whether a hole is long enough for what its text must be."""
    try:
        request.reach.check()
    except InputError:
        return False
    return True


def _constraint(options: dict[str, Any]) -> dict[str, Any]:
    """Taken out of the options: it is the middle that keeps to it, not all that is written."""
    return {name: options.pop(name, None) for name in NAMES}


def _request(g: "Gesso", prompt: Sequence[int], **options: Any) -> Request:
    """The request that all others are variations of; refused here if it cannot be run."""
    if wrong := {"pins", "resume"} & set(options):
        raise InputError(f"{min(wrong)} belongs to generate: here the text around the hole decides")
    # What a middle must begin with is not in the prompt: left alone, the model would not know of it.
    request = replace(g.request(prompt, **options), free_first=False)
    _check(g, request)
    return request


def _run(g: "Gesso", requests: list[Request]) -> Plan[list[Result]]:
    for request in requests:
        _check(g, request)
    return (yield from generate(requests))


def _check(g: "Gesso", request: Request) -> None:
    prompt, room = len(request.prompt), g.engine.max_length
    if prompt + request.max_new_tokens > room:
        raise InputError(
            f"context overflow: the text around the hole has {prompt} tokens; with a canvas of up to "
            f"{request.max_new_tokens} they exceed the context of {room}. Give context=N to show the model only the "
            "nearest N tokens of each side, or lower max_new_tokens"
        )
    g.engine.check(request)


def _count(g: "Gesso", text: str) -> int:
    return len(g.tokenizer.encode(text, bos=False))

"""Infill and edit: from the text around a hole to requests, and from what the engine wrote to the text that fills it.

What is given is never read back from tokens: a result is the caller's own strings with a new one between them.

How a hole is filled is a `Plan`: it yields requests that may run side by side, is sent their results, and returns what
fills the hole in the end. Who carries it out (`Gesso`, or a server that has others to serve meanwhile) runs the engine.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gesso.diffusion.noise import HashSource
from gesso.engine.events import Result, Usage
from gesso.engine.likelihood import Likelihood
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.guide.boundary import before_stop, nearest_start, whole_characters
from gesso.guide.edit import check_span, instruction_turn
from gesso.guide.infill import Hole, check_lengths, closer, fill_prompt, hole, lengths, method_for, plain_prompt

if TYPE_CHECKING:
    from gesso.api import Gesso

LONGEST_HOLE = 2  # at most one in so many tokens of a canvas is the hole, the others are what comes after it
USUAL_HOLE = 4  # the same, when no max_new_tokens is given

T = TypeVar("T")
Plan = Generator[list[Request], list[Result], T]


@dataclass(frozen=True)
class Candidate:
    """A middle that the search has tried: the tokens of its hole, its text, and how likely the whole then is."""

    length: int
    text: str
    log_likelihood: float  # of the middle and of what comes after it, given what comes before; nats


@dataclass(frozen=True)
class InfillResult(Result):
    """`text` is the missing middle; `tokens` are as written, and may begin with the end of the prefix: see `Healer`."""

    method: str = "prompt"
    candidates: tuple[Candidate, ...] = ()  # where the length was searched, the shortest first


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
    **options: Any,
) -> Plan[InfillResult]:
    shown = hole(g.tokenizer, prefix, suffix, context)
    if not (prefix or suffix):
        raise InputError("prefix and suffix are empty: there is no text around the hole; generate writes from nothing")
    return (yield from _fill(g, shown, method, lengths, **options))


def _fill(g: "Gesso", shown: Hole, method: str, lengths: Sequence[int] | None, **options: Any) -> Plan[InfillResult]:
    method = method_for(method, g.tokenizer, shown)
    if method == "pinned" and shown.after:
        return (yield from _search(g, shown, lengths, **options))
    if lengths is not None:
        raise InputError("lengths are for a hole with a pinned suffix; without one the model ends by itself")
    prompt = fill_prompt if method == "prompt" else plain_prompt
    base = _request(g, prompt(g.tokenizer, shown, shown.before), **options)

    def ask(before: str) -> Ask:
        return Ask(replace(base, prompt=prompt(g.tokenizer, shown, before)), base.max_new_tokens)

    written = yield from _write(g, [ask], shown, _heal(g, shown, base.stop), base.stop)
    return InfillResult(
        written.texts[0], written.tokens[0], written.results[0].finish_reason, written.usage(0), base.seed, method
    )


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


def _search(g: "Gesso", shown: Hole, given: Sequence[int] | None, **options: Any) -> Plan[InfillResult]:
    """Round by round, holes of several lengths side by side in the engine; the likeliest whole wins.

    A score is log p(middle + after | before), over the text as it will be read and not over the tokens of the canvas.
    That compares lengths fairly as it stands: p(middle | before, after) is proportional to it, whatever the length of
    the middle, because `before` and `after` are the same for all. A mean over tokens would not do, it would let a
    longer middle of easy tokens outweigh what comes after being unlikely. For the same reason all candidates pin and
    score the same stretch of `after`, though a short hole would leave room for more.
    """
    most = options.pop("max_new_tokens", None)
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
    kept = _heal(g, shown, stop, room=canvas - limit - 1)
    dropped = shown.before[len(kept) :]
    after = nearest_start(g.tokenizer, shown.after, canvas - limit - _count(g, dropped))
    pins = g.tokenizer.encode(after, bos=False)

    def ask(length: int, before: str) -> Ask:
        hole = length + _count(g, shown.before[len(before) :])  # what was taken off the prompt is written, too
        pinned = {hole + i: token for i, token in enumerate(pins)}
        prompt = plain_prompt(g.tokenizer, shown, before)
        return Ask(replace(base, prompt=prompt, max_new_tokens=hole + len(pins), pins=pinned), hole)

    likelihood = Likelihood(g.model, plain_prompt(g.tokenizer, shown, kept))
    found: dict[int, Candidate] = {}
    tokens: dict[int, tuple[int, ...]] = {}
    usages: list[Usage] = []
    while trying:
        written = yield from _write(g, [partial(ask, length) for length in trying], shown, kept, stop)
        for i, length in enumerate(trying):
            joined = g.tokenizer.encode(dropped + written.texts[i] + after, bos=False)
            found[length] = Candidate(length, written.texts[i], likelihood.of(joined))
            tokens[length] = written.tokens[i]
        usages += [result.usage for result in (*written.results, *written.refused)]
        best = max(sorted(found), key=lambda length: found[length].log_likelihood)
        trying = closer(sorted(found), best) if given is None else []
    return InfillResult(
        found[best].text,
        tokens[best],
        "length" if best == limit else "stop",
        _usage(usages, len(tokens[best])),
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
        found = yield from _fill(g, shown, method, None, **options)
    whole = {**vars(found), "text": before + found.text + after}
    del whole["candidates"]
    return EditResult(**whole, replacement=found.text)


def _revise(g: "Gesso", shown: Hole, present: str, level: float, method: str, **options: Any) -> Plan[InfillResult]:
    """The span keeps its number of tokens, and all of them but a share of `level`, which become noise.

    Those that stay are pinned. A canvas that only starts from them would be truer to the process, but a model need not
    hold on to what it is shown nearly clean, and a small one does not: it changed more at level 0.02 than at 0.2.
    Pinned, a low level is a small change whatever the model.
    """
    if given := [name for name in ("max_new_tokens", "stop") if options.pop(name, None)]:
        raise InputError(f"{given[0]} goes with level 1; below, the span keeps its number of tokens")
    method = method_for(method, g.tokenizer, shown)
    prompt = fill_prompt if method == "prompt" else plain_prompt
    base = _request(g, prompt(g.tokenizer, shown, shown.before), max_new_tokens=_count(g, present), **options)
    canvas = base.canvas_length(g.config)

    def ask(before: str) -> Ask:
        tokens = g.tokenizer.encode(shown.before[len(before) :] + present, bos=False)
        if method == "prompt":  # with its end in sight, as in training
            after = [g.defaults.eos_token_ids[0]]
        else:
            after = g.tokenizer.encode(nearest_start(g.tokenizer, shown.after, -len(tokens) % canvas), bos=False)
        pins = {len(tokens) + i: token for i, token in enumerate(after)}
        noised = _noised(len(tokens), level, base.seed)
        request = replace(
            base,
            prompt=prompt(g.tokenizer, shown, before),
            max_new_tokens=len(tokens) + len(after),
            pins=pins | {i: token for i, token in enumerate(tokens) if i not in noised},
        )
        return Ask(request, len(tokens))

    written = yield from _write(g, [ask], shown, _heal(g, shown, ()), ())
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
    refused: list[Result]  # drawn, but of no use

    def usage(self, which: int) -> Usage:
        return _usage([result.usage for result in (*self.results, *self.refused)], len(self.tokens[which]))


def _write(
    g: "Gesso", asks: Sequence[Callable[[str], Ask]], shown: Hole, kept: str, stop: Sequence[str]
) -> Plan[Written]:
    """Have all asks written side by side; an ask is a function of the text that the prompt ends with.

    First with the healed prompt. Where the text then does not begin with what was taken off, once more with the prompt
    as it was given: that is the token itself, which the model would not have extended.
    """
    asked = [ask(kept) for ask in asks]
    results = yield from _run(g, [ask.request for ask in asked])
    texts = [_middle(g, ask, result, shown.before[len(kept) :]) for ask, result in zip(asked, results, strict=True)]
    again = [i for i, text in enumerate(texts) if text is None]
    refused = [results[i] for i in again]
    for i in again:
        asked[i] = asks[i](shown.before)
    redone = yield from _run(g, [asked[i].request for i in again])
    for i, result in zip(again, redone, strict=True):
        results[i], texts[i] = result, _middle(g, asked[i], result, "")
    tokens = [result.tokens[: ask.hole] for ask, result in zip(asked, results, strict=True)]
    return Written([before_stop(text or "", stop) for text in texts], tokens, results, refused)


def _middle(g: "Gesso", ask: Ask, result: Result, dropped: str) -> str | None:
    """What fills the hole; None if the text does not begin as it must."""
    stopped = result.finish_reason == "stop" and len(result.tokens) <= ask.hole
    text = result.text if stopped else whole_characters(g.decode, result.tokens[: ask.hole])
    return text[len(dropped) :] if text.startswith(dropped) else None


def _heal(g: "Gesso", shown: Hole, stop: Sequence[str], room: int | None = None) -> str:
    """The text to end the prompt with."""
    kept, dropped = g.healer.split(shown.before)
    # The engine looks for stop strings in all that is written, what was taken off the prompt included.
    meets_stop = set(dropped) & set("".join(stop))
    too_long = room is not None and _count(g, dropped) > room
    return shown.before if meets_stop or too_long else kept


def _request(g: "Gesso", prompt: Sequence[int], **options: Any) -> Request:
    """The request that all others are variations of; refused here if it cannot be run."""
    if wrong := {"pins", "resume"} & set(options):
        raise InputError(f"{min(wrong)} belongs to generate: here the text around the hole decides")
    request = g.request(prompt, **options)
    _check(g, request)
    return request


def _run(g: "Gesso", requests: list[Request]) -> Plan[list[Result]]:
    for request in requests:
        _check(g, request)
    return (yield requests) if requests else []


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


def _usage(usages: Sequence[Usage], completion_tokens: int) -> Usage:
    """One for several requests: the first one's prompt, the work of all."""
    return Usage(
        usages[0].prompt_tokens,
        usages[0].cached_tokens,
        completion_tokens,
        sum(usage.denoising_steps for usage in usages),
        sum(usage.canvases for usage in usages),
        sum(usage.redrawn for usage in usages),
    )

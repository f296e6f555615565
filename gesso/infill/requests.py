"""Build the requests for a hole, and return the text that fills it from their results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from gesso.constraints.guide import Guide
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.events import Result, Usage
from gesso.engine.plan import Plan, generate, total_usage
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.infill.boundary import after_beginning, before_stop, whole_characters
from gesso.infill.holes import Hole
from gesso.request.info import ModelInfo


@dataclass(frozen=True)
class HoleRequest:
    request: Request
    hole_length: int  # tokens at the start of the new text that fill the hole; pinned tokens may follow


@dataclass(frozen=True)
class Fillings:
    """The generated texts of several requests, in order."""

    texts: list[str]
    tokens: list[tuple[int, ...]]
    results: list[Result]

    def usage(self, chosen: int) -> Usage:
        return total_usage([result.usage for result in self.results], len(self.tokens[chosen]))


def with_prompt(info: ModelInfo, base: Request, prompt: tuple[int, ...], max_new_tokens: int | None) -> Request:
    """Return a checked variation of the base request, by default of the usual length."""
    length = info.length_after(len(prompt), max_new_tokens)
    request = replace(base, prompt=prompt, max_new_tokens=length)
    _check(info, request)
    return request


def guide_within(info: ModelInfo, before: str, after: str, constraint: ConstraintSpec | None) -> Guide | None:
    """Return the guide for a text between two given texts, with the constraint on the text in the hole."""
    if constraint is None:
        return info.guides.within(before, after)
    return info.guides.within(before, after, schema_options=constraint.schema_options, **constraint.given)


def heal(info: ModelInfo, shown: Hole, stop: Sequence[str], limit: int | None = None) -> tuple[str, str]:
    """Return the text before the hole without its healed end, and that end, which the model must write again.

    Nothing is dropped if the rest needs more than `limit` tokens.
    """
    healed, dropped = info.healer.split(shown.before)
    # The engine looks for stop strings in the whole new text, the dropped text included.
    meets_stop = set(dropped) & set("".join(stop))
    # Pinned text after the hole must not be mistaken for dropped text, such as spaces before spaces.
    continues = any(shown.after.startswith(dropped[cut:]) for cut in range(1, len(dropped)))
    too_long = limit is not None and tokens_for(info, dropped) > limit
    return (shown.before, "") if meets_stop or continues or too_long else (healed, dropped)


def tokens_for(info: ModelInfo, dropped: str) -> int:
    """Return how many tokens suffice to write dropped text: the search may replace a long token by shorter ones."""
    guide = info.guides.within(dropped, "")
    return 0 if guide is None else max(guide.shortest, token_count(info, dropped))


def token_count(info: ModelInfo, text: str) -> int:
    return len(info.tokenizer.encode(text, bos=False))


def is_possible(request: Request) -> bool:
    """Return whether the constraint can be satisfied within the length and the pins of a request."""
    try:
        request.reach.check()
    except InputError:
        return False
    return True


def fill_holes(info: ModelInfo, requests: Sequence[HoleRequest], dropped: str, stop: Sequence[str]) -> Plan[Fillings]:
    """Run requests in one batch and cut their texts to the hole: after the dropped text, and before a stop string."""
    for hole in requests:
        _check(info, hole.request)
    results = yield from generate([hole.request for hole in requests])
    pairs = list(zip(requests, results, strict=True))
    texts = [_text(info, hole.hole_length, result, dropped) for hole, result in pairs]
    return Fillings(
        texts=[before_stop(text, stop) for text in texts],
        tokens=[result.tokens[: hole.hole_length] for hole, result in pairs],
        results=results,
    )


def _text(info: ModelInfo, hole_length: int, result: Result, dropped: str) -> str:
    """Return the text that fills the hole, after the dropped text."""
    stopped = result.finish_reason == "stop" and len(result.tokens) <= hole_length
    text_of = info.tokenizer.text_of
    decode = text_of if stopped else partial(whole_characters, text_of)
    return after_beginning(decode, info.guides.words, result.tokens[:hole_length], dropped)


def _check(info: ModelInfo, request: Request) -> None:
    prompt, limit = len(request.prompt), info.max_length
    if prompt + request.max_new_tokens > limit:
        raise InputError(
            f"context overflow: the text around the hole has {prompt} tokens; with a canvas of up to "
            f"{request.max_new_tokens} they exceed the context of {limit}. Give context=N to show the model only the "
            "nearest N tokens of each side, or lower max_new_tokens"
        )
    request.check(info.config, limit)

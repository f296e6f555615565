"""Build the requests for a hole, and return the text that fills it from their results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gesso import renamed
from gesso.constraints.constraint import NAMES
from gesso.engine.events import Result, Usage
from gesso.engine.plan import Plan, generate, total_usage
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.infill.boundary import after_beginning, before_stop, whole_characters
from gesso.infill.holes import Hole
from gesso.infill.model import InfillModel
from gesso.settings import SHORT


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


def base_request(model: InfillModel, prompt: Sequence[int], **options: Any) -> Request:
    """Return a checked request that the requests for a hole are variations of."""
    wrong = {"pins", "resume"} & set(options)
    if wrong:
        raise InputError(f"{min(wrong)} is an option of generate only; the text around the hole takes its place")
    options = renamed.translated(options)
    if options.get("preset") in (None, SHORT):  # only a canvas can use the text after the hole, whatever its speed
        options = {"write": "canvas", **options}
    # A healed prompt lacks the beginning of the new text, which only the constraint then determines.
    request = replace(model.request(prompt, **options), free_first=False)
    _check(model, request)
    return request


def take_constraint(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the constraint from the options: it applies to the hole only, not to everything that is generated."""
    return {name: options.pop(name, None) for name in (*NAMES, "schema_options")}


def heal(model: InfillModel, shown: Hole, stop: Sequence[str], limit: int | None = None) -> tuple[str, str]:
    """Return the text before the hole without its healed end, and that end, which the model must write again.

    Nothing is dropped if the rest needs more than `limit` tokens.
    """
    healed, dropped = model.healer.split(shown.before)
    # The engine looks for stop strings in the whole new text, the dropped text included.
    meets_stop = set(dropped) & set("".join(stop))
    # Pinned text after the hole must not be mistaken for dropped text, such as spaces before spaces.
    continues = any(shown.after.startswith(dropped[cut:]) for cut in range(1, len(dropped)))
    too_long = limit is not None and tokens_for(model, dropped) > limit
    return (shown.before, "") if meets_stop or continues or too_long else (healed, dropped)


def tokens_for(model: InfillModel, dropped: str) -> int:
    """Return how many tokens suffice to write dropped text: the search may replace a long token by shorter ones."""
    guide = model.guides.within(dropped, "")
    return 0 if guide is None else max(guide.shortest, token_count(model, dropped))


def token_count(model: InfillModel, text: str) -> int:
    return len(model.tokenizer.encode(text, bos=False))


def is_possible(request: Request) -> bool:
    """Return whether the constraint can be satisfied within the length and the pins of a request."""
    try:
        request.reach.check()
    except InputError:
        return False
    return True


def fill_holes(
    model: InfillModel, requests: Sequence[HoleRequest], dropped: str, stop: Sequence[str]
) -> Plan[Fillings]:
    """Run requests in one batch and cut their texts to the hole: after the dropped text, and before a stop string."""
    for hole in requests:
        _check(model, hole.request)
    results = yield from generate([hole.request for hole in requests])
    pairs = list(zip(requests, results, strict=True))
    texts = [_text(model, hole.hole_length, result, dropped) for hole, result in pairs]
    return Fillings(
        texts=[before_stop(text, stop) for text in texts],
        tokens=[result.tokens[: hole.hole_length] for hole, result in pairs],
        results=results,
    )


def _text(model: InfillModel, hole_length: int, result: Result, dropped: str) -> str:
    """Return the text that fills the hole, after the dropped text."""
    stopped = result.finish_reason == "stop" and len(result.tokens) <= hole_length
    decode = model.decode if stopped else partial(whole_characters, model.decode)
    return after_beginning(decode, model.guides.words, result.tokens[:hole_length], dropped)


def _check(model: InfillModel, request: Request) -> None:
    prompt, limit = len(request.prompt), model.max_length
    if prompt + request.max_new_tokens > limit:
        raise InputError(
            f"context overflow: the text around the hole has {prompt} tokens; with a canvas of up to "
            f"{request.max_new_tokens} they exceed the context of {limit}. Give context=N to show the model only the "
            "nearest N tokens of each side, or lower max_new_tokens"
        )
    request.check(model.config, limit)

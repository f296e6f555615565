"""From the fields of a request to jobs for the engine; a request that cannot run is rejected here."""

import secrets
from collections.abc import Sequence
from typing import Any

from gesso.chat.messages import check_tools
from gesso.constraints.constraint import expression
from gesso.constraints.tools import calls_regex, chosen
from gesso.engine.request import Request
from gesso.serve.errors import ApiError
from gesso.serve.fields import Common, DraftFields
from gesso.serve.prepare.frontend import ModelFrontend, characters, frontend_of
from gesso.serve.prepare.request import Accepted, PreparedJob, Source
from gesso.serve.protocol import Constraint, Submit, submit_payload
from gesso.settings import choose

SEEDS = 2**64
NOT_DIFFUSION = ("max_new_tokens", "stop", "pins", "top_logprobs", "draft_logprobs")


class Reading:
    """One request being read: the model it names, and the limits it has to keep."""

    def __init__(self, task: dict[str, Any], asked: Common, frontends: Sequence[ModelFrontend]) -> None:
        self.asked, self.frontend = asked, frontend_of(frontends, asked.model)
        self.context: int = task["contexts"][self.frontend.name]
        self.limits = self.frontend.settings.limits

    def ids(self, text: str, *, bos: bool = True) -> list[int]:
        self.frontend.check_size(len(text), self.context)
        return self.frontend.tokenizer.encode(text, bos=bos)

    def chat(self, messages: Sequence[dict[str, Any]], *, tools: Any = None, thinking: bool = False) -> list[int]:
        self.frontend.check_size(characters(messages) + characters(tools), self.context)
        return self.frontend.tokenizer.chat(messages, tools=tools, thinking=thinking)

    def source(self, constraint: dict[str, Any] | None) -> Source | None:
        """Translate a constraint into a regular expression, or reject it."""
        if constraint is None:
            return None
        limits, pinned = self.frontend.guides.limits, bool(self.asked.diffusion.pins)
        if "tools" in constraint:
            functions = chosen(check_tools(constraint["tools"]) or (), constraint["choice"])
            self.frontend.guides.check_tags()
            regex = calls_regex(functions, parallel=constraint["parallel"], limits=limits)
            return Source(regex=regex, tools=True, pinned=pinned)
        ((name, value),) = constraint.items()
        return Source(regex=expression(name, value, limits), tools=False, pinned=pinned)

    def jobs(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        source: Source | None = None,
        hole: dict[str, Any] | None = None,
    ) -> tuple[list[PreparedJob], Constraint | None]:
        """Make one job for each choice of each prompt. Choice i is what seed + i gives alone.

        With a hole to fill, the prompt only counts towards the context: the engine takes the text from `hole`.
        """
        asked = self.asked
        if n * len(prompts) > self.limits.choices:
            raise ApiError(400, f"n: at most {self.limits.choices} choices in one request", param="n")
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        constraint = None if source is None else source.constraint(self.frontend.name)
        jobs: list[PreparedJob] = []
        for which, prompt in enumerate(prompts):
            options = self._options(len(prompt), max_tokens, stop, top_logprobs)
            self._check(prompt, options)
            length = options["max_new_tokens"]
            if hole is not None:
                options = _of_hole(options, max_tokens)
            for choice in range(n):
                submit = Submit(
                    id=0,
                    prompt=[] if hole is not None else list(prompt),
                    options={**options, "seed": (seed + choice) % SEEDS},
                    adapter=self.frontend.adapter(asked.model),
                    stream=asked.stream,
                    drafts=asked.diffusion.drafts is not False,
                    constraint=constraint,
                    hole=hole,
                )
                jobs.append(
                    PreparedJob(
                        prompt=which,
                        prompt_tokens=len(prompt),
                        max_new_tokens=length,
                        payload=submit_payload(submit),
                        planned=hole is not None,
                    )
                )
        return jobs, constraint

    def accept(self, **fields: Any) -> tuple[bytes, bytes]:
        asked = self.asked
        return Accepted(
            served=self.frontend.name,
            model=asked.model or self.frontend.name,
            adapter=self.frontend.adapter(asked.model),
            stream=asked.stream,
            drafts=asked.diffusion.drafts is not False,
            user=asked.user,
            **fields,
        ).encode()

    def _options(
        self, prompt: int, max_tokens: int | None, stop: Sequence[str], top_logprobs: int | None
    ) -> dict[str, Any]:
        asked, defaults = self.asked, self.frontend.defaults
        given = asked.diffusion.model_dump(exclude_none=True, exclude={"pins", "drafts"})
        if given.get("sampler") != "autoregressive":  # which allows settle 0 only
            given.setdefault("settle", self.frontend.settings.settle)
        chosen = choose(defaults.diffusion, **given)
        if asked.temperature < 1:
            # A lower temperature would also lower the entropies by which the process judges how sure it is: at half
            # of it, it accepts so much so early that half of our small model's right answers become wrong. Greedier
            # draws are what a client means by a low temperature.
            given["greed"] = 1 - asked.temperature * (1 - chosen.greed)
        else:
            given |= {"t_max": chosen.t_max * asked.temperature, "t_min": chosen.t_min * asked.temperature}
        if max_tokens is None:
            max_tokens = max(1, min(defaults.max_new_tokens, self.context - prompt))
        drafts = asked.diffusion.drafts
        return {
            **given,
            "max_new_tokens": max_tokens,
            "stop": list(stop),
            "pins": asked.diffusion.pins,
            "top_logprobs": top_logprobs,
            "draft_logprobs": (drafts.candidates or None) if isinstance(drafts, DraftFields) else None,
        }

    def _check(self, prompt: Sequence[int], options: dict[str, Any]) -> None:
        """Check as the engine will."""
        given = {name: value for name, value in options.items() if name not in NOT_DIFFUSION}
        request = Request(
            prompt=tuple(prompt),
            max_new_tokens=options["max_new_tokens"],
            diffusion=choose(self.frontend.defaults.diffusion, **given),
            stop=tuple(options["stop"]),
            pins={int(at): token for at, token in options["pins"].items()},
            top_logprobs=options["top_logprobs"],
            draft_logprobs=options["draft_logprobs"],
        )
        request.check(self.frontend.config, self.context)
        longest, canvas = self.frontend.config.canvas_length, request.diffusion.canvas_length
        if canvas is not None and canvas > longest:
            # A longer canvas than the model was trained with would also make everybody else's steps longer.
            raise ApiError(
                400,
                f"diffusion.canvas_length: at most {longest} on this server, the model's own, got {canvas}",
                param="diffusion.canvas_length",
            )
        limit = self.limits.request_tokens
        if limit is not None and len(prompt) + request.max_new_tokens > limit:
            raise ApiError(
                400,
                f"a prompt of {len(prompt)} tokens and {request.max_new_tokens} new ones exceed this server's limit of "
                f"{limit} for one request; shorten the prompt or lower max_tokens",
                code="request_too_long",
            )


def _of_hole(options: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """Drop the options that infill sets itself; the length of a hole only where the client left it open."""
    dropped = {"pins", "top_logprobs"} | ({"max_new_tokens"} if max_tokens is None else set())
    return {name: value for name, value in options.items() if name not in dropped}

"""From the fields of a request to jobs for the engine; what cannot run is refused here, before it takes a place."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from gesso import checkpoint
from gesso.config import Config
from gesso.engine.request import Request
from gesso.guide.constraint import expression
from gesso.guide.limits import Limits as GuideLimits
from gesso.guide.tools import calls_regex, chosen
from gesso.messages import check_tools
from gesso.serve.errors import ApiError
from gesso.serve.fields import Common
from gesso.serve.jobs import Job, Mailbox
from gesso.serve.settings import ServerSettings
from gesso.serve.supervisor import Supervisor
from gesso.settings import GenerationDefaults, choose
from gesso.tokenizer import Tokenizer

SEEDS = 2**64


class Desk:
    """What the server itself knows of the model: its tokenizer, its limits and its defaults."""

    def __init__(self, settings: ServerSettings, supervisor: Supervisor) -> None:
        self.settings, self.supervisor = settings, supervisor
        directory = checkpoint.find(settings.engine.model)
        self.config = Config.from_directory(directory)
        self.defaults = GenerationDefaults.from_directory(directory, self.config)
        self.tokenizer = Tokenizer.from_directory(directory)
        longest = self.config.max_position_embeddings
        self.max_length = min(settings.engine.max_length or longest, longest)

    @property
    def models(self) -> list[str]:
        return [self.settings.name, *self.settings.engine.adapters]

    def adapter(self, model: str | None) -> str | None:
        """Which adapter a model name stands for; None: the base model."""
        if model is None or model == self.settings.name:
            return None
        if model not in self.settings.engine.adapters:
            known = ", ".join(self.models)
            message = f"there is no model {model[:100]!r} here; there is {known}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return model

    async def ids(self, text: str, *, bos: bool = True) -> list[int]:
        """Tokens of a text, counted in another thread: a long one takes a while."""
        self.check_size(len(text))
        return await asyncio.to_thread(self.tokenizer.encode, text, bos=bos)

    async def chat_ids(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
        self.check_size(sum(len(m["content"]) for m in messages if isinstance(m.get("content"), str)))
        return await asyncio.to_thread(self.tokenizer.chat, messages, **options)

    def check_size(self, characters: int) -> None:
        """A text too long for the context, whatever its tokens are, is refused without counting them."""
        least = characters // self.tokenizer.longest_piece
        if least > self.max_length:
            raise ApiError(
                400,
                f"context overflow: a prompt of {characters} characters is at least {least} tokens, and the context "
                f"is {self.max_length}; shorten the prompt",
                code="context_length_exceeded",
            )

    def jobs(
        self,
        asked: Common,
        prompts: Sequence[Sequence[int]],
        *,
        client: str,
        n: int = 1,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        constraint: dict[str, Any] | None = None,
        hole: dict[str, Any] | None = None,
    ) -> list[Job]:
        """One job for each choice of each prompt. Choice i is what seed + i gives alone.

        With a hole to fill the prompt only counts: the text around the hole is in `hole`.
        """
        if n * len(prompts) > self.settings.limits.choices:
            raise ApiError(400, f"n: at most {self.settings.limits.choices} choices in one request", param="n")
        adapter, mailbox = self.adapter(asked.model), Mailbox()
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        jobs: list[Job] = []
        for prompt in prompts:
            options = self._options(asked, len(prompt), max_tokens, stop, top_logprobs)
            self._check(prompt, options)
            if hole is not None:
                options = _of_hole(options, max_tokens)
            for choice in range(n):
                job = Job(
                    id=next(self.supervisor.ids),
                    client=client,
                    prompt=list(prompt),
                    options={**options, "seed": (seed + choice) % SEEDS},
                    mailbox=mailbox,
                    index=len(jobs),
                    adapter=adapter,
                    stream=asked.stream,
                    drafts=asked.diffusion.drafts,
                    constraint=constraint,
                    hole=hole,
                )
                jobs.append(job)
        return jobs

    async def check_constraint(self, constraint: dict[str, Any] | None) -> None:
        """What cannot be kept to is refused here, in another thread; the engine compiles what is left."""
        if constraint is None:
            return
        if "tools" in constraint:
            functions = chosen(check_tools(constraint["tools"]) or (), constraint["choice"])
            await asyncio.to_thread(calls_regex, functions, parallel=constraint["parallel"], limits=GuideLimits())
        else:
            ((name, value),) = constraint.items()
            await asyncio.to_thread(expression, name, value, GuideLimits())

    def _options(
        self, asked: Common, prompt: int, max_tokens: int | None, stop: Sequence[str], top_logprobs: int | None
    ) -> dict[str, Any]:
        given = asked.diffusion.model_dump(exclude_none=True, exclude={"pins", "drafts"})
        given.setdefault("settle", self.settings.settle)
        chosen = choose(self.defaults.diffusion, **given)
        if asked.temperature < 1:
            # The process judges how sure it is at the temperature it draws with: at half of it, it accepts so much so
            # soon that half of our small model's right answers go wrong. Greedier draws are what a client means.
            given["greed"] = 1 - asked.temperature * (1 - chosen.greed)
        else:
            given |= {"t_max": chosen.t_max * asked.temperature, "t_min": chosen.t_min * asked.temperature}
        if max_tokens is None:
            max_tokens = max(1, min(self.defaults.max_new_tokens, self.max_length - prompt))
        pins = asked.diffusion.pins
        return {**given, "max_new_tokens": max_tokens, "stop": list(stop), "pins": pins, "top_logprobs": top_logprobs}

    def _check(self, prompt: Sequence[int], options: dict[str, Any]) -> None:
        """As the engine will check it; an InputError becomes a 400."""
        given = {name: value for name, value in options.items() if name not in NOT_DIFFUSION}
        request = Request(
            prompt=tuple(prompt),
            max_new_tokens=options["max_new_tokens"],
            diffusion=choose(self.defaults.diffusion, **given),
            stop=tuple(options["stop"]),
            pins={int(at): token for at, token in options["pins"].items()},
            top_logprobs=options["top_logprobs"],
        )
        request.check(self.config, self.max_length)
        limit = self.settings.limits.request_tokens
        if limit is not None and len(prompt) + request.max_new_tokens > limit:
            raise ApiError(
                400,
                f"a prompt of {len(prompt)} tokens and {request.max_new_tokens} new ones exceed this server's limit of "
                f"{limit} for one request; shorten the prompt or lower max_tokens",
                code="request_too_long",
            )


def _of_hole(options: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """How much fills a hole is for the hole to say, unless the client does; and what it pins is around it."""
    dropped = {"pins", "top_logprobs"} | ({"max_new_tokens"} if max_tokens is None else set())
    return {name: value for name, value in options.items() if name not in dropped}


NOT_DIFFUSION = ("max_new_tokens", "stop", "pins", "top_logprobs")

"""Turn the fields of a request into jobs for the engine, and reject requests that cannot run."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from gesso import renamed
from gesso.chat.messages import check_tools, with_schema
from gesso.chat.prompt import Prompt
from gesso.constraints.tools import chosen
from gesso.engine.request import Request
from gesso.serve.errors import ApiError
from gesso.serve.fields import DRAWS, UNLIMITED, Common, DraftFields, ModelFields
from gesso.serve.packed_images import pack
from gesso.serve.prepare.frontend import ModelFrontend, characters, frontend_of
from gesso.serve.prepare.images import ImageReader
from gesso.serve.prepare.request import ConstraintSource, PreparedJob, PreparedRequest
from gesso.serve.protocol import Submit, submit_payload
from gesso.settings import at_temperature, choose

SEEDS = 2**64
GREEDY_SEED = 0
# The names under which an endpoint takes a prompt, and a limit on the answer. Messages use the one that the client
# chose.
PROMPTS = ("messages", "prompt", "input")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


F = TypeVar("F", bound=ModelFields)


class Builder(Generic[F]):
    """Builds the jobs of one request within the limits of the model that it names."""

    def __init__(self, task: dict[str, Any], fields: F, frontends: Sequence[ModelFrontend]) -> None:
        self.fields, self.frontend = fields, frontend_of(frontends, fields.model)
        self.context: int = task["contexts"][self.frontend.name]
        self.limits = self.frontend.settings.limits
        self.prompt_field = next((name for name in PROMPTS if name in fields.model_fields_set), "prompt")
        self.adapter = self.frontend.adapter(fields.model)
        self.images = image_reader(task, self.frontend)

    def text_tokens(self, text: str, *, bos: bool = True) -> list[int]:
        self.frontend.check_size(len(text), self.context, self.prompt_field)
        return self.frontend.tokenizer.encode(text, bos=bos)

    def chat_prompt(
        self, messages: Sequence[dict[str, Any]], *, tools: Any = None, thinking: bool = False, schema: Any = None
    ) -> Prompt:
        messages = self.images.read(with_schema(messages, schema))
        self.frontend.check_size(characters(messages) + characters(tools), self.context, self.prompt_field)
        return self.frontend.tokenizer.chat(messages, tools=tools, thinking=thinking)

    def check_length(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Reject a prompt and an answer that together exceed the context, or this server's limit."""
        total = prompt_tokens + max_new_tokens
        limit = self.limits.request_tokens
        if total > self.context:
            # Clients recognize an overflow by this sentence.
            most = f"This model's maximum context length is {self.context} tokens"
            code = "context_length_exceeded"
        elif limit is not None and total > limit:
            most = f"This server's limit is {limit} tokens per request"
            code = "request_too_long"
        else:
            return
        prompt = self.prompt_field
        message = f"{prompt}: {prompt_tokens} tokens, and at least {max_new_tokens} for the answer. {most}"
        raise ApiError(400, f"{message}; shorten {prompt}", param=prompt, code=code)

    def encoded(
        self,
        jobs: list[PreparedJob],
        *,
        stream: bool = False,
        include_usage: bool = False,
        continuous_usage: bool = False,
        logprobs: bool = False,
        one_call: bool = False,
        warnings: Sequence[str] = (),
        echo: dict[str, Any] | None = None,
        tools: Sequence[str] = (),
        constraint: ConstraintSource | None = None,
        checked_by: bytes = b"",
        images: bytes = b"",
        image_count: int = 0,
        attached: bytes = b"",
    ) -> tuple[bytes, bytes]:
        """Return the encoded request with these jobs. All of them have the same images."""
        return PreparedRequest(
            served=self.frontend.name,
            model=self.adapter or self.frontend.name,
            adapter=self.adapter,
            stream=stream,
            user=self.fields.user,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            logprobs=logprobs,
            one_call=one_call,
            warnings=list(warnings),
            echo=echo or {},
            tools=list(tools),
            jobs=jobs,
            constraint=constraint,
            checked_by=checked_by,
            images=images,
            image_count=image_count,
            attached=attached,
        ).encode()


class RequestBuilder(Builder[Common]):
    """Builds the jobs of a request that generates text."""

    def constraint(self, constraint: dict[str, Any] | None) -> ConstraintSource | None:
        """Return the constraint for the task that compiles it, or reject it."""
        if constraint is None:
            return None
        if "tools" in constraint:
            constraint = {**constraint, "tools": check_tools(constraint["tools"]) or ()}
            if chosen(constraint["tools"], constraint["choice"]):
                self.frontend.guides.check_tags()
            elif not self.frontend.guides.has_tags:
                return None  # the model is free to call none of the tools
        return ConstraintSource.of(self.frontend.name, constraint)

    def build(
        self,
        prompts: Sequence[Prompt],
        *,
        n: int = 1,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        constraint: ConstraintSource | None = None,
        hole: dict[str, Any] | None = None,
        seconds: float | None = None,
        include_usage: bool = False,
        continuous_usage: bool = False,
        one_call: bool = False,
        warnings: Sequence[str] = (),
        echo: dict[str, Any] | None = None,
        attached: bytes = b"",
        tools: Sequence[str] = (),
        checked_by: bytes = b"",
    ) -> tuple[bytes, bytes]:
        """Return the encoded request, with one job per choice of each prompt. Choice i uses the seed + i.

        A request with images has one prompt.

        With a hole to fill, the prompt only counts towards the context: the engine takes the text from `hole`.
        """
        fields = self.fields
        if n * len(prompts) > self.limits.choices:
            raise ApiError(400, f"n: at most {self.limits.choices} choices in one request", param="n")
        seed = self._seed()
        diffusion, renames = self._diffusion_settings()
        all_warnings = [*warnings, *renames]
        jobs: list[PreparedJob] = []
        given = [image for prompt in prompts for image in prompt.images]
        shapes, images = pack(given)
        if len(images) * n > (limit := self.limits.image_bytes):  # the engine gets them with every choice
            message = (
                f"n: {n} choices take {len(images) * n:,} bytes of images, and the limit is {limit:,}; ask for fewer"
            )
            raise ApiError(400, message, param="n")
        for index, prompt in enumerate(prompts):
            size = len(prompt.tokens)
            length = max(1, min(max_tokens or self.frontend.defaults.max_new_tokens, self._room - size))
            if max_tokens is not None and length < max_tokens < UNLIMITED:
                all_warnings.append(self._lowered(length))
            request = self._checked_request(prompt, length, diffusion, stop, top_logprobs)
            options = {
                **diffusion,
                "max_new_tokens": length,
                "stop": list(stop),
                "pins": fields.diffusion.pins,
                "top_logprobs": top_logprobs,
                "draft_logprobs": request.draft_logprobs,
            }
            if hole is not None:
                options = _hole_options(options, max_tokens)
            for choice in range(n):
                submit = Submit(
                    id=0,
                    prompt=[] if hole is not None else prompt.tokens,
                    options={**options, "seed": (seed + choice) % SEEDS},
                    adapter=self.adapter,
                    stream=fields.stream,
                    drafts=fields.diffusion.drafts is not False,
                    constraint=None if constraint is None else constraint.reference,
                    hole=hole,
                    seconds=seconds,
                    images=shapes,
                )
                job = PreparedJob(
                    prompt=index,
                    prompt_tokens=size,
                    max_new_tokens=length,
                    payload=submit_payload(submit),
                    planned=hole is not None,
                )
                jobs.append(job)
        return self.encoded(
            jobs,
            stream=fields.stream,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            logprobs=top_logprobs is not None,
            one_call=one_call,
            warnings=list(dict.fromkeys(all_warnings)),
            echo=echo,
            tools=tools,
            constraint=constraint,
            checked_by=checked_by,
            images=images,
            image_count=len(given),
            attached=attached,
        )

    def _seed(self) -> int:
        """Return the seed of the first choice. At temperature 0 clients expect the same text again, so it is fixed."""
        if self.fields.seed is not None:
            return self.fields.seed
        return GREEDY_SEED if self.fields.temperature == 0 else secrets.randbits(32)

    @property
    def _room(self) -> int:
        """The most tokens of a prompt and its answer."""
        limit = self.limits.request_tokens
        return self.context if limit is None else min(self.context, limit)

    def _lowered(self, length: int) -> str:
        """Return the warning of a limit on the answer that exceeds the room after the prompt."""
        given = next((name for name in LIMITS if getattr(self.fields, name, None) is not None), "max_tokens")
        return f"{given} was lowered to {length}: more do not fit after {self.prompt_field}"

    def _diffusion_settings(self) -> tuple[dict[str, Any], list[str]]:
        """Return the diffusion settings of the request, its temperature translated, and warnings of former names."""
        fields = self.fields
        given = {name: value for name in DRAWS if (value := getattr(fields, name)) is not None}
        given |= fields.diffusion.model_dump(exclude_none=True, exclude={"pins", "drafts"})
        given, renames = renamed.translate(given)
        settings = choose(self.frontend.defaults.diffusion, **given)
        return {**given, **at_temperature(settings, fields.temperature)}, renames

    def _checked_request(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        diffusion: dict[str, Any],
        stop: Sequence[str],
        top_logprobs: int | None,
    ) -> Request:
        """Return the request that the engine will run, after the engine's own checks and those of the server."""
        drafts = self.fields.diffusion.drafts
        request = Request(
            prompt=tuple(prompt.tokens),
            images=prompt.images,
            max_new_tokens=max_new_tokens,
            diffusion=choose(self.frontend.defaults.diffusion, **diffusion),
            stop=tuple(stop),
            pins={int(at): token for at, token in self.fields.diffusion.pins.items()},
            top_logprobs=top_logprobs,
            draft_logprobs=(drafts.candidates or None) if isinstance(drafts, DraftFields) else None,
        )
        self.check_length(len(prompt.tokens), max_new_tokens)
        request.check(self.frontend.config, self.context)
        longest, canvas = self.frontend.config.canvas_length, request.diffusion.canvas_length
        if canvas is not None and canvas > longest:
            # A longer canvas than the model was trained with would also lengthen the steps of other requests.
            message = f"diffusion.canvas_length: at most {longest}, the model's own, on this server; got {canvas}"
            raise ApiError(400, message, param="diffusion.canvas_length")
        return request


def image_reader(task: dict[str, Any], frontend: ModelFrontend) -> ImageReader:
    name = frontend.name
    return ImageReader(frontend, task["accepts_images"][name], task["contexts"][name], task.get("fetched"))


def checked_by(constraint: dict[str, Any] | None) -> bytes:
    """Return what the answer under a constraint is checked by, for the task `check`."""
    if constraint is None:
        return b""
    if "json_schema" in constraint:
        return json.dumps({"schema": constraint["json_schema"]}).encode()
    if "tools" not in constraint:
        return b""
    functions = [tool["function"] for tool in check_tools(constraint["tools"]) or ()]
    parameters = {function["name"]: function["parameters"] for function in functions}
    return json.dumps({"parameters": parameters, "required": constraint["choice"] != "auto"}).encode()


def _hole_options(options: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """Drop the options that infill sets itself, and the length unless the client set it."""
    dropped = {"pins", "top_logprobs"} | ({"max_new_tokens"} if max_tokens is None else set())
    return {name: value for name, value in options.items() if name not in dropped}

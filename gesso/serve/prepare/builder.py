"""Turn what a dialect has read from a body into the messages of the jobs that the engine runs."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gesso import renamed
from gesso.chat.prompt import Prompt
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.request import Request
from gesso.errors import ContextOverflow, TextOverflow
from gesso.images.image import Image
from gesso.request.build import build, build_base, build_decision, check_echo, prompt_of
from gesso.request.spec import ChatSpec, DecisionSpec, EditSpec, HoleSpec, RequestSpec, TextPrompt
from gesso.serve.entry import ModelEntry, entry_of
from gesso.serve.errors import ApiError
from gesso.serve.fields import DRAWS, UNLIMITED, Common, DraftFields, ModelFields
from gesso.serve.form import AnswerForm
from gesso.serve.packed_images import pack
from gesso.serve.prepare.images import ImageReader
from gesso.serve.wire import (
    CompareTexts,
    ConstraintSource,
    EchoPrompt,
    EditSpan,
    EngineWork,
    FillHole,
    GuideKey,
    Prepare,
    Prepared,
    PreparedPrompt,
    WireRequest,
    WriteText,
    check_to_json,
    constraint_to_json,
    work_to_bytes,
)

GREEDY_SEED = 0
VALUES = 2**18  # log-probabilities in the answer to one request; more would hold up the server
# The names under which an endpoint takes a prompt, and a limit on the answer. Messages use the one that the client
# chose.
PROMPTS = ("messages", "prompt", "input")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, kw_only=True)
class ClientRequest:
    """What a dialect has read from a body: what is asked for, and the form of the answer."""

    specs: Sequence[RequestSpec]  # one per prompt; none: the answer is empty
    form: AnswerForm
    choices: int = 1  # of each prompt
    hole: HoleSpec | EditSpec | None = None  # the prompt then only counts towards the context
    seconds: float | None = None


class Preparation:
    """The preparation of one request, for the model that it names."""

    def __init__(self, task: Prepare, fields: ModelFields, entries: Sequence[ModelEntry]) -> None:
        self.fields = fields
        self.entry = entry_of(entries, fields.model)
        self.readiness = task.models[self.entry.name].readiness
        self.info = self.entry.info_at(self.readiness)
        self.limits = self.entry.settings.limits
        self.prompt_field = next((name for name in PROMPTS if name in fields.model_fields_set), "prompt")
        self.adapter = self.entry.adapter(fields.model)
        self.images = ImageReader(self.entry, self.readiness, task.fetched)

    # --- for dialects -------------------------------------------------------------------------------------------------

    def form(self, **fields: Any) -> AnswerForm:
        """Return the form of the answer, with these fields of one dialect."""
        return AnswerForm(
            served=self.entry.name,
            model=self.adapter or self.entry.name,
            adapter=self.adapter,
            user=self.fields.user,
            **fields,
        )

    def spec(self, fields: Common, prompt: TextPrompt | ChatSpec, **more: Any) -> RequestSpec:
        """Return what the fields that several endpoints share ask for."""
        settings: Any
        settings, _ = _settings(fields)
        seed = fields.seed
        if seed is None:  # at temperature 0 clients expect the same text again
            seed = GREEDY_SEED if fields.temperature == 0 else secrets.randbits(32)
        drafts = fields.diffusion.drafts
        return RequestSpec(
            prompt=prompt,
            seed=seed,
            temperature=fields.temperature,
            preset=settings.pop("preset", None),
            settings=settings,
            pins={int(at): token for at, token in fields.diffusion.pins.items()},
            draft_logprobs=(drafts.candidates or None) if isinstance(drafts, DraftFields) else None,
            adapter=self.adapter,
            **more,
        )

    def text_tokens(self, text: str, *, bos: bool = True) -> list[int]:
        """Return the tokens of a text, which may be empty."""
        try:
            self.info.check_size(len(text))
        except TextOverflow as error:
            raise text_too_long(error, self.prompt_field) from None
        return self.info.tokenizer.encode(text, bos=bos)

    def prompt(self, spec: RequestSpec) -> Prompt:
        """Return the tokens of a request that is not run."""
        try:
            return prompt_of(spec, self.info, self.images.read)
        except TextOverflow as error:
            raise self._worded(error) from None

    # --- messages -----------------------------------------------------------------------------------------------------

    def texts(self, fields: Common, client_request: ClientRequest) -> Prepared:
        """Build the requests of texts, and encode each once for all choices."""
        if client_request.choices * len(client_request.specs) > self.limits.choices:
            raise ApiError(400, f"n: at most {self.limits.choices} choices in one request", param="n")
        is_planned = client_request.hole is not None
        _, renames = _settings(fields)
        warnings = [*client_request.form.warnings, *renames]
        requests: list[Request] = []
        for spec in client_request.specs:
            request = self._built(spec, is_base=is_planned)
            requests.append(request)
            warnings += self._lowered(spec, request)
        images = _different(requests)
        shapes, pixels = pack(images)
        self._check_pixels(len(pixels), client_request.choices)
        # All prompts have the same constraint and the same check, or none.
        constraint = next((request.constraint for request in requests if request.constraint is not None), None)
        check = next((request.validate for request in requests if request.validate is not None), None)
        source = None if constraint is None else source_of(self.entry.name, constraint)
        prompts = []
        for spec, request in zip(client_request.specs, requests, strict=True):
            work = _work(client_request, spec, request, images, source)
            prompts.append(_prompt(request, work, planned=is_planned))
        form = msgspec.structs.replace(
            client_request.form,
            warnings=list(dict.fromkeys(warnings)),
            image_count=sum(len(request.images) for request in requests),
            check=check_to_json(check),
        )
        return Prepared(
            form=form,
            prompts=prompts,
            choices=client_request.choices,
            readiness=self.readiness,
            drafts=fields.diffusion.drafts is not False,
            constraint=source,
            shapes=shapes,
            images=memoryview(pixels),
        )

    def decision(self, spec: DecisionSpec, form: AnswerForm) -> Prepared:
        """Build the request for a decision: one job, whatever the number of choices."""
        try:
            request = build_decision(spec, self.info, self.images.read)
        except (ContextOverflow, TextOverflow) as error:
            raise self._worded(error) from None
        images = _different([request])
        shapes, pixels = pack(images)
        return Prepared(
            form=msgspec.structs.replace(form, image_count=len(request.images)),
            prompts=[_prompt(request, CompareTexts(WireRequest.of(request, images)), planned=True)],
            choices=1,
            readiness=self.readiness,
            shapes=shapes,
            images=memoryview(pixels),
        )

    def echo(self, prompts: Sequence[Sequence[int]], top_logprobs: int, new_tokens: int, form: AnswerForm) -> Prepared:
        """Prepare the log-probabilities of prompts: one job per prompt."""
        tokens = sum(map(len, prompts))
        if tokens * (1 + top_logprobs) > VALUES:
            most = f"exceed {VALUES} log-probabilities per request; send fewer"
            raise ApiError(400, f"{tokens} tokens with logprobs: {top_logprobs} {most}", param="prompt")
        prepared_prompts: list[PreparedPrompt] = []
        for prompt in prompts:
            try:
                check_echo(prompt, new_tokens, self.info)
            except ContextOverflow as error:
                raise self._worded(error) from None
            work = EchoPrompt(
                prompt=list(prompt), top_logprobs=top_logprobs, new_tokens=new_tokens, adapter=self.adapter
            )
            prepared = PreparedPrompt(
                prompt_tokens=len(prompt), max_new_tokens=new_tokens, seed=0, planned=True, work=work_to_bytes(work)
            )
            prepared_prompts.append(prepared)
        return Prepared(form=form, prompts=prepared_prompts, choices=1, readiness=self.readiness)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _built(self, spec: RequestSpec, *, is_base: bool) -> Request:
        try:
            return build_base(spec, self.info) if is_base else build(spec, self.info, self.images.read)
        except (ContextOverflow, TextOverflow) as error:
            raise self._worded(error) from None

    def _worded(self, error: ContextOverflow | TextOverflow) -> ApiError:
        """Return an overflow in the words of the endpoint."""
        prompt = self.prompt_field
        if isinstance(error, TextOverflow):
            return text_too_long(error, prompt)
        context = self.info.max_length
        if error.prompt_tokens + error.new_tokens > context:
            most = f"This model's maximum context length is {context} tokens"  # by which clients recognize an overflow
            code = "context_length_exceeded"
        else:
            most = f"This server's limit is {error.limit} tokens per request"
            code = "request_too_long"
        message = f"{prompt}: {error.prompt_tokens} tokens, and at least {error.new_tokens} for the answer. {most}"
        return ApiError(400, f"{message}; shorten {prompt}", param=prompt, code=code)

    def _lowered(self, spec: RequestSpec, request: Request) -> list[str]:
        """Return the warning of a limit on the answer that exceeds the room after the prompt."""
        length = request.max_new_tokens
        if spec.max_new_tokens is None or not length < spec.max_new_tokens < UNLIMITED:
            return []
        given = next((name for name in LIMITS if getattr(self.fields, name, None) is not None), "max_tokens")
        return [f"{given} was lowered to {length}: more do not fit after {self.prompt_field}"]

    def _check_pixels(self, size: int, choices: int) -> None:
        limit = self.limits.image_bytes
        if size * choices > limit:  # the engine gets them with every choice
            message = (
                f"n: {choices} choices take {size * choices:,} bytes of images, and the limit is {limit:,}; "
                "ask for fewer"
            )
            raise ApiError(400, message, param="n")


def source_of(model: str, constraint: ConstraintSpec) -> ConstraintSource:
    """Return a constraint for the task that compiles it."""
    source = constraint_to_json(constraint)
    key = hashlib.sha256(model.encode() + b"\0" + source).hexdigest()
    return ConstraintSource(key=key, model=model, source=source, has_tags=constraint.has_tags)


def text_too_long(error: TextOverflow, field: str) -> ApiError:
    return ApiError(
        400,
        f"{field}: {error.characters} characters have at least {error.least} tokens. "
        f"This model's maximum context length is {error.limit} tokens; shorten {field}",
        param=field,
        code="context_length_exceeded",
    )


def _settings(fields: Common) -> tuple[dict[str, Any], list[str]]:
    """Return the diffusion settings that were given, with the preset, and warnings of former names."""
    given = {name: value for name in DRAWS if (value := getattr(fields, name)) is not None}
    given |= fields.diffusion.model_dump(exclude_none=True, exclude={"pins", "drafts"})
    return renamed.translate(given)


def _different(requests: Sequence[Request]) -> list[Image]:
    """Return the images of all prompts, each once."""
    return list({image.digest: image for request in requests for image in request.images}.values())


def _work(
    client_request: ClientRequest,
    spec: RequestSpec,
    request: Request,
    images: Sequence[Image],
    source: ConstraintSource | None,
) -> EngineWork:
    if client_request.hole is None:
        key = None if source is None or request.constraint is None else GuideKey(source.key, source.has_tags)
        return WriteText(request=WireRequest.of(request, images), guide=key, seconds=client_request.seconds)
    # The length is that of the hole, or searched for. The prompts are those of the requests for the hole.
    length = None if spec.max_new_tokens is None else request.max_new_tokens
    hole = replace(client_request.hole, max_new_tokens=length)
    base = WireRequest.of(replace(request, prompt=request.prompt[:1]), images)
    return FillHole(base, hole) if isinstance(hole, HoleSpec) else EditSpan(base, hole)


def _prompt(request: Request, work: EngineWork, *, planned: bool) -> PreparedPrompt:
    return PreparedPrompt(
        prompt_tokens=len(request.prompt),
        max_new_tokens=request.max_new_tokens,
        seed=request.seed,
        planned=planned,
        work=work_to_bytes(work),
    )

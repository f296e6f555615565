"""The Python API: a loaded model with its tokenizer and its engine. `gesso/request` builds its requests."""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from gesso import adapters
from gesso.adapters import StoredAdapter
from gesso.chat.answer import Answer, read
from gesso.chat.healing import Healer
from gesso.chat.image_parts import read_images
from gesso.chat.messages import tool_names
from gesso.chat.prompt import Prompt
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint import write
from gesso.checkpoint.find import find_directory
from gesso.checkpoint.generation import GenerationDefaults
from gesso.constraints.constraint import Guides
from gesso.constraints.guide import Guide
from gesso.engine.decision import choice_tokens, probabilities
from gesso.engine.driver import Driver
from gesso.engine.engine import PIECE, PREFILL, Engine
from gesso.engine.events import Done, Event, Result
from gesso.engine.plan import Plan, compare, generate
from gesso.engine.request import ATTEMPTS, Request
from gesso.engine.ways import Writing
from gesso.errors import CheckpointError, InputError
from gesso.images.image import Image
from gesso.images.sources import read_source
from gesso.infill import edit, infill
from gesso.infill.results import EditResult, HolesResult, InfillResult
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.options import (
    ChatOptions,
    GenerateOptions,
    InfillOptions,
    Method,
    TextOptions,
    chat_spec,
    decision_prompt,
    hole_spec,
    text_spec,
)
from gesso.request.build import attach, build, build_base, build_decision
from gesso.request.info import ModelInfo, never_first_of
from gesso.request.spec import DecisionSpec, EditSpec, HoleSpec, RequestSpec, TextPrompt
from gesso.results import ChatResult, Decision

if TYPE_CHECKING:
    import PIL.Image


class Gesso:
    """A loaded model that generates, chats, decides, infills and edits. `gesso.load` returns one."""

    def __init__(
        self,
        model: DiffusionGemma,
        tokenizer: Tokenizer,
        defaults: GenerationDefaults,
        directory: Path,
        *,
        max_batch: int,
        max_length: int | None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults
        self.directory = directory
        # A CPU reads one piece of a prompt per pass: a pass takes seconds, and progress is shown after each.
        prefill = PIECE if model.device.type == "cpu" else PREFILL
        self.engine = Engine(model, self.decode, max_batch=max_batch, max_length=max_length, prefill=prefill)
        self.never_first = never_first_of(tokenizer, defaults)
        self.guides = Guides(tokenizer, model.config.vocab_size, frozenset(defaults.eos_token_ids))
        self.driver = Driver(self.engine)
        self.writing = Writing(write=defaults.diffusion.write)  # of requests that leave it open
        self.adapter = adapters.active(model)  # of new requests that name none
        for name in adapters.attached(model):
            self.engine.add_adapter(name, partial(adapters.remove, model, name))

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def max_length(self) -> int:
        """Upper limit of the tokens of prompt and new text."""
        return self.engine.max_length

    @property
    def info(self) -> ModelInfo:
        """The model as its requests depend on it."""
        return ModelInfo(
            tokenizer=self.tokenizer,
            config=self.config,
            defaults=self.defaults,
            guides=self.guides,
            never_first=self.never_first,
            max_length=self.max_length,
            writing=self.writing,
            adapter=self.adapter,
        )

    @property
    def eos_token_id(self) -> int:
        """The token that ends a text; the first one if the checkpoint has several."""
        return self.defaults.eos_token_ids[0]

    def generate(self, prompt: TextPrompt, **options: Unpack[GenerateOptions]) -> Result:
        """Continue a prompt, given as text or as token ids.

        Length, seed and adapter:
            max_new_tokens: most tokens to write. Default: the checkpoint's, or less where the context ends.
            seed: the same seed gives the same text. Default: random; the result has it.
            temperature: 0 to 2, as chat APIs have it. 0 takes the likeliest tokens, 1 leaves the settings as they are.
            stop: a string, or several, before which the text ends.
            adapter: name of the adapter to write it with. Default: the one of `use_adapter`.

        Diffusion:
            preset: "quality", "balanced", "fast" or "laptop", a .json file of `gesso tune --out`, or a
                `gesso.Diffusion`. Default: the checkpoint's settings.
            write: "canvas" denoises canvases. With "tokens", the causal encoder writes one token per pass; with
                "verified", the same tokens, several per pass. Default: `Gesso.writing`, but always canvases if the
                request has pins, a constraint, a preset except "laptop", or a setting of canvases.
            any field of `gesso.Diffusion`, such as `steps` or `sampler`: it takes precedence over the preset.

        Constraint, one at most:
            choice: texts, one of which is written.
            regex: a regular expression in Rust's syntax.
            json_schema: a JSON schema. The text is checked under it before it is returned.
            schema_options: a `gesso.SchemaOptions`: which texts of valid values are allowed.
            grammar: a grammar in EBNF.

        Canvas and probabilities:
            pins: {position in the new text: token id}.
            resume: a draft event of an earlier run with the same arguments, to continue from.
            top_logprobs: add the logprobs of tokens, and of this many alternatives, to commit events.
            draft_logprobs: the same for draft events; every step takes longer.
        """
        return _last(self.events(self.request(prompt, **options), retry=True))

    def stream(self, prompt: TextPrompt, **options: Unpack[GenerateOptions]) -> Generator[Event]:
        """Continue a prompt as `generate` does, and yield events.

        `draft` follows every denoising step, `commit` every finished canvas, and `done` ends the stream. If the text is
        not valid under its JSON schema, ConstraintError is raised instead of `done`: `generate` would try again.
        """
        return self.events(self.request(prompt, **options))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> ChatResult:
        """Answer a conversation of OpenAI-style messages. Options, beside those of `generate`:

        messages: a content is text or a list of parts: {"type": "text", "text": ...}, {"type": "image", "image": ...,
            "tokens": 280} with the arguments of `read_image`, or {"type": "image_url", "image_url": {"url": ...}}.
        tools: tools in OpenAI's format. Default: none.
        thinking: let the model think before the answer. A constraint begins after the thoughts. Default: False.
        tool_choice: "auto" (the default), "none", "required", or the name of the tool to call. The arguments of a call
            are valid under the tool's parameters.
        parallel_tool_calls: allow several calls where one is required. Default: False.
        schema_in_prompt: add `json_schema` to the last message, so that the model knows it. Default: True.
        """
        done = _last(self.events(self.chat_request(messages, **options), retry=True))
        answer = self.read_answer(done, None if options.get("tool_choice") == "none" else options.get("tools"))
        return ChatResult(
            **{**vars(done), "text": answer.text},
            thinking=answer.thinking,
            tool_calls=answer.tool_calls,
            malformed_calls=answer.malformed,
        )

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> Generator[Event]:
        """Answer a conversation as `chat` does, and yield the events of `stream`."""
        return self.events(self.chat_request(messages, **options))

    def chat_request(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> Request:
        """Return the engine request of `chat` with these arguments."""
        return self._built(chat_spec(messages, **options))

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
    ) -> Prompt:
        """Return a conversation as the model reads it: token ids and images."""
        return self.tokenizer.chat(self._with_images(messages), tools=tools, thinking=thinking)

    def _with_images(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return read_images(messages, lambda source, where, tokens: self.read_image(source, tokens, where=where))

    def read_image(
        self,
        source: "str | Path | bytes | PIL.Image.Image | Image",
        tokens: int | None = None,
        *,
        where: str = "image",
    ) -> Image:
        """Return an image as this model reads it, for several questions about it.

        source: a path, the bytes of a file, a `data:` URL or a Pillow image.
        tokens: soft tokens it may become: 70, 140, 280 (the default), 560 or 1120.
        where: the beginning of errors.
        """
        if self.model.vision is None:
            raise InputError(
                f"{where}: this model sees no images: it was loaded without a vision tower, or its checkpoint has "
                "none; load a checkpoint that has one, without text_only, or leave the image out"
            )
        config, vision = self.config, self.config.vision
        if self.tokenizer.image_ids != (config.image_token_id, config.boi_token_id, config.eoi_token_id):
            raise CheckpointError(
                f"{where}: config.json and the tokenizer have different tokens for images; use the files of one "
                "checkpoint"
            )
        return read_source(
            source,
            where,
            tokens,
            patch=vision.patch_size,
            pool=vision.pooling_kernel_size,
            positions=vision.position_embedding_size,
        )

    def decide(
        self,
        prompt: TextPrompt | Sequence[Mapping[str, Any]],
        choices: Sequence[str],
        *,
        adapter: str | None = None,
    ) -> Decision:
        """Choose among several texts, with a probability for each, in one pass of the network.

        prompt: messages, or text or token ids to continue. After messages, a choice is a whole answer and its end
            counts. After a text, a choice may continue, so none may begin another.
        choices: 2 to 256 different texts. The cost does not depend on their number.
        adapter: name of the adapter to decide with. Default: the one of `use_adapter`.

        The same arguments always give the same result: no random seed is involved.
        """
        texts = choice_tokens(self.tokenizer, choices)
        scored = self.driver.run(compare(self.decision_request(prompt, texts, adapter)))
        chances = probabilities(scored.log_likelihoods)
        index = chances.index(max(chances))
        return Decision(
            choices[index],
            index,
            dict(zip(choices, chances, strict=True)),
            dict(zip(choices, scored.log_likelihoods, strict=True)),
            scored.usage,
        )

    def decision_request(
        self,
        prompt: TextPrompt | Sequence[Mapping[str, Any]],
        texts: Sequence[Sequence[int]],
        adapter: str | None = None,
    ) -> Request:
        """Return the engine request of `decide`, with choices as token ids."""
        spec = DecisionSpec(prompt=decision_prompt(prompt), texts=texts, adapter=adapter)
        return build_decision(spec, self.info, self._with_images)

    def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        method: Method = "auto",
        lengths: Sequence[int] | None = None,
        context: int | None = None,
        candidates: int = 1,
        **options: Unpack[TextOptions],
    ) -> InfillResult:
        """Write the text that is missing between two texts. Options, beside those of `generate` (no pins, no resume):

        method: "prompt" shows the suffix in the prompt, between the tokenizer's markers; "pinned" pins it in the
            canvas after holes of several lengths and keeps the most likely; "auto" is "prompt" if the tokenizer has
            markers, or else "pinned".
        lengths: tokens of the holes to try with "pinned". Default: searched, up to max_new_tokens.
        context: show the model only this many tokens on each side. Default: all.
        candidates: write this many in parallel, from consecutive seeds, and keep the most likely.
        """
        plan = self.infill_plan(
            prefix, suffix, method=method, lengths=lengths, context=context, candidates=candidates, **options
        )
        return self.driver.run(plan)

    def infill_plan(
        self,
        prefix: str,
        suffix: str,
        *,
        method: Method = "auto",
        lengths: Sequence[int] | None = None,
        context: int | None = None,
        candidates: int = 1,
        seconds: float | None = None,
        **options: Unpack[TextOptions],
    ) -> Plan[InfillResult]:
        """Return the plan of `infill`, for callers that run several at once.

        After `seconds`, a search for the length of the hole begins no other round.
        """
        spec = hole_spec(**options)
        hole = HoleSpec(
            prefix=prefix,
            suffix=suffix,
            method=method,
            lengths=lengths,
            context=context,
            candidates=candidates,
            max_new_tokens=spec.max_new_tokens,
            seconds=seconds,
        )
        return infill.infill(self.info, hole, self._base(spec), spec.constraint)

    def _base(self, spec: RequestSpec) -> Request:
        """Return the request that those for a hole are variations of."""
        return build_base(replace(spec, max_new_tokens=1), self.info)

    def infill_holes(self, parts: Sequence[str], **options: Unpack[InfillOptions]) -> HolesResult:
        """Fill the holes between several texts, from left to right. Options as for `infill`.

        The model sees the text before a hole, earlier holes filled, and the given text up to the next hole.
        """
        return infill.infill_holes(self.infill, parts, **options)

    def edit(
        self,
        text: str,
        span: tuple[int, int],
        *,
        instruction: str | None = None,
        level: float = 1.0,
        method: Method = "auto",
        context: int | None = None,
        **options: Unpack[TextOptions],
    ) -> EditResult:
        """Replace the characters `text[start:end]` of a span and keep the others. Other options as for `infill`.

        level: share of the span's tokens that become noise and are written again, chosen by the seed. The others
            stay, and so does their number. At 1, the model does not see the present text of the span.
        instruction: description of the change, a user message before the text.
        """
        plan = self.edit_plan(
            text, span, instruction=instruction, level=level, method=method, context=context, **options
        )
        return self.driver.run(plan)

    def edit_plan(
        self,
        text: str,
        span: tuple[int, int],
        *,
        instruction: str | None = None,
        level: float = 1.0,
        method: Method = "auto",
        context: int | None = None,
        **options: Unpack[TextOptions],
    ) -> Plan[EditResult]:
        """Return the plan of `edit`, for callers that run several at once."""
        spec = hole_spec(**options)
        change = EditSpec(
            text=text,
            span=span,
            instruction=instruction,
            level=level,
            method=method,
            context=context,
            max_new_tokens=spec.max_new_tokens,
        )
        return edit.edit(self.info, change, self._base(spec), spec.constraint)

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Run several requests side by side and return their results in order."""
        return self.driver.run(generate(requests))

    @property
    def healer(self) -> Healer:
        return self.tokenizer.healer

    def read_answer(self, result: Result, tools: Sequence[Mapping[str, Any]] | None = None) -> Answer:
        """Return the thoughts, calls of these tools and text of an answer, complete or not."""
        return read(result.tokens, result.text, self.decode, tool_names(tools))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens. Ids beyond the tokenizer are skipped: many models pad their embeddings."""
        return self.tokenizer.text_of(tokens, special=special)

    def use_adapter(self, name: str | None) -> None:
        """Use an adapter for new requests that name none; with None, the base model. Running requests keep theirs."""
        self.engine.adapters.check(name)
        self.adapter = name
        adapters.activate(self.model, name)  # for callers of `Gesso.model`; the engine switches by request

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load an adapter beside the others, also while requests run. New requests may name it.

        path: directory of an adapter in peft's format, or its name on the hub.
        """
        self.attach_adapter(name, adapters.read(adapters.adaptable_weights(self.model), find_directory(path)))

    def attach_adapter(self, name: str, stored: StoredAdapter) -> None:
        """Attach an adapter that `gesso.adapters.read` has read, maybe in another thread. Call between two steps."""
        if name in self.engine.adapters.retired:
            raise InputError(f"running requests still use the unloaded adapter {name!r}; load it after they have ended")
        if not stored.is_tied and self.model.is_tied and self.engine.runner.captures:
            raise InputError(
                f"{name!r} changes encoder and decoder differently, as peft trains adapters. All requests would run "
                "without CUDA graphs; load it with the model instead: gesso.load(adapter=…), or gesso serve --adapter"
            )
        adapters.attach(self.model, name, stored)
        self.engine.add_adapter(name, partial(adapters.remove, self.model, name))

    def unload_adapter(self, name: str) -> None:
        """Reject new requests with an adapter, and free it as soon as those that run have ended.

        If it is the one of `use_adapter`, new requests use the base model.
        """
        self.engine.retire_adapter(name)
        if self.adapter == name:
            self.use_adapter(None)

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint directory that `transformers` can load, too."""
        write.save(self.model, Path(directory), source=self.directory)

    def events(self, request: Request, *, retry: bool = False) -> Generator[Event]:
        """Yield the events of one request, and step the engine as needed. Several streams may be read in turn.

        With `retry`, the events of another attempt follow if a text is not valid under its JSON schema: for callers
        that show nothing before the end.
        """
        self.engine.check(request)  # at the call, not when the first event is read
        return self._events(request, ATTEMPTS if retry else 1)

    def request(
        self,
        prompt: TextPrompt,
        *,
        guide: Guide | None = None,
        thinking: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Request:
        """Return the engine request of `generate` with these arguments, for callers that step `Gesso.engine`.

        `guide` is a compiled constraint, in place of `choice`, `regex`, `json_schema` or `grammar`. With `thinking`,
        the constraint begins after the thoughts.
        """
        return self._built(text_spec(prompt, guide=guide, thinking=thinking, **options))

    def _built(self, spec: RequestSpec) -> Request:
        request = build(spec, self.info, self._with_images)
        return request if request.constraint is None else attach(request, self.guides.of(request.constraint))

    def _events(self, request: Request, attempts: int) -> Generator[Event]:
        unread: deque[Event] = deque()
        run = self.driver.submit(generate([request], attempts), on_event=unread.append)
        try:
            while unread or not run.ended:
                if not unread:
                    self.driver.step()
                elif not isinstance(event := unread.popleft(), Done):  # which the plan has to check
                    yield event
            (result,) = run.outcome()  # raises the error of a failed request
            yield Done(run.ids[-1], result)
        finally:
            self.driver.cancel(run)


def _last(events: Iterator[Event]) -> Result:
    for event in events:
        if isinstance(event, Done):
            return event.result
    raise AssertionError("a stream ends with its done event")

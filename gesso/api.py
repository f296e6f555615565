"""The Python interface: a loaded model with its tokenizer and its engine."""

import secrets
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gesso.adapters import files as adapters
from gesso.chat.answer import Answer, ToolCall, read
from gesso.chat.messages import check_tools
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint import huggingface as checkpoint
from gesso.checkpoint import random_weights as untrained
from gesso.checkpoint import write as saving
from gesso.checkpoint.generation import GenerationDefaults
from gesso.constraints.constraint import NAMES, Guides
from gesso.constraints.guide import Guide
from gesso.engine.engine import Engine
from gesso.engine.events import Done, Draft, Event, Failed, Result
from gesso.engine.plan import Plan, PlanRun, T, generate
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.infill import filling
from gesso.infill.boundary import Healer
from gesso.infill.filling import EditResult, HolesResult, InfillResult
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion, choose

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# An answer may open with these; with any other special token it would be empty.
OPENINGS = ("<|channel>", "<|tool_call>")


@dataclass(frozen=True)
class ChatResult(Result):
    """`text` is the answer alone; the thoughts and the tool calls stand beside it."""

    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[str, ...] = ()


class Gesso:
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
        self.model, self.tokenizer, self.defaults, self.directory = model, tokenizer, defaults, directory
        self.engine = Engine(model, self.decode, max_batch=max_batch, max_length=max_length)
        openings = {tokenizer.id_of(piece) for piece in OPENINGS}
        self._never_first = (tokenizer.special_ids | set(defaults.eos_token_ids)) - openings
        self.guides = Guides(tokenizer, model.config.vocab_size, frozenset(defaults.eos_token_ids))
        self._inboxes: dict[int, deque[Event]] = {}

    @property
    def config(self) -> Config:
        return self.model.config

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Result:
        """Continue a prompt, given as text or as token ids.

        Options: `max_new_tokens`, `seed` (None draws one; the result tells which), `preset`, `stop` (a string or
        several), `pins` ({position in the new text: token id}), `resume` (a draft event of an earlier run with the
        same arguments), `top_logprobs` (have commit events say how likely their tokens were, and so many others),
        `draft_logprobs` (the same of drafts, at a cost in every step), and every field of `gesso.Diffusion`. What the
        text must be, one of: `choice` (texts, one of which is written), `regex` (Rust's syntax), `json_schema`,
        `grammar` (EBNF).
        """
        return _last(self.stream(prompt, **options))

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Generator[Event]:
        """The same as `generate`, as events: `draft` after every step, `commit` for a finished canvas, `done`."""
        request = self.request(prompt, **options)
        self.engine.check(request)  # here and now, not when the first event is asked for
        return self._events(request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
        **options: Any,
    ) -> ChatResult:
        """Answer a conversation, OpenAI-style messages; `options` as for `generate`.

        `tool_choice` is "auto", "none", "required", or the tool to call by its name; where one has to be called, the
        arguments are valid under its parameters. `parallel_tool_calls` allows several.
        """
        done = _last(self.stream_chat(messages, tools=tools, thinking=thinking, **options))
        answer = self.read_answer(done)
        return ChatResult(
            **{**vars(done), "text": answer.text},
            thinking=answer.thinking,
            tool_calls=answer.tool_calls,
            malformed_calls=answer.malformed,
        )

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
        **options: Any,
    ) -> Generator[Event]:
        request = self.chat_request(messages, tools=tools, thinking=thinking, **options)
        self.engine.check(request)
        return self._events(request)

    def chat_request(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = False,
        **options: Any,
    ) -> Request:
        """What `chat` with these arguments asks of the engine."""
        guide = self.guides.calls(check_tools(tools) or (), tool_choice, parallel_tool_calls)
        if thinking and (guide or any(options.get(name) is not None for name in NAMES)):
            raise InputError("thinking and a constraint cannot be combined: the whole answer keeps to the constraint")
        shown = None if tool_choice == "none" else tools
        return self.request(self.tokenizer.chat(messages, tools=shown, thinking=thinking), guide=guide, **options)

    def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        method: str = "auto",
        lengths: Sequence[int] | None = None,
        context: int | None = None,
        candidates: int = 1,
        **options: Any,
    ) -> InfillResult:
        """Write what is missing between two texts; `options` as for `generate`, without `pins` and `resume`.

        `method`: "prompt" shows the suffix by the tokenizer's markers for it, "pinned" pins it in the canvas behind
        holes of several lengths (`lengths`; None: searched up to `max_new_tokens`) and takes the likeliest, "auto" is
        the former where there are markers. `context`: the model sees only so many tokens of either side. `candidates`:
        so many are written side by side, with the seed and the next ones, and the likeliest is taken.
        """
        plan = filling.infill(
            self, prefix, suffix, method=method, lengths=lengths, context=context, candidates=candidates, **options
        )
        return self._carry_out(plan)

    def infill_holes(self, parts: Sequence[str], **options: Any) -> HolesResult:
        """Fill the holes between several texts, from left to right; `options` as for `infill`.

        A hole sees all that is filled and given before it, and what is given between it and the next one.
        """
        return filling.infill_holes(self, parts, **options)

    def edit(
        self,
        text: str,
        span: tuple[int, int],
        *,
        instruction: str | None = None,
        level: float = 1.0,
        method: str = "auto",
        context: int | None = None,
        **options: Any,
    ) -> EditResult:
        """Write the characters `text[start:end]` of a span anew and leave the others as they are; else as `infill`.

        `level` 1 knows nothing of what is there. A lower one is the share of the span's tokens, drawn by the seed, that
        become noise and are written anew; the others stand, and so does their number. An `instruction` is a user's
        turn ahead of the text.
        """
        plan = filling.edit(
            self, text, span, instruction=instruction, level=level, method=method, context=context, **options
        )
        return self._carry_out(plan)

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Return the results of several requests that run side by side."""
        return self._carry_out(generate(requests))

    def _carry_out(self, plan: Plan[T]) -> T:
        run = PlanRun(plan, self.engine)
        inbox: deque[Event] = deque()
        try:
            run.start()
            while not run.ended:
                self._inboxes.update(dict.fromkeys(run.ids, inbox))
                self._step()
                while inbox:
                    run.take(inbox.popleft())
        finally:
            run.cancel()
            for request_id in run.ids:
                self._inboxes.pop(request_id, None)
        return run.result

    @cached_property
    def healer(self) -> Healer:
        return Healer(self.tokenizer)

    def read_answer(self, result: Result) -> Answer:
        """Thoughts, tool calls and text of an answer, complete or not."""
        return read(result.tokens, result.text, self.decode)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of what the model wrote. Embeddings are often padded beyond the tokenizer: such ids mean nothing."""
        return self.tokenizer.decode([t for t in tokens if t < self.tokenizer.vocab_size], special=special)

    def use_adapter(self, name: str | None) -> None:
        """Have the named adapter act from now on; None: the base model. Not while requests run."""
        if self.engine.busy:
            raise InputError("requests are running; change the adapter when they are done")
        adapters.activate(self.model, name)
        self.engine.forget()  # what the cache holds was computed with the other one

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint that `transformers` loads too."""
        saving.save(self.model, Path(directory), source=self.directory)

    def request(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        preset: str | Diffusion | None = None,
        stop: str | Sequence[str] = (),
        pins: Mapping[int, int] | None = None,
        resume: Draft | None = None,
        top_logprobs: int | None = None,
        draft_logprobs: int | None = None,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        json_schema: Mapping[str, Any] | bool | None = None,
        grammar: str | None = None,
        guide: Guide | None = None,
        **diffusion: Any,
    ) -> Request:
        """What `generate` with these arguments asks of the engine; for those who step `Gesso.engine` themselves."""
        ids = self._ids(prompt)
        asked = self.guides.guide(choice=choice, regex=regex, json_schema=json_schema, grammar=grammar)
        if asked and guide:
            raise InputError("a text has one constraint; this one must be a tool call already")
        if max_new_tokens is None:  # as many as the checkpoint wants, or as there is room for
            max_new_tokens = max(1, min(self.defaults.max_new_tokens, self.engine.max_length - len(ids)))
        if seed is None:
            seed = secrets.randbits(32) if resume is None else resume.request.seed
        return Request(
            prompt=tuple(ids),
            max_new_tokens=max_new_tokens,
            diffusion=choose(self.defaults.diffusion, preset, **diffusion),
            seed=seed,
            eos=frozenset(self.defaults.eos_token_ids),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            pins=dict(pins or {}),
            guide=asked or guide,
            free_first=True,
            never_first=self._never_first,
            unsure=self.tokenizer.byte_ids,
            top_logprobs=top_logprobs,
            draft_logprobs=draft_logprobs,
            resume=resume,
        )

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, Sequence):
            raise InputError(f"the prompt must be text or a list of token ids, got {type(prompt).__name__}")
        if not isinstance(prompt, str):
            return list(prompt)
        if not prompt:  # the bos token alone would make a valid request, and never what an empty string meant
            raise InputError("the prompt is empty; give some text to continue")
        return self.tokenizer.encode(prompt)

    def _events(self, request: Request) -> Generator[Event]:
        """The events of one request, stepping the engine as they are asked for; several streams may interleave."""
        request_id = self.engine.submit(request)
        inbox = self._inboxes[request_id] = deque()
        try:
            while True:
                while inbox:
                    event = inbox.popleft()
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
                    if isinstance(event, Done):
                        return
                self._step()
        finally:
            self.engine.cancel(request_id)
            del self._inboxes[request_id]

    def _step(self) -> None:
        for event in self.engine.step():
            if event.request_id in self._inboxes:  # not that of a stream left early
                self._inboxes[event.request_id].append(event)


def load(
    name: str | Path | None,
    *,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    quantize: str | None,
    adapter: str | Path | Mapping[str, str | Path] | None,
    max_batch: int,
    max_length: int | None,
) -> Gesso:
    where = find_device(device)
    directory, config = untrained.locate(name)
    if untrained.is_random(name):
        model = untrained.make(config, where, find_dtype(dtype, where), quantize)
    else:
        model = checkpoint.load(directory, config, where, find_dtype(dtype, where), quantize)
    defaults = GenerationDefaults.from_directory(directory, config)
    tokenizer = Tokenizer.from_directory(directory)
    named = adapter if isinstance(adapter, Mapping) else {} if adapter is None else {"default": adapter}
    for adapter_name, path in named.items():
        adapters.load(model, checkpoint.find(path), adapter_name)
    adapters.activate(model, next(iter(named), None))
    return Gesso(model, tokenizer, defaults, directory, max_batch=max_batch, max_length=max_length)


def _last(events: Iterator[Event]) -> Result:
    for event in events:
        if isinstance(event, Done):
            return event.result
    raise AssertionError("a stream ends with its done event")


def find_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch sees no GPU; use device='cpu' or install a CUDA build")
    return found


def find_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise InputError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
    return found

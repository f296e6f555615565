"""The API of llama.cpp's server, as far as editors use it: fields, answers and streams of /infill and /completion.

The editors are llama.vim, llama.vscode and Continue. All of them read `content`. llama.vim asks for parts of the answer
with `response_fields`, and llama.vscode for several answers with `n_cmpl`.
"""

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

import gesso
from gesso.chat.tokenizer import FILL
from gesso.constraints.spec import ConstraintSpec
from gesso.serve.deltas import AnswerDeltas
from gesso.serve.fields import Common, Count, Fields, Ignored, LenientFields, Texts, Tokens, example
from gesso.serve.form import AnswerForm, LlamaCppForm
from gesso.serve.generation import Generation
from gesso.serve.jobs import AnswerJob
from gesso.serve.models import ServedModel
from gesso.serve.wire import Ended

STOP_STRINGS = 64  # Continue sends those of its templates and of the language of the file together

# --- fields -----------------------------------------------------------------------------------------------------------

StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]],
    Field(max_length=STOP_STRINGS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class LlamaCppFields(Common):
    """Fields of /infill and /completion. `id_slot`, `cache_prompt` and `samplers` do not apply to this engine."""

    n_predict: Annotated[int, Field(ge=-1)] = Field(
        default=-1, description="Most tokens of the answer. -1: as many as the model usually writes. 0: none."
    )
    n_cmpl: Count = Field(default=1, description="Number of answers. If above 1, the answer is a list.")
    stop: StopStrings = []
    t_max_predict_ms: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="After this time the text ends as soon as it has a whole line. Below 1: no limit."
    )
    response_fields: Texts = Field(default=[], description="Paths such as timings/prompt_n, to return only those.")
    id_slot: Ignored = None
    cache_prompt: Ignored = None
    samplers: Ignored = None
    t_max_prompt_ms: Ignored = None

    @field_validator("seed", mode="before")
    @classmethod
    def _random_seed(cls, value: Any) -> Any:
        return None if value == -1 else value

    @model_validator(mode="after")
    def _one_stream(self) -> Self:
        if self.stream and self.n_cmpl > 1:
            raise ValueError("n_cmpl must be 1 with stream")
        return self

    @property
    def most_tokens(self) -> int | None:
        return None if self.n_predict < 0 else self.n_predict

    @property
    def seconds(self) -> float | None:
        limit = self.t_max_predict_ms
        return None if limit is None or limit < 1 else limit / 1000


class ExtraFields(LenientFields):
    """A part of another file."""

    text: str
    filename: str = ""


class InfillFields(LlamaCppFields):
    model_config = example(
        {
            "input_prefix": "class Point:\n    def __init__(self, x, y):\n        self.x = x\n",
            "prompt": "        ",
            "input_suffix": "\n\n    def __repr__(self):\n        return 'Point'\n",
            "n_predict": 64,
        }
    )

    input_prefix: str = Field(default="", description="Text before the line of the hole.")
    input_suffix: str = Field(default="", description="Text after the hole.")
    input_extra: Annotated[list[ExtraFields], Field(fail_fast=True)] = Field(
        default=[], description="Parts of other files. They come before input_prefix."
    )
    prompt: str = Field(default="", description="The line of the hole, up to the hole.")
    n_indent: Annotated[int, Field(ge=0)] = Field(
        default=0, description="The text ends before a later line that has less indentation."
    )

    @property
    def before(self) -> str:
        """The text before the hole, the extra context first."""
        extra = "".join(f"# {one.filename}\n{one.text}\n\n" for one in self.input_extra)
        return extra + self.input_prefix + self.prompt


class LlamaCppCompletionFields(LlamaCppFields):
    model_config = example({"prompt": "def mean(values):\n    ", "n_predict": 64})

    prompt: str | Tokens
    json_schema: dict[str, Any] | bool | None = None
    grammar: str = Field(default="", description="A grammar in EBNF, such as llama.cpp's GBNF.")

    @model_validator(mode="after")
    def _check_constraint(self) -> Self:
        if self.json_schema is not None and self.grammar:
            raise ValueError("json_schema and grammar were given; only one constraint is allowed")
        if self.hole is not None and self.constraint is not None:
            raise ValueError(f"{next(iter(self.constraint.given))} is not supported for a hole")
        return self

    @property
    def constraint(self) -> ConstraintSpec | None:
        if self.json_schema is not None:
            return ConstraintSpec(json_schema=self.json_schema)
        return ConstraintSpec(grammar=self.grammar) if self.grammar else None

    @property
    def hole(self) -> tuple[str, str] | None:
        """The texts on both sides of a hole, if the prompt has the fill-in-the-middle markers around them."""
        prefix_mark, suffix_mark, middle_mark = FILL
        if not isinstance(self.prompt, str) or not self.prompt.startswith(prefix_mark):
            return None
        before, suffix_given, after = self.prompt.removeprefix(prefix_mark).partition(suffix_mark)
        if not suffix_given or not after.endswith(middle_mark):
            return None
        return before, after.removesuffix(middle_mark)


class LlamaCppTokenizeFields(Fields):
    """A text to tokenize. /tokenize has these fields if the body has `content`."""

    model: str | None = None
    content: str
    add_special: bool = Field(default=False, description="Begin with the bos token.")
    parse_special: Literal[True] = True
    with_pieces: bool = False


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(model: ServedModel, generation: Generation) -> bytes:
    """Return one answer, or a list if several were asked for.

    The JSON has no space after a colon: llama.vim looks for `"content":"` before it parses an answer.
    """
    form = generation.form
    if not generation.jobs:
        return _json(_selected(form, _without_text(form) | _warnings(form)))
    answers = []
    for job in generation.jobs:
        ended = generation.ended[job.index]
        text = before_dedent(ended.text, _details(form).n_indent)
        answers.append(_selected(form, _whole(form, job, ended, text) | _warnings(form)))
    return _json(answers if len(answers) > 1 else answers[0])


async def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    """Yield the parts of the only answer. The last one has no text. There is no `[DONE]`.

    The text of a hole is one part: it is known only at the end.
    """
    form = generation.form
    answer = AnswerDeltas(model.tokenizer, chat=False)
    async with aclosing(generation.deltas(answer)) as deltas:
        async for delta in deltas:
            text = before_dedent(delta.text, _details(form).n_indent)
            yield _event({"index": 0, "content": text, "tokens": [], "stop": False})
    if not generation.jobs:
        yield _event(_selected(form, _without_text(form)))
        return
    (job,) = generation.jobs
    yield _event(_selected(form, _whole(form, job, generation.ended[0], "")))


def before_dedent(text: str, indent: int) -> str:
    """Return the lines of a text before the first one, after the first line, that has less indentation."""
    lines = text.split("\n")
    for number, line in enumerate(lines[1:], start=1):
        rest = line.lstrip(" \t")
        if rest and len(line) - len(rest) < indent:
            return "\n".join(lines[:number])
    return text


def properties(model: ServedModel, name: str) -> dict[str, Any]:
    """Return the answer of /props: the limits that editors read, and what the model accepts."""
    ready = model.supervisor.ready
    return {
        "default_generation_settings": {"n_ctx": model.context},
        "total_slots": 1 if ready is None else ready.max_batch,
        "model_alias": name,
        "modalities": {"vision": model.accepts_images, "audio": False},
        "build_info": f"gesso {gesso.__version__}",
    }


def _whole(form: AnswerForm, job: AnswerJob, ended: Ended, text: str) -> dict[str, Any]:
    """Return a complete answer. Prompt and text have one duration: a batch's passes run both."""
    usage = ended.usage
    milliseconds = 1000 * (time.monotonic() - job.created_at)
    new = usage["completion_tokens"]
    return {
        "index": job.index,
        "content": text,
        "tokens": [],
        "stop": True,
        "model": form.model,
        "tokens_predicted": new,
        "tokens_evaluated": usage["prompt_tokens"],
        "tokens_cached": usage["cached_tokens"],
        "generation_settings": {**_details(form).settings, "seed": ended.seed},
        "has_new_line": "\n" in ended.text,
        "truncated": _details(form).truncated,
        "stop_type": _stop_type(ended),
        "stopping_word": ended.stop or "",
        "timings": {
            "cache_n": usage["cached_tokens"],
            "prompt_n": usage["prompt_tokens"] - usage["cached_tokens"],
            "prompt_ms": 0.0,
            "prompt_per_token_ms": 0.0,
            "prompt_per_second": 0.0,
            "predicted_n": new,
            "predicted_ms": round(milliseconds, 3),
            "predicted_per_token_ms": round(milliseconds / max(1, new), 3),
            "predicted_per_second": round(1000 * new / milliseconds, 3) if milliseconds else 0.0,
        },
    }


def _details(form: AnswerForm) -> LlamaCppForm:
    assert isinstance(form.details, LlamaCppForm)
    return form.details


def _stop_type(ended: Ended) -> str:
    if ended.stop is not None:
        return "word"
    return "limit" if ended.finish_reason == "length" else "eos"


def _without_text(form: AnswerForm) -> dict[str, Any]:
    """Return the answer to a request for no tokens, which editors send before they need a text."""
    return {
        "index": 0,
        "content": "",
        "tokens": [],
        "stop": True,
        "model": form.model,
        "generation_settings": _details(form).settings,
        "truncated": _details(form).truncated,
        "stop_type": "limit",
    }


def _warnings(form: AnswerForm) -> dict[str, Any]:
    return {"warnings": form.warnings} if form.warnings else {}


def _selected(form: AnswerForm, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an answer that `response_fields` names, each under its whole path; by default all of it."""
    paths: Sequence[str] = _details(form).response_fields
    if not paths:
        return answer
    selected: dict[str, Any] = {}
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            selected[path] = value
    return selected


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % _json(data)


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()

"""The fields of the endpoints that take a text: completions, edits, decisions and tokenization."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from gesso.constraints.spec import ConstraintSpec
from gesso.engine.decision import CHOICES
from gesso.serve.described import ChatMessages, ChatTools
from gesso.serve.fields import (
    Choices,
    Common,
    Count,
    Fields,
    Limit,
    ModelFields,
    Texts,
    Tokens,
    example,
    without_minus_one,
)
from gesso.serve.openai.chat_fields import FormatFields


def _kind_of_prompt(value: Any) -> str:
    """Return the kind of prompt by its first item, so that pydantic validates only that kind."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else 0
    return "texts" if isinstance(first, str) else "token lists" if isinstance(first, list) else "tokens"


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[list[Tokens], Field(fail_fast=True), Tag("token lists")],
    Discriminator(_kind_of_prompt),
]


class CompletionFields(Choices):
    model_config = example({"prompt": "def mean(values):\n    ", "max_tokens": 64, "diffusion": {"steps": 24}})

    prompt: Prompt
    suffix: str = Field(default="", description="Text after the missing text.")
    max_tokens: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(without_minus_one)] = Field(
        default=None, description="Most tokens of the answer, lowered to what fits. 0 needs echo."
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: FormatFields = FormatFields()
    echo: bool = Field(default=False, description="Return the log-probabilities of the prompt; writes no text.")
    best_of: Count = Field(default=1, description="With a suffix: generate this many texts, return the most likely.")

    def constraint(self) -> ConstraintSpec | None:
        return self.constraint_with(self.response_format.requested_schema)

    @model_validator(mode="after")
    def _check_echo(self) -> Self:
        if not self.echo:
            if self.max_tokens == 0:
                raise ValueError("max_tokens: 0 needs echo: true; otherwise give at least 1")
            return self
        if self.logprobs is None or self.max_tokens not in (0, 1):
            raise ValueError("echo needs logprobs, and max_tokens: 0 or 1: it scores the prompt and writes no text")
        if self.n > 1 or self.stream or self.suffix or self.diffusion.model_fields_set or self.constraint():
            raise ValueError("echo cannot be combined with n, stream, suffix, diffusion or a constraint")
        return self

    @model_validator(mode="after")
    def _check_suffix(self) -> Self:
        if not self.suffix:
            if self.best_of > 1:
                raise ValueError("best_of needs a suffix: only infill chooses among several texts")
            return self
        if self.best_of > 1 and self.n > 1:
            raise ValueError("n must be 1 with best_of")
        if not isinstance(self.prompt, str):
            raise ValueError("suffix needs a single prompt, as text")
        unsupported = ("logprobs", "choice", "regex", "grammar")
        given = [name for name in unsupported if getattr(self, name) is not None]
        if self.response_format.type != "text":
            given.append("response_format")
        if self.diffusion.pins:
            given.append("diffusion.pins")
        if given:
            raise ValueError(f"{given[0]} is not supported together with suffix")
        return self


class DecideFields(ModelFields):
    """Texts to choose from, after a prompt."""

    model_config = example({"messages": [{"role": "user", "content": "Is 7 a prime?"}], "choices": ["yes", "no"]})

    messages: ChatMessages | None = Field(default=None, description="A conversation; a choice is a whole answer.")
    prompt: str | None = Field(default=None, description="A text; a choice continues it. Give either this or messages.")
    choices: Annotated[list[str], Field(fail_fast=True, min_length=2, max_length=CHOICES)]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class EditFields(Common):
    """A span of a text to rewrite."""

    model_config = example({"input": "The sky is green.", "span": [11, 16], "seed": 1})

    input: str
    span: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)] = Field(
        description="Start and end of the span in characters; the end is excluded."
    )
    instruction: str | None = None
    level: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="Below 1: share of the span's tokens to rewrite."
    )
    n: Count = 1
    max_tokens: Limit = None


class TokenizeFields(Fields):
    model_config = example({"prompt": "To be"})

    model: str | None = None
    prompt: str | None = None
    messages: ChatMessages | None = None
    tools: ChatTools | None = None
    add_special_tokens: bool = Field(default=True, description="Begin with the bos token.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeFields(Fields):
    model_config = example({"tokens": [300, 301]})

    model: str | None = None
    tokens: Tokens
    skip_special_tokens: bool = False

"""The fields of requests. What is not here, or not with that value, is refused by name and never ignored."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gesso.settings import PRESETS, SAMPLERS, STOPPINGS

# OpenAI's fields that this server does not act on. A value that means "off" is as good as none: many clients send it.
OFF: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_p": (1,),
    "top_k": (0, -1),
    "best_of": (1,),
    "echo": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "truncation": ("disabled",),
    "background": (False,),
    "include": ([],),
    # Constraints and infill, as far as they ask for plain text.
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}}, {}),
    "suffix": ("",),
}
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Stop = Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(max_length=16)]


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_off(cls, data: Any) -> Any:
        """A null is a field not given, here as with OpenAI."""
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None
            and not (name in OFF and name not in cls.model_fields and any(_same(value, off) for off in OFF[name]))
        }


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


class DiffusionFields(Fields):
    """The settings of `gesso.Diffusion`, by the same names, and what only this server has."""

    preset: str | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    entropy_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    t_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    t_min: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    stability: Annotated[int, Field(ge=0, le=1000)] | None = None
    confidence: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    greed: Annotated[float, Field(ge=0, le=1)] | None = None
    sampler: str | None = None
    stopping: str | None = None
    canvas_length: Annotated[int, Field(ge=1)] | None = None
    eos_settles: bool | None = None
    settle: Annotated[int, Field(ge=0, le=1000)] | None = None
    pins: dict[str, int] = Field(default={}, description="Token by position in the new text.")
    drafts: bool = Field(default=False, description="Stream every canvas after every step, as extra events.")

    @field_validator("preset", "sampler", "stopping")
    @classmethod
    def _known(cls, value: str | None, info: Any) -> str | None:
        known = {"preset": tuple(PRESETS), "sampler": SAMPLERS, "stopping": STOPPINGS}[info.field_name]
        if value is not None and value not in known:
            raise ValueError(f"expected one of {', '.join(known)}, got {value!r}")
        return value

    @field_validator("pins")
    @classmethod
    def _positions(cls, pins: dict[str, int]) -> dict[str, int]:
        if wrong := [at for at in pins if not (at.isascii() and at.isdecimal() and len(at) < 10)]:
            raise ValueError(f"a position is a number from 0 on, got {wrong[0]!r}")
        return pins


class StreamOptions(Fields):
    include_usage: bool = False


class Common(Fields):
    """What every endpoint that writes text takes."""

    model: str | None = Field(default=None, description="The served model or one of its adapters; see /v1/models.")
    temperature: Annotated[float, Field(ge=0, le=2)] = Field(
        default=1.0, description="Below 1 the draws are greedier, above 1 it scales t_max and t_min."
    )
    seed: Seed | None = None
    stream: bool = False
    user: str | None = Field(default=None, max_length=512, description="Goes into the log.")
    diffusion: DiffusionFields = DiffusionFields()


class Choices(Common):
    n: Count = 1
    max_tokens: Count | None = None
    stop: Stop = []
    stream_options: StreamOptions = StreamOptions()

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options belongs to stream: true")
        return self


class ChatFields(Choices):
    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] = "auto"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    thinking: bool | None = Field(default=None, description="Think before the answer; as any effort above minimal.")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same; give one")
        return self

    @property
    def thinks(self) -> bool:
        return thinks(self.reasoning_effort) if self.thinking is None else self.thinking


class CompletionFields(Choices):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class ReasoningFields(Fields):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponseFields(Common):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    reasoning: ReasoningFields = ReasoningFields()


class TokenizeFields(Fields):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool = Field(default=True, description="Begin with the token that begins every text.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give prompt or messages, one of the two")
        return self


class DetokenizeFields(Fields):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


def thinks(effort: str | None) -> bool:
    return effort not in (None, "none", "minimal")

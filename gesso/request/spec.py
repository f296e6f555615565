"""What a caller asks for, as it was given: nothing is resolved or checked here. `gesso.request.build` does both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gesso.chat.prompt import Prompt
from gesso.constraints.guide import Guide
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.request import Resumable
from gesso.presets import Preset
from gesso.settings import DiffusionOptions

TextPrompt = str | Sequence[int] | Prompt


@dataclass(frozen=True, kw_only=True)
class ChatSpec:
    """Messages to answer, and what concerns the form of the answer."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True  # allow several calls
    thinking: bool = False
    schema_in_prompt: bool = True  # add the JSON schema of the constraint to the last message
    begun: str = ""  # the beginning of the answer, which the model continues


@dataclass(frozen=True, kw_only=True)
class RequestSpec:
    """A request for a text."""

    prompt: TextPrompt | ChatSpec
    max_new_tokens: int | None = None  # None: the checkpoint's, or less where the context ends
    seed: int | None = None  # None: that of the draft to resume, or a random one
    temperature: float | None = None
    preset: Preset | None = None
    settings: DiffusionOptions = field(default_factory=lambda: DiffusionOptions())
    stop: str | Sequence[str] = ()
    pins: Mapping[int, int] | None = None
    constraint: ConstraintSpec | None = None
    guide: Guide | None = None  # a compiled constraint, in place of `constraint`
    top_logprobs: int | None = None
    draft_logprobs: int | None = None
    resume: Resumable | None = None
    adapter: str | None = None  # None: that of the model's `use_adapter`


@dataclass(frozen=True, kw_only=True)
class DecisionSpec:
    """A request to choose among texts, given as tokens."""

    prompt: TextPrompt | ChatSpec
    texts: Sequence[Sequence[int]]
    adapter: str | None = None


@dataclass(frozen=True, kw_only=True)
class HoleSpec:
    """A hole to fill between two texts. `Gesso.infill` describes the fields."""

    prefix: str
    suffix: str
    method: str = "auto"
    lengths: Sequence[int] | None = None
    context: int | None = None
    candidates: int = 1
    max_new_tokens: int | None = None
    seconds: float | None = None  # after which a search for the length begins no other round


@dataclass(frozen=True, kw_only=True)
class EditSpec:
    """A span of a text to write again. `Gesso.edit` describes the fields."""

    text: str
    span: tuple[int, int]
    instruction: str | None = None
    level: float = 1.0
    method: str = "auto"
    context: int | None = None
    max_new_tokens: int | None = None

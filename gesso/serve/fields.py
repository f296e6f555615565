"""The fields of requests. Unknown fields are rejected by name, unless `gesso.serve.leniency` has removed them."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gesso.engine.decision import CHOICES
from gesso.errors import InputError
from gesso.settings import OPTIONS, Setting

# Fields of other servers that this one does not support, with the values that turn them off. Many clients send those.
OFF: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "verbosity": ("medium",),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "best_of": (1,),
    "echo": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "background": (False,),
    "include": ([],),
}
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
# Stop at the first wrong item: half a million validation errors would take minutes to format.
Tokens = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]],
    Field(max_length=16),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
Temperature = Annotated[
    float, Field(ge=0, le=2, description="Below 1, draws are greedier. Above 1, it scales t_max and t_min.")
]
Ignored = Annotated[Any, Field(description="Accepted and ignored.")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
SCHEMA_IN_PROMPT = Field(default=True, description="Add the JSON schema of the answer to the last message.")


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_disabled(cls, data: Any) -> Any:
        """Drop fields that are null, as OpenAI does, and unsupported fields that are turned off."""
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None and not (name not in cls.model_fields and is_off(name, value))
        }


class LenientFields(Fields):
    """Fields of an object whose other fields are ignored."""

    model_config = ConfigDict(extra="ignore")


def example(body: dict[str, Any]) -> ConfigDict:
    """Return a model config with an example request for the API reference page."""
    return ConfigDict(json_schema_extra={"examples": [body]})


def is_off(name: str, value: Any) -> bool:
    """Return whether a value turns an unsupported field off."""
    return any(_same(value, off) for off in OFF.get(name, ()))


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


class DraftFields(Fields):
    candidates: Annotated[int, Field(ge=0, le=20)] = Field(
        default=0, description="Most likely tokens to report per position. Each step then costs more."
    )


def _kind_of_drafts(value: Any) -> str:
    """Return which of the two types was meant, so that errors refer to that one."""
    return "object" if isinstance(value, (dict, DraftFields)) else "boolean"


Drafts = Annotated[
    Annotated[bool, Tag("boolean")] | Annotated[DraftFields, Tag("object")], Discriminator(_kind_of_drafts)
]


def setting_field(setting: Setting) -> Any:
    """Return the type of a field for a diffusion setting: the schema checks its value and describes it."""

    def check(value: Any) -> Any:
        try:
            setting.check(value)
        except InputError as error:
            raise PydanticCustomError("diffusion_setting", "{message}", {"message": str(error)}) from None
        return value

    return Annotated[Any, PlainValidator(check), WithJsonSchema(setting.json_schema())]


# None is a factory's value, so that the API's description has no default: preset and checkpoint decide.
_settings: dict[str, Any] = {
    name: (setting_field(one), Field(default_factory=lambda: None)) for name, one in OPTIONS.items()
}
SettingFields = create_model("SettingFields", __base__=Fields, **_settings)
DRAWS = ("top_k", "top_p", "min_p")  # diffusion settings that clients know as fields of the request
DrawFields = create_model("DrawFields", __base__=Fields, **{name: _settings[name] for name in DRAWS})


class DiffusionFields(SettingFields):  # type: ignore[valid-type, misc]
    """The settings of `gesso.Diffusion`, by the same names, a preset, and options that only the server has."""

    pins: dict[str, int] = Field(default={}, description="Token ids by position in the new text.")
    drafts: Drafts = Field(default=False, description="Stream the canvas after every step, as extra events.")

    @field_validator("pins")
    @classmethod
    def _positions(cls, pins: dict[str, int]) -> dict[str, int]:
        if wrong := [at for at in pins if not (at.isascii() and at.isdecimal() and len(at) < 10)]:
            raise ValueError(f"a position must be an integer of at least 0 with at most 9 digits, got {wrong[0]!r}")
        return pins


class StreamOptions(Fields):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="Report the usage so far in every chunk.")


class ModelFields(Fields):
    """Fields of every endpoint that runs a model."""

    model: str | None = Field(default=None, description="A served model or one of its adapters; see /v1/models.")
    user: str | None = Field(default=None, max_length=512, description="Written to the log.")


class Common(ModelFields, DrawFields):  # type: ignore[valid-type, misc]
    """Fields of every endpoint that generates text."""

    temperature: Temperature = 1.0
    seed: Seed | None = None
    stream: bool = False
    diffusion: DiffusionFields = DiffusionFields()

    @field_validator("top_k", mode="before")
    @classmethod
    def _all_tokens(cls, value: Any) -> Any:
        return 0 if value == -1 else value  # some servers write "from all" as -1

    @property
    def ignored(self) -> dict[str, str]:
        """Fields that have no effect beside the others, with the reason."""
        return {}


class SchemaOptionFields(Fields):
    """Which texts of valid values a JSON schema allows: the fields of `gesso.SchemaOptions`."""

    any_order: bool = Field(default=False, description="Members of an object in any order.")
    whitespace: bool = Field(default=False, description="Any whitespace between the tokens of JSON.")
    open: bool = Field(default=False, description="Everything that the schema does not forbid.")


class Constraint(Fields):
    """A constraint on the text, with the names of the Python API. At most one may be given."""

    choice: Texts | None = Field(default=None, description="Texts to choose from.")
    regex: str | None = Field(default=None, description="A regular expression in Rust's syntax.")
    grammar: str | None = Field(default=None, description="A grammar in EBNF.")

    def constraint(self, json_schema: dict[str, Any] | bool | None = None) -> dict[str, Any] | None:
        """Return the constraint as {name: value}, or None."""
        named = {"choice": self.choice, "regex": self.regex, "grammar": self.grammar, "json_schema": json_schema}
        given = {name: value for name, value in named.items() if value is not None}
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} were given; only one constraint is allowed")
        return given or None


class Choices(Common, Constraint):
    n: Count = 1
    max_tokens: Count | None = None
    stop: Stop = []
    stream_options: StreamOptions = Field(default=StreamOptions(), description="Without stream, it has no effect.")


class SchemaFields(Fields):
    """A JSON schema for the answer. It is always enforced; `strict` changes nothing."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(default={"type": "object"}, alias="schema")
    strict: bool | None = None


class FormatFields(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: SchemaFields | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("give json_schema if and only if type is json_schema")
        return self

    @property
    def requested_schema(self) -> dict[str, Any] | bool | None:
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class ChosenFunction(Fields):
    name: str


class ChosenTool(Fields):
    type: Literal["function"] = "function"
    function: ChosenFunction


class ChatFields(Choices):
    model_config = example({"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64})

    messages: Objects = Field(
        description="A content is text, or a list of parts: text, and image_url if the model sees images."
    )
    max_completion_tokens: Count | None = Field(default=None, description="Like max_tokens; the smaller one counts.")
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Objects | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool = "auto"
    parallel_tool_calls: bool | None = Field(default=None, description="With false, an answer has at most one call.")
    response_format: FormatFields = FormatFields()
    reasoning_effort: Effort | None = None
    thinking: bool | None = Field(default=None, description="Think before the answer, like any effort above minimal.")
    schema_in_prompt: bool = SCHEMA_IN_PROMPT
    schema_options: SchemaOptionFields | None = Field(default=None, description="With a JSON schema as the format.")

    @property
    def ignored(self) -> dict[str, str]:
        return {"top_logprobs": "it needs logprobs: true"} if self.top_logprobs and not self.logprobs else {}

    @property
    def most_tokens(self) -> int | None:
        """The smaller of the two names for the same limit."""
        given = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(given, default=None)

    def constraint(self, json_schema: dict[str, Any] | bool | None = None) -> dict[str, Any] | None:
        found = super().constraint(self.response_format.requested_schema if json_schema is None else json_schema)
        if found and self.tool_choice not in ("auto", "none"):
            raise InputError(f"{next(iter(found))} and tool_choice were given; only one constraint is allowed")
        choice = self.tool_choice if isinstance(self.tool_choice, str) else self.tool_choice.model_dump()
        parallel = self.parallel_tool_calls is not False
        return whole_constraint(found, self.tools or [], choice, parallel, self.thinks, self.schema_options)

    @property
    def thinks(self) -> bool:
        return thinks(self.reasoning_effort) if self.thinking is None else self.thinking


def whole_constraint(
    found: dict[str, Any] | None,
    tools: list[dict[str, Any]],
    choice: str | dict[str, Any],
    parallel: bool,
    thinks: bool,
    options: SchemaOptionFields | None,
) -> dict[str, Any] | None:
    """Return the constraint of a chat for `Guides.compile`: the one that was `found`, or that on its tool calls."""
    if options is not None:
        if found is None or "json_schema" not in found:
            raise InputError("schema_options: they need a JSON schema; leave them out")
        found = {**found, "schema_options": options.model_dump()}
    if found is None and choice != "none" and (tools or choice != "auto"):
        found = {"tools": tools, "choice": choice, "parallel": parallel}
    return {**found, "thinking": True} if found and thinks else found


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
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(default=None, description="0 needs echo.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = Field(default=False, description="Return the log-probabilities of the prompt; writes no text.")
    best_of: Count = Field(default=1, description="With a suffix: generate this many texts, return the most likely.")

    @model_validator(mode="after")
    def _check_echo(self) -> Self:
        if not self.echo:
            if self.max_tokens == 0:
                raise ValueError("max_tokens: 0 needs echo: true; otherwise give at least 1")
            return self
        if self.logprobs is None or self.max_tokens not in (0, 1):
            raise ValueError("echo needs logprobs, and max_tokens: 0 or 1: it scores the prompt and writes no text")
        if self.n > 1 or self.stream or self.suffix or self.diffusion.model_fields_set or Constraint.constraint(self):
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
        if self.diffusion.pins:
            given.append("diffusion.pins")
        if given:
            raise ValueError(f"{given[0]} is not supported together with suffix")
        return self


class DecideFields(ModelFields):
    """Texts to choose from, after a prompt."""

    model_config = example({"messages": [{"role": "user", "content": "Is 7 a prime?"}], "choices": ["yes", "no"]})

    messages: Objects | None = Field(default=None, description="A conversation; a choice is a whole answer.")
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
    max_tokens: Count | None = None


class TokenizeFields(Fields):
    model_config = example({"prompt": "To be"})

    model: str | None = None
    prompt: str | None = None
    messages: Objects | None = None
    tools: Objects | None = None
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


def thinks(effort: str | None) -> bool:
    return effort not in (None, "none", "minimal")

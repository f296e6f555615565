"""The fields that several endpoints share. Unknown fields are rejected by name, unless `gesso.serve.leniency` has
removed them."""

from dataclasses import replace
from typing import Annotated, Any

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

from gesso import renamed
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.spec import ConstraintSpec
from gesso.errors import InputError
from gesso.settings import OPTIONS, Setting

# Fields of other servers that this one does not support, with the values that turn them off. Many clients send those.
OFF: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({}, []),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "typical_p": (1,),
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
    "mcp_servers": ([],),
    "speed": ("standard",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    # no value but null turns these off: an empty object asks for a search, and 0 for the tokens of the prompt alone
    "web_search_options": (),
    "prompt_logprobs": (),
    "json_schema": (),
}
Count = Annotated[int, Field(ge=1)]
UNLIMITED = 2**31  # a limit of tokens that means: all that fit


def without_minus_one(value: Any) -> Any:
    """Return a value, or None for -1, by which llama.cpp and others mean that none is given."""
    return None if value == -1 and isinstance(value, int) else value


Limit = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(without_minus_one),
    Field(description="Most tokens of the answer, lowered to what fits. -1: the model's usual limit."),
]
Seed = Annotated[Annotated[int, Field(ge=0, lt=2**64)] | None, BeforeValidator(without_minus_one)]
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


def example(body: dict[str, Any], **rules: Any) -> ConfigDict:
    """Return a model config with an example request for the API reference page, and rules of the body's JSON schema."""
    return ConfigDict(json_schema_extra={"examples": [body], **rules})


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
        if renamed.is_former(setting.name, value):  # the builder of the request warns of it
            return value
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

    pins: dict[str, int] = Field(
        default={},
        description="Token ids by position in the new text.",
        json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}},
    )
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
    seed: Seed = None
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


def with_options(constraint: ConstraintSpec | None, options: SchemaOptionFields | None) -> ConstraintSpec | None:
    """Return a constraint with the options of its JSON schema."""
    if options is None:
        return constraint
    if constraint is None or constraint.json_schema is None:
        raise InputError("schema_options: they need a JSON schema; leave them out")
    return replace(constraint, schema_options=SchemaOptions(**options.model_dump()))


class ConstraintFields(Fields):
    """A constraint on the text, with the names of the Python API. At most one may be given."""

    choice: Texts | None = Field(default=None, description="Texts to choose from.")
    regex: str | None = Field(default=None, description="A regular expression in Rust's syntax.")
    grammar: str | None = Field(default=None, description="A grammar in EBNF.")

    def constraint_with(self, json_schema: dict[str, Any] | bool | None = None) -> ConstraintSpec | None:
        """Return the constraint, which may be a schema that another field has."""
        named = {"choice": self.choice, "regex": self.regex, "grammar": self.grammar, "json_schema": json_schema}
        given = [name for name, value in named.items() if value is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} were given; only one constraint is allowed")
        return ConstraintSpec(**named) if given else None  # type: ignore[arg-type]


class Choices(Common, ConstraintFields):
    n: Count = 1
    max_tokens: Limit = None
    stop: Stop = []
    stream_options: StreamOptions = Field(default=StreamOptions(), description="Without stream, it has no effect.")

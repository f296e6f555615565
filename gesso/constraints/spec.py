"""A constraint as a caller gives it, before it is compiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gesso.constraints.schema.options import SchemaOptions
from gesso.errors import InputError

NAMES = ("choice", "regex", "json_schema", "grammar")


@dataclass(frozen=True, kw_only=True)
class ConstraintSpec:
    """A constraint on a text, which is one of the first four, or on the tool calls in an answer."""

    choice: Sequence[str] | None = None
    regex: str | None = None
    json_schema: Mapping[str, Any] | bool | None = None
    grammar: str | None = None
    schema_options: SchemaOptions | None = None  # for json_schema
    tools: Sequence[Mapping[str, Any]] = ()  # checked ones: see `gesso.chat.messages.check_tools`
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel: bool = True  # allow several calls
    thinking: bool = False  # the constraint begins after the thoughts

    @property
    def given(self) -> dict[str, Any]:
        """The constraint on a text, by its name. Reject several."""
        named = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} were given; a text has one constraint")
        return named

    @property
    def is_optional(self) -> bool:
        """Whether the model is free to call none of the tools, so that the constraint may be left out."""
        return bool(self.tools) and self.tool_choice == "auto"

    @property
    def has_tags(self) -> bool:
        """Whether its texts have tags of tool calls or thoughts, which are special tokens."""
        return bool(self.tools) or self.thinking

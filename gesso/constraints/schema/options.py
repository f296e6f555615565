"""Options for the texts that a JSON schema allows."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Which texts of valid values are allowed. By default they are those that models write best."""

    any_order: bool = False  # members of an object in any order, instead of the order of `properties`
    whitespace: bool = False  # any JSON whitespace between tokens, instead of one space after `,` and `:`
    open: bool = False  # values of other types and further members and items, wherever the schema does not forbid them

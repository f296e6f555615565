"""The compiler that array and object terms use for their parts."""

from typing import Protocol

from gesso.constraints.schema.dialects import ValueWriter
from gesso.constraints.schema.facts import Subschema
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.schema.reader import SchemaReader
from gesso.constraints.term import Term


class Compiler(Protocol):
    reader: SchemaReader
    writer: ValueWriter
    options: SchemaOptions

    def check(self, pointer: str) -> None:
        """Leave an assertion to the check of the finished answer."""

    def value(self, places: tuple[Subschema, ...]) -> Term:
        """Return the values that satisfy all these subschemas."""

    def rule(self, body: Term) -> Term:
        """Give a term a name, so that it is one item of a sequence or an alternative."""

"""Check single values of a schema with the `jsonschema` package."""

from functools import cached_property
from typing import Any
from urllib.parse import quote

from gesso.constraints.schema.facts import NEGATED, Subschema


class Validity:
    """Tells whether a value satisfies a subschema of one schema."""

    def __init__(self, root: Any) -> None:
        self.root = root

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY

        chosen: Any = validator_for(self.root, default=Draft202012Validator)
        return chosen(self.root, registry=REGISTRY, format_checker=chosen.FORMAT_CHECKER)  # fetches nothing

    def allows(self, place: Subschema, value: Any) -> bool:
        """Return whether a value satisfies a subschema; True if the package cannot tell."""
        whole = place.pointer == "#"
        made = f"/{NEGATED}" in place.pointer or "/(" in place.pointer
        schema = place.schema if whole or made else {"$ref": quote(place.pointer, safe="#/~$()*!,;=:@&'+")}
        try:
            return bool(self._validator.evolve(schema=schema).is_valid(value))
        except Exception:  # an unresolvable reference or an unsupported pattern: the finished answer is checked
            return True

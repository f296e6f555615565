"""Resolve the references of a schema within the schema itself. Nothing is ever fetched."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from gesso.constraints.schema.drafts import draft_of, standard_schemas
from gesso.constraints.schema.facts import Subschema
from gesso.constraints.schema.walk import is_subschema, subschemas
from gesso.errors import InputError

DEFINITIONS = ("$defs", "definitions")  # which apply only where a reference leads to them
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class References:
    """The addresses of a schema: JSON pointers, `$id` and anchors."""

    def __init__(self, root: Any) -> None:
        self.draft = draft_of(root)
        self.root = self.entered(Subschema(root, "#"))
        self._addresses: dict[str, Subschema] | None = None

    def entered(self, place: Subschema) -> Subschema:
        """Return a place with the base that its own `$id` gives it."""
        if place.entered or place.is_negation or not isinstance(place.schema, Mapping):
            return place
        name = self._name_of(place.schema)
        base = place.base if name is None else urldefrag(urljoin(place.base, name)).url
        return Subschema(place.schema, place.pointer, base, entered=True)

    def _name_of(self, schema: Mapping[str, Any]) -> str | None:
        """Return the `$id` of a schema if it changes the base."""
        name = schema.get("id" if self.draft <= 4 else "$id")
        # Up to draft 7, the siblings of a reference have no meaning.
        ignored = self.draft <= 7 and "$ref" in schema
        return name if isinstance(name, str) and not name.startswith("#") and not ignored else None

    def targets(self, place: Subschema, keyword: str) -> list[Subschema]:
        """Return the subschemas to which a keyword of a place may refer: several only if the way to it decides."""
        target = self._target(place, keyword)
        if keyword == "$recursiveRef" and _is_recursive(target):
            return self._outermost({other.base: other for other in self._resources() if _is_recursive(other)})
        if keyword == "$dynamicRef":
            anchor = unquote(urldefrag(place.schema[keyword]).fragment)
            if _has_anchor(target, anchor):
                named = (other for other in self.addresses.values() if _has_anchor(other, anchor))
                return self._outermost({other.base: other for other in named})
        return [target]

    def _resources(self) -> list[Subschema]:
        return [self.root, *self.addresses.values()]

    def _outermost(self, candidates: dict[str, Subschema]) -> list[Subschema]:
        """Return the candidates that can be reached from the root without entering another candidate before."""
        first: dict[str, Subschema] = {}
        seen = {self.root.pointer}
        waiting = [self.root]
        while waiting:
            place = waiting.pop()
            if place.base in candidates:
                first[place.base] = candidates[place.base]
                continue
            following = [
                self.entered(place.child(inner, *steps))
                for steps, inner in subschemas(place.schema)
                if steps[0] not in DEFINITIONS
            ]
            for keyword in REFERENCES & place.schema.keys() if isinstance(place.schema, Mapping) else ():
                with suppress(InputError):  # reported where the reference is read
                    following.append(self._target(place, keyword))
            waiting += [other for other in following if other.pointer not in seen]
            seen |= {other.pointer for other in following}
        return list(first.values())

    def _target(self, place: Subschema, keyword: str) -> Subschema:
        """Return the subschema that a keyword of a place names."""
        where = f"{place.pointer}/{keyword}"
        ref = place.schema[keyword]
        if not isinstance(ref, str):
            raise InputError(f"{where} is {ref!r:.60}: expected a reference such as #/$defs/name")
        uri, fragment = urldefrag(urljoin(place.base, ref) if place.base and not ref.startswith("#") else ref)
        if uri in ("", place.base) and ref.startswith("#"):
            uri = place.base
        resource = self.root if uri == self.root.base else self.addresses.get(uri) or self._standard(uri)
        if resource is None:
            raise InputError(
                f"{where}: {ref!r:.120} is not in the schema, and nothing is fetched; "
                "copy the schema it names to $defs, with its $id"
            )
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return self._at(resource, fragment, where)
        target = self.addresses.get(f"{uri}#{unquote(fragment)}")
        if target is None:
            raise InputError(f"{where}: there is no anchor {ref!r:.120} in the schema")
        return target

    def _at(self, place: Subschema, pointer: str, where: str) -> Subschema:
        steps: list[str] = []  # since the last subschema
        for step in (unquote(part).replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
            inside = place.schema
            if isinstance(inside, Mapping) and step in inside:
                place = place.child(inside[step], step)
            elif isinstance(inside, list | tuple) and step.isdecimal() and int(step[:9]) < len(inside):
                place = place.child(inside[int(step[:9])], step)
            else:
                raise InputError(f"{where}: there is no {pointer!r:.120} in the schema")
            steps.append(step)
            if is_subschema(steps, place.schema):  # in other places, `$id` has no meaning
                place = self.entered(place)
                steps.clear()
        return self.entered(place)

    def _standard(self, uri: str) -> Subschema | None:
        """Return one of the schemas that describe schemas; the `jsonschema-rs` package contains them."""
        for name, schema in standard_schemas(uri).items():
            place = Subschema(schema, pointer=f"{name}#", base=name, entered=True)
            self.addresses.update({name: place} | dict(self._find_addresses(place)))
        return self.addresses.get(uri)

    @property
    def addresses(self) -> dict[str, Subschema]:
        """The places with an `$id`, by URI, and those with an anchor, by URI and fragment."""
        if self._addresses is None:
            self._addresses = dict(self._find_addresses(self.root))
        return self._addresses

    def _find_addresses(self, root: Subschema) -> Iterator[tuple[str, Subschema]]:
        waiting = [root]
        while waiting:
            place = waiting.pop()
            if not isinstance(place.schema, Mapping):
                continue
            if place.base and (place is root or self._name_of(place.schema) is not None):
                yield place.base, place
            for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
                name = place.schema.get(keyword)
                if isinstance(name, str) and (keyword.endswith("nchor") or name.startswith("#")):
                    yield f"{place.base}#{name.removeprefix('#')}", place
            waiting += [self.entered(place.child(inner, *steps)) for steps, inner in subschemas(place.schema)]


def _is_recursive(place: Subschema) -> bool:
    return isinstance(place.schema, Mapping) and place.schema.get("$recursiveAnchor") is True


def _has_anchor(place: Subschema, name: str) -> bool:
    return isinstance(place.schema, Mapping) and place.schema.get("$dynamicAnchor") == name

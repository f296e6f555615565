"""Resolve the references of a schema within the schema itself. Nothing is ever fetched."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from gesso.constraints.schema.facts import Subschema
from gesso.errors import InputError

NO_SCHEMAS = frozenset({"enum", "const", "default", "examples"})  # keywords whose values are no schemas
DRAFTS = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}


def draft_of(schema: Any) -> int:
    """Return the draft that `$schema` names; 2020 without one."""
    uri = schema.get("$schema") if isinstance(schema, Mapping) else None
    named = (draft for name, draft in DRAFTS.items() if isinstance(uri, str) and f"/{name}/schema" in uri)
    return next(named, 2020)


class References:
    """The addresses of a schema: JSON pointers, `$id` and anchors."""

    def __init__(self, root: Any) -> None:
        self.draft = draft_of(root)
        self.root = self.entered(Subschema(root, "#"))
        self._addresses: dict[str, Subschema] | None = None

    def entered(self, place: Subschema) -> Subschema:
        """Return a place with the base that its own `$id` gives it."""
        if not isinstance(place.schema, Mapping):
            return place
        name = place.schema.get("id" if self.draft <= 4 else "$id")
        if not isinstance(name, str) or name.startswith("#") or (self.draft <= 7 and "$ref" in place.schema):
            return place
        return Subschema(place.schema, place.pointer, urldefrag(urljoin(place.base, name)).url)

    def target(self, place: Subschema, keyword: str) -> Subschema:
        """Return the subschema to which a keyword of a place refers."""
        where, ref = f"{place.pointer}/{keyword}", place.schema[keyword]
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
        found = self.addresses.get(f"{uri}#{unquote(fragment)}")
        if found is None:
            raise InputError(f"{where}: there is no anchor {ref!r:.120} in the schema")
        return found

    def _at(self, place: Subschema, pointer: str, where: str) -> Subschema:
        for step in (unquote(part).replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
            inside = place.schema
            if isinstance(inside, Mapping) and step in inside:
                place = self.entered(place.child(inside[step], step))
            elif isinstance(inside, list | tuple) and step.isdecimal() and int(step[:9]) < len(inside):
                place = self.entered(place.child(inside[int(step[:9])], step))
            else:
                raise InputError(f"{where}: there is no {pointer!r:.120} in the schema")
        return place

    def ambiguous(self, ref: str) -> bool:
        """Return whether several places of the schema have the anchor of a dynamic reference, or `$id`."""
        anchor = urldefrag(ref).fragment
        same = [address for address in self.addresses if address.partition("#")[2] == anchor]
        return len(same) > 1

    def _standard(self, uri: str) -> Subschema | None:
        """Return one of the schemas that describe schemas, which the `jsonschema` package brings along."""
        from jsonschema_specifications import REGISTRY

        resource = REGISTRY.get(uri) or REGISTRY.get(uri + "#")
        if resource is None:
            return None
        place = Subschema(resource.contents, uri + "#", uri)
        self.addresses.update(self._find_addresses(place))
        return place

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
            if isinstance(place.schema, Mapping):
                name = place.schema.get("id" if self.draft <= 4 else "$id")
                if place.base and (place is root or (isinstance(name, str) and not name.startswith("#"))):
                    yield place.base, place
                for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
                    name = place.schema.get(keyword)
                    if isinstance(name, str) and (keyword.endswith("nchor") or name.startswith("#")):
                        yield f"{place.base}#{name.removeprefix('#')}", place
                waiting += [
                    self.entered(place.child(inner, name))
                    for name, inner in place.schema.items()
                    if name not in NO_SCHEMAS and isinstance(inner, Mapping | list | tuple)
                ]
            else:
                waiting += [
                    self.entered(place.child(inner, i))
                    for i, inner in enumerate(place.schema)
                    if isinstance(inner, Mapping | list | tuple)
                ]

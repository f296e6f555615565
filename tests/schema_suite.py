"""Run the official JSON Schema Test Suite against constraints, in both directions.

    python -m tests.schema_suite --suite DIR

DIR is the suite, which the source distribution of `jsonschema` contains as `json/`. A constraint should reject invalid
instances, and accept valid ones as `json.dumps` writes them, with and without spaces. The output is a table by keyword
in Markdown. Figures of instances are of the schemas that compile.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from gesso.bench.random_text import accepts
from gesso.bench.schemas import guides
from gesso.constraints.guide import Guide
from gesso.errors import InputError

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# It tests that formats are annotations. Constraints enforce the formats they know, as `optional/format` asks.
LEFT_OUT = {"format.json"}
ORDERS = 200  # of the members of one instance that are tried
UNSATISFIABLE = ("no text can", "no value satisfies", "contradict")


@dataclass
class Counts:
    """Counts of one keyword. `valid` and `invalid` are instances of schemas that compile."""

    schemas: int = 0
    compiled: int = 0
    invalid: int = 0
    rejected: int = 0
    validated: int = 0  # accepted, but the constraint leaves a part of the schema to validation
    passed: int = 0  # accepted, although the constraint claims to keep the schema: an error
    valid: int = 0
    dumped: int = 0  # accepted as json.dumps writes them
    compact: int = 0
    ordered: int = 0  # accepted only with their members in another order

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True)
class Problem:
    """A refusal or a wrong verdict, for `--problems`."""

    place: str
    text: str


def run(
    suite: Path, drafts: Sequence[str] = tuple(DRAFTS), options: dict[str, bool] | None = None
) -> tuple[dict[tuple[str, str], Counts], list[Problem]]:
    """Return the counts by draft and keyword, and what is wrong. `options` are those of the constraint."""
    found: dict[tuple[str, str], Counts] = {}
    problems: list[Problem] = []
    for draft in drafts:
        for keyword, path in _files(suite / "tests" / draft):
            counts = Counts()
            for group in json.loads(path.read_text(encoding="utf-8")):
                place = f"{draft} {keyword}: {group['description']}"
                schema = _with_draft(group["schema"], DRAFTS[draft])
                counts += _group(schema, group["tests"], options or {}, place, problems)
            found[draft, keyword] = counts
    return found, problems


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.glob("*.json")):
        if path.name not in LEFT_OUT:
            yield path.stem, path
    for path in sorted((directory / "optional" / "format").glob("*.json")):
        yield f"format: {path.stem}", path


def _with_draft(schema: Any, uri: str) -> Any:
    """Name the draft in a schema, as the files of older drafts do not."""
    return {"$schema": uri, **schema} if isinstance(schema, dict) else schema


def _group(
    schema: Any, tests: list[dict[str, Any]], options: dict[str, bool], place: str, problems: list[Problem]
) -> Counts:
    try:
        guide = _compiled(schema, options)
    except InputError as error:
        if any(part in str(error) for part in UNSATISFIABLE) and not any(test["valid"] for test in tests):
            return Counts(schemas=1, compiled=1, invalid=len(tests), rejected=len(tests))
        problems.append(Problem(place, f"refused: {error}"))
        return Counts(schemas=1)
    assert guide is not None
    counts, checked = Counts(schemas=1, compiled=1), bool(guide.checked)
    for test in tests:
        wrong = _instance(guide, checked, test, counts)
        if wrong:
            problems.append(Problem(place, f"{wrong}: {json.dumps(test['data'])[:200]}"))
    return counts


def _compiled(schema: Any, options: dict[str, bool]) -> Guide | None:
    """Compile a schema. `options` are fields of `SchemaOptions`."""
    if not options:
        return guides().guide(json_schema=schema)
    from gesso.constraints.schema.options import SchemaOptions

    return guides().guide(json_schema=schema, schema_options=SchemaOptions(**options))


def _instance(guide: Guide, checked: bool, test: dict[str, Any], counts: Counts) -> str | None:
    """Count the verdicts on one instance, and return what is wrong."""
    dumped, compact = _accepted(guide, test["data"])
    if not test["valid"]:
        counts.invalid += 1
        counts.rejected += not (dumped or compact)
        counts.validated += (dumped or compact) and checked
        counts.passed += (dumped or compact) and not checked
        return "accepted, but invalid" if (dumped or compact) and not checked else None
    counts.valid += 1
    counts.dumped += dumped
    counts.compact += compact
    if dumped and compact:
        return None
    if any(all(_accepted(guide, other)) for other in islice(_orders(test["data"]), 1, ORDERS)):
        counts.ordered += 1
        return "accepted in another order of members only"
    return "not accepted, but valid"


def _accepted(guide: Guide, value: Any) -> tuple[bool, bool]:
    return accepts(guide, json.dumps(value)), accepts(guide, json.dumps(value, separators=(",", ":")))


def _orders(value: Any) -> Iterator[Any]:
    """Yield a value with the members of its objects in every order; first as it is."""
    if isinstance(value, list):
        for items in product(*(list(islice(_orders(item), ORDERS)) for item in value)):
            yield list(items)
    elif isinstance(value, dict):
        for names in permutations(value):
            for values in product(*(list(islice(_orders(value[name]), ORDERS)) for name in names)):
                yield dict(zip(names, values, strict=True))
    else:
        yield value


# --- tables -----------------------------------------------------------------------------------------------------------


def table(rows: dict[str, Counts], name: str) -> str:
    """Return a table in Markdown, with a last row for all."""
    total = sum(rows.values(), Counts())
    head = (name, "schemas compiled", "invalid rejected", "left to validation", "wrongly accepted",
            "valid accepted, `json.dumps`", "compact", "in another order")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for label, one in [*rows.items(), ("all", total)]:
        cells = (
            label, f"{one.compiled} of {one.schemas}", _share(one.rejected, one.invalid), str(one.validated),
            str(one.passed), _share(one.dumped, one.valid), _share(one.compact, one.valid), str(one.ordered),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "–"


@cache
def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True, help="directory with tests/draft7 and others")
    parser.add_argument("--draft", choices=DRAFTS, action="append", help="only this draft; may be repeated")
    parser.add_argument("--option", action="append", default=[], help="a field of SchemaOptions to switch on")
    parser.add_argument("--problems", action="store_true", help="list refusals and wrong verdicts, too")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    found, problems = run(arguments.suite, arguments.draft or tuple(DRAFTS), dict.fromkeys(arguments.option, True))
    by_draft: dict[str, Counts] = {}
    by_keyword: dict[str, Counts] = {}
    for (draft, keyword), counts in found.items():
        by_draft[draft] = by_draft.get(draft, Counts()) + counts
        by_keyword[keyword] = by_keyword.get(keyword, Counts()) + counts
    print(table(by_draft, "draft"), table(dict(sorted(by_keyword.items())), "keyword"), sep="\n\n")
    if arguments.problems:
        print(*(f"{problem.place}: {problem.text}" for problem in problems), sep="\n")


if __name__ == "__main__":
    main()

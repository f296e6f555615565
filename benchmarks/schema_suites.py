"""Run public suites of JSON schemas with instances against constraints and the check of answers.

    python -m benchmarks.schema_suites official JSON-Schema-Test-Suite
    python -m benchmarks.schema_suites maskbench jsonschemabench/maskbench/data --schemas 3000 --seed 1
    python -m benchmarks.schema_suites sample

The first is https://github.com/json-schema-org/JSON-Schema-Test-Suite, the second is MaskBench of
https://github.com/guidance-ai/jsonschemabench; `SUITE` in the environment may name the directory. The third is a small
sample of our own. Each schema is compiled with the default options and with all options switched on.

A valid instance should be accepted by the constraint and by the check, an invalid one rejected by the constraint or at
least by the check. Instances are spelled as `json.dumps` does, valid ones without the `.0` of whole numbers: a
constraint writes each value in one of its spellings. For each valid instance that is refused with all options, the
output names the keyword without which the schema would accept it.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.random_text import accepts
from benchmarks.schemas import guides, refusal_kind
from gesso.constraints.guide import Guide
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.schema.walk import all_subschemas, mapped
from gesso.constraints.validate import schema_problem
from gesso.errors import InputError

SAMPLE = Path(__file__).with_name("sample")
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
FILES = {"required": ".", "optional": "optional", "format": "optional/format"}
MODES = {
    "default options": SchemaOptions(),
    "all options": SchemaOptions(any_order=True, whitespace=True, open=True),
}
CONTRADICTIONS = ("no text can", "no value satisfies", "contradict")
# Verdicts. The first of each kind is the right one.
ACCEPTED, REFUSED, UNCHECKED = "valid accepted", "valid refused while writing", "valid refused by the check"
STOPPED, CHECKED, LET_THROUGH = "invalid rejected while writing", "invalid rejected by the check", "invalid let through"
HEAD = ("schemas", "compiled", ACCEPTED, REFUSED, UNCHECKED, STOPPED, CHECKED, LET_THROUGH, "median ms", "p95 ms",
        "worst ms")  # fmt: skip
# Keywords that are tried as the reason of a refusal, those with the narrowest effect first.
CLAUSES = (
    "format", "pattern", "patternProperties", "propertyNames", "multipleOf", "uniqueItems", "contains", "minProperties",
    "maxProperties", "unevaluatedProperties", "unevaluatedItems", "dependencies", "dependentSchemas",
    "dependentRequired", "not", "if", "oneOf", "anyOf", "allOf", "$ref", "$dynamicRef", "$recursiveRef", "enum",
    "const", "items", "prefixItems", "additionalProperties", "required", "properties", "type",
)  # fmt: skip
NOT_SEARCHED = "not searched with the default options"
ORDER = "the order of the members of a large object"
SEARCH_SECONDS = 20  # of CPU time for the keyword that causes a refusal


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schema with instances, each valid or not."""

    subset: str
    name: str
    schema: Any
    instances: tuple[tuple[Any, bool], ...]


@dataclass(kw_only=True)
class Outcome:
    """What became of one schema and its instances."""

    subset: str
    name: str
    seconds: float = 0.0  # CPU time of compiling
    refusal: str | None = None
    verdicts: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, str]] = field(default_factory=list)


# --- the suites -------------------------------------------------------------------------------------------------------


def official(suite: Path) -> Iterator[Case]:
    """Yield the groups of the official suite, by draft and kind of file."""
    for draft, uri in DRAFTS.items():
        for kind, place in FILES.items():
            for path in sorted((suite / "tests" / draft / place).glob("*.json")):
                for group in _read(path):
                    schema = group["schema"]
                    if isinstance(schema, dict):
                        schema = {"$schema": uri, **schema}  # files of older drafts do not name it
                    name = f"{path.stem}: {group['description']}"
                    yield _case(f"{kind}, {draft}", name, schema, group["tests"])


def maskbench(data: Path, schemas: int | None, seed: int) -> Iterator[Case]:
    """Yield the schemas below a directory, or some of them at random."""
    paths = sorted(data.rglob("*.json"))
    if schemas is not None and schemas < len(paths):
        paths = sorted(random.Random(seed).sample(paths, schemas))
    for path in paths:
        group = _read(path)
        yield _case(path.stem.split("---")[0].split("_")[0], path.stem, group["schema"], group.get("tests", []))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _case(subset: str, name: str, schema: Any, tests: list[dict[str, Any]]) -> Case:
    instances = tuple((test["data"], test["valid"]) for test in tests)
    return Case(subset=subset, name=name, schema=schema, instances=instances)


# --- one schema -------------------------------------------------------------------------------------------------------


def outcome_of(case: Case, options: SchemaOptions) -> Outcome:
    """Compile a schema, and judge its instances."""
    outcome = Outcome(subset=case.subset, name=case.name)
    started = time.process_time()
    try:
        guide = _guide(case.schema, options)
    except InputError as error:
        outcome.refusal = str(error)
    outcome.seconds = time.process_time() - started
    any_valid = any(valid for _, valid in case.instances)
    if outcome.refusal and not any_valid and any(part in outcome.refusal for part in CONTRADICTIONS):
        outcome.refusal = None  # rightly: no value is valid
        outcome.verdicts[STOPPED] += len(case.instances)
    elif outcome.refusal is None:
        for value, valid in case.instances:
            text = json.dumps(_spelled(value) if valid else value)
            try:
                written = accepts(guide, text)
            except InputError as error:  # the states of a constraint have a limit
                outcome.verdicts[REFUSED if valid else STOPPED] += 1
                if valid:
                    outcome.problems.append({"verdict": REFUSED, "reason": str(error), "text": text[:400]})
                continue
            _judge(outcome, case, options, text, written=written, valid=valid)
    return outcome


def _guide(schema: Any, options: SchemaOptions) -> Guide:
    guide = guides().guide(json_schema=schema, schema_options=options)
    assert guide is not None
    return guide


def _spelled(value: Any) -> Any:
    """Return an equal value without floats that are whole numbers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**16:
        return int(value)
    if isinstance(value, list):
        return [_spelled(inner) for inner in value]
    return {name: _spelled(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _judge(outcome: Outcome, case: Case, options: SchemaOptions, text: str, *, written: bool, valid: bool) -> None:
    problem = schema_problem(case.schema, text) if written else None
    if valid:
        verdict = UNCHECKED if problem else ACCEPTED if written else REFUSED
    else:
        verdict = CHECKED if problem else LET_THROUGH if written else STOPPED
    outcome.verdicts[verdict] += 1
    if verdict in (REFUSED, UNCHECKED, LET_THROUGH):
        reason = problem or ""
        if verdict == REFUSED:
            reason = clause(case.schema, options, text) if options.open else NOT_SEARCHED
        outcome.problems.append({"verdict": verdict, "reason": reason, "text": text[:400]})


def clause(schema: Any, options: SchemaOptions, text: str) -> str:
    """Return the keyword without which a constraint accepts a text, or that the order of members is the reason."""
    ordered = json.dumps(_in_order(json.loads(text), _names(schema)))
    if _accepts(schema, options, ordered):
        return ORDER
    latest = time.process_time() + SEARCH_SECONDS
    for keyword in CLAUSES:
        if time.process_time() > latest:
            return "not known: the search took too long"
        other = _without(schema, keyword)
        if other == schema:
            continue
        if _accepts(other, options, text):
            return keyword
    return "no single keyword"


def _accepts(schema: Any, options: SchemaOptions, text: str) -> bool:
    """Return whether the constraint accepts a text. One of a schema that is not supported or has no value does not."""
    try:
        return accepts(_guide(schema, options), text)
    except InputError:
        return False


def _names(schema: Any) -> dict[str, int]:
    """Return the names of members, each with its place among all names of a schema."""
    names = dict.fromkeys(name for each in all_subschemas(schema) for name in each.get("properties", {}))
    return {name: place for place, name in enumerate(names)}


def _in_order(value: Any, names: dict[str, int]) -> Any:
    """Return an equal value with its members in the order of the schema."""
    if isinstance(value, list):
        return [_in_order(inner, names) for inner in value]
    if not isinstance(value, dict):
        return value
    ordered = sorted(value, key=lambda name: names.get(name, len(names)))
    return {name: _in_order(value[name], names) for name in ordered}


def _without(schema: Any, keyword: str) -> Any:
    """Return a schema without a keyword in any of its subschemas."""
    return mapped(schema, lambda each: {name: value for name, value in each.items() if name != keyword})


# --- tables -----------------------------------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table in Markdown with a row per subset, and one for all."""
    lines = [f"| subset | {' | '.join(HEAD)} |", "|---" * (len(HEAD) + 1) + "|"]
    subsets = list(dict.fromkeys(outcome.subset for outcome in outcomes))
    for subset in subsets:
        lines.append(_row(subset, [outcome for outcome in outcomes if outcome.subset == subset]))
    if len(subsets) > 1:
        lines.append(_row("all", outcomes))
    return "\n".join(lines)


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    verdicts = sum((outcome.verdicts for outcome in outcomes), Counter[str]())
    compiled = sum(outcome.refusal is None for outcome in outcomes)
    times = sorted(1000 * outcome.seconds for outcome in outcomes)
    p95 = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    counts = [len(outcomes), compiled, *(verdicts[verdict] for verdict in HEAD[2:8])]
    cells = [name, *(f"{count:,}" for count in counts), *(f"{time:.1f}" for time in (median(times), p95, times[-1]))]
    return f"| {' | '.join(cells)} |"


def reasons(outcomes: Sequence[Outcome]) -> str:
    """Return lists of the refused schemas, and of the instances with a wrong verdict, by reason."""
    refused = Counter(refusal_kind(outcome.refusal) for outcome in outcomes if outcome.refusal)
    lines = [f"refused schemas, {count}: {kind}" for kind, count in refused.most_common()]
    wrong = Counter(
        (problem["verdict"], outcome.subset.partition(",")[0], problem["reason"][:100])
        for outcome in outcomes
        for problem in outcome.problems
    )
    lines += [f"{verdict}, {count}: {reason} ({subset})" for (verdict, subset, reason), count in wrong.most_common()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=("official", "maskbench", "sample"))
    parser.add_argument("directory", type=Path, nargs="?", default=os.environ.get("SUITE"))
    parser.add_argument("--schemas", type=int, help="of MaskBench, so many at random")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of schemas")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    arguments = parser.parse_args()
    directory = SAMPLE if arguments.suite == "sample" else arguments.directory
    if directory is None or not Path(directory).is_dir():
        parser.error(f"{directory}: expected the directory of the suite, as an argument or in SUITE")
    if arguments.suite == "official":
        cases = list(official(Path(directory)))
    else:
        cases = list(maskbench(Path(directory), arguments.schemas, arguments.seed))
    stored = {}
    for mode, options in MODES.items():
        outcomes = []
        for case in cases:
            outcomes.append(outcome_of(case, options))
            print(f"\r{mode}: {len(outcomes)} of {len(cases)}", end="", file=sys.stderr, flush=True)
        stored[mode] = [vars(outcome) for outcome in outcomes]
        print(f"\n## {mode}\n\n{table(outcomes)}\n\n{reasons(outcomes)}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(stored), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Measure which JSON schemas compile, in which time, and whether the texts of a constraint are valid.

    python -m benchmarks.schemas                                        # our own sample: 30 schemas
    python -m benchmarks.schemas --data JSONSchemaBench --workers 2     # the data set of Hugging Face

Texts are drawn at random from each compiled constraint, and judged as answers are, formats included. A constraint that
does not keep a whole schema by itself names the parts (`checked`). A text that fails there is `retried`, as an answer
would be. A text that fails under any other constraint is `invalid`.
"""

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

import gesso
from benchmarks.arguments import add_model_options, model_options, parser_of, run
from benchmarks.random_text import random_text
from benchmarks.schema_files import Named, read_schemas
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.source import locate
from gesso.cli.terminal import print_json, print_styled
from gesso.constraints.constraint import Guides
from gesso.constraints.guide import Guide
from gesso.constraints.validate import UNREADABLE, schema_problem
from gesso.errors import InputError
from gesso.progress import Progress

if TYPE_CHECKING:
    from gesso.api import Gesso

SECONDS = 60  # per schema, for texts and their validation too
WIDTH = 110  # characters of the table
EXAMPLES = 3  # messages shown per subset
WRITTEN, NEW = 3, 256  # answers of a model per subset, and tokens of each
PROMPT = "Write a JSON value for this schema:\n"
KEPT_QUOTE = 30  # characters of a quoted name that stay in the kind of a refusal


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("schemas", __doc__)
    add_model_options(parser)
    parser.add_argument("--data", type=Path, help="directory of .json, .jsonl or .parquet files")
    parser.add_argument("--answers", type=int, default=10, help="random texts per schema")
    parser.add_argument("--limit", type=int, help="at most so many schemas of each subset")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    asked = parser.parse_args(arguments)
    model = None if asked.model is None else gesso.load(asked.model, **model_options(asked))
    with Progress() as progress:
        found = measure(
            asked.data,
            answers=asked.answers,
            workers=asked.workers,
            limit=asked.limit,
            model=model,
            progress=partial(progress.show, "schemas"),
        )
    print_json(found) if asked.json else print_styled(lambda console: render(found, console))


@dataclass
class Outcome:
    """What became of one schema."""

    subset: str
    name: str
    seconds: float = 0.0  # of compiling, as CPU time with that of child processes
    refusal: str | None = None
    texts: int = 0  # judged
    retried: int = 0
    invalid: list[str] = field(default_factory=list)  # a reason and a text each
    unjudged: str | None = None  # why the judge cannot read the schema
    checked: int = 0  # parts of the schema that the constraint leaves to validation


class _OutOfTime(Exception):
    pass


def measure(
    data: Path | None,
    *,
    answers: int = 10,
    workers: int = 1,
    limit: int | None = None,
    model: "Gesso | None" = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure the schemas below a directory, by subset; our own sample without one.

    `answers` texts are drawn per schema. `limit` takes so many schemas of each subset, chosen at random. With a model,
    it also writes an answer for a few schemas of each subset.
    """
    schemas = _drawn(read_schemas(data), limit)
    found = []
    for outcome in _outcomes(schemas, answers, workers):
        found.append(outcome)
        progress(len(found), len(schemas))
    return summary(found) | ({} if model is None else {"model": model_answers(model, schemas)})


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures by subset, and those of all schemas together."""
    subsets = sorted({outcome.subset for outcome in found})
    rows = {name: _row([outcome for outcome in found if outcome.subset == name]) for name in subsets}
    return {"subsets": rows, "all": _row(found)}


def _row(found: Sequence[Outcome]) -> dict[str, Any]:
    compiled = [outcome for outcome in found if outcome.refusal is None]
    seconds = sorted(outcome.seconds for outcome in found)
    refused = [outcome for outcome in found if outcome.refusal is not None]
    kinds = Counter(refusal_kind(outcome.refusal or "") for outcome in refused)
    examples = {refusal_kind(outcome.refusal or ""): outcome for outcome in reversed(refused)}
    return {
        "schemas": len(found), "compiled": len(compiled), "compiled_share": round(len(compiled) / len(found), 4),
        "seconds_median": round(median(seconds), 4),
        "seconds_p95": round(quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0], 4),
        "seconds_worst": round(seconds[-1], 4), "worst": max(found, key=lambda outcome: outcome.seconds).name,
        "exact": sum(not outcome.checked for outcome in compiled),
        "texts": sum(outcome.texts for outcome in found), "retried": sum(outcome.retried for outcome in found),
        "invalid": sum(len(outcome.invalid) for outcome in found),
        "invalid_examples": [
            {"schema": outcome.name, "text": text} for outcome in found for text in outcome.invalid[:1]
        ][:EXAMPLES],
        "unjudged": sum(outcome.unjudged is not None for outcome in compiled),
        "unjudged_examples": [
            {"schema": outcome.name, "reason": outcome.unjudged} for outcome in compiled if outcome.unjudged
        ][:EXAMPLES],
        "refusals": [
            {"kind": kind, "schemas": count, "schema": examples[kind].name, "message": examples[kind].refusal}
            for kind, count in kinds.most_common()
        ],
    }  # fmt: skip


def refusal_kind(message: str) -> str:
    """Return a message without what belongs to one schema: pointers, numbers and long quotations."""
    message = re.sub(r"#(?:/[^\s:]*)?", lambda found: found[0].rpartition("/")[2] or "#", message)
    message = re.sub(r"'[^']*'|\"[^\"]*\"", lambda found: found[0] if len(found[0]) < KEPT_QUOTE else "'…'", message)
    return re.sub(r"\d[\d,.]*", "N", message)[:140]


def render(found: dict[str, Any], console: Console) -> None:
    """Print the figures as a table, and the refusals and invalid texts below it."""
    table = Table(
        "subset", "schemas", "compiled", "exact", "median ms", "p95 ms", "worst ms", "texts", "retried", "invalid"
    )
    rows = [*found["subsets"].items(), ("all", found["all"])]
    for name, row in rows:
        times = [f"{1000 * row[f'seconds_{which}']:,.1f}" for which in ("median", "p95", "worst")]
        counts = [f"{row[name]:,}" for name in ("texts", "retried", "invalid")]
        share = f"{row['compiled_share']:.1%}"
        table.add_row(name, f"{row['schemas']:,}", share, f"{row['exact']:,}", *times, *counts)
    console.width = max(console.width, WIDTH)
    console.print(table)
    if (written := found.get("model")) is not None:
        console.print(
            f"model: {written['answers']} answers, {written['cut']} cut at {NEW} tokens, {written['failed']} failed, "
            f"{written['invalid']} invalid"
        )
    if found["all"]["unjudged"]:
        console.print(f"the validator cannot judge {found['all']['unjudged']} schemas that compiled:")
        for example in found["all"]["unjudged_examples"]:
            console.print(f"  {example['schema']}: {example['reason']}")
    for example in found["all"]["invalid_examples"]:
        console.print(f"invalid: {example['schema']}: {example['text']}")
    for refusal in found["all"]["refusals"]:
        console.print(f"refused, {refusal['schemas']}: {refusal['kind']} (as {refusal['schema']})")


def model_answers(g: "Gesso", schemas: Sequence[Named]) -> dict[str, Any]:
    """Generate one answer for a few schemas of each subset, and judge those that are complete."""
    counts, examples = Counter[str](), []
    for named in _drawn(list(schemas), WRITTEN):
        outcome = Outcome(named.subset, named.name)
        try:
            result = g.generate(PROMPT + json.dumps(named.schema), json_schema=named.schema, max_new_tokens=NEW, seed=1)
        except InputError:
            continue  # counted with the refusals
        except Exception as error:
            counts["failed"] += 1
            examples.append(f"{named.name}: {type(error).__name__}: {error}"[:300])
            continue
        counts["answers"] += 1
        if result.finish_reason == "length":
            counts["cut"] += 1
            continue
        _judge(outcome, named.schema, result.text)
        counts["invalid"] += outcome.retried + len(outcome.invalid)
        examples += outcome.invalid
    return {name: counts[name] for name in ("answers", "cut", "failed", "invalid")} | {"examples": examples[:EXAMPLES]}


# --- one schema -------------------------------------------------------------------------------------------------------


def _drawn(schemas: list[Named], limit: int | None) -> list[Named]:
    if limit is None:
        return schemas
    rng, subsets = random.Random(0), dict[str, list[Named]]()
    for named in schemas:
        subsets.setdefault(named.subset, []).append(named)
    return [named for one in subsets.values() for named in rng.sample(one, min(limit, len(one)))]


def _outcomes(schemas: Sequence[Named], answers: int, workers: int) -> Iterator[Outcome]:
    if workers == 1:
        for named in schemas:
            yield outcome_of(named, answers)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(outcome_of, schemas, [answers] * len(schemas))


def outcome_of(
    named: Named, answers: int, draw: Callable[[Guide, random.Random], str] = random_text, limit: int = SECONDS
) -> Outcome:
    """Compile one schema, draw texts and judge them, within a limit in seconds."""
    outcome = Outcome(named.subset, named.name)
    try:
        with _time_limit(limit):
            _fill(outcome, named, answers, draw)
    except _OutOfTime:
        outcome.refusal = f"not done after {limit} s; see its seconds for the part that compiling took"
    return outcome


def _fill(outcome: Outcome, named: Named, answers: int, draw: Callable[[Guide, random.Random], str]) -> None:
    compiler = guides()
    started = _cpu_seconds()
    try:
        guide = compiler.guide(json_schema=named.schema)
    except InputError as error:
        outcome.refusal = str(error)
        return
    finally:
        outcome.seconds = _cpu_seconds() - started
    assert guide is not None
    outcome.checked = len(guide.checked)
    rng = random.Random(named.name)
    for _ in range(answers):
        try:
            text = draw(guide, rng)
        except InputError as error:  # states are made on the way, within limits
            outcome.refusal = str(error)
            return
        _judge(outcome, named.schema, text)


def _judge(outcome: Outcome, schema: Any, text: str) -> None:
    problem = schema_problem(schema, text)
    if problem is not None and UNREADABLE in problem:
        outcome.unjudged = problem[:200]
        return
    outcome.texts += 1
    if problem is not None and outcome.checked:
        outcome.retried += 1
    elif problem is not None:
        outcome.invalid.append(f"{problem}: {text[:300]}")


@cache
def guides() -> Guides:
    """Return the constraints of the bundled model, whose vocabulary is small: tables of words are not measured here."""
    source = locate(None)
    found = Guides(Tokenizer.from_directory(source.directory), source.config.vocab_size, frozenset([1]))
    found.warm_up()
    return found


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of child processes that have ended."""
    return time.process_time() + sum(os.times()[2:4])


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise `_OutOfTime` in this thread, where the system has such a signal."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    run(main)

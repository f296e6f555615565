"""Check the examples with fresh values: names, numbers, dates and cities that are in no training row.

    python -m examples.rubric                       # the table; an hour on two cores
    python -m examples.rubric --fillings 4 --seeds 1 --shown 5
    python -m examples.rubric -m runs/mini-copy/model --processes 16

An answer is judged in code: the JSON or the arguments have the right values, the file parses and has the right names,
the puzzle is solved. The exit code is 1 if an example is right in less than 85 % of its fresh answers, all examples
together in less than 92 %, or the filling that is shown in less than 95 % of its seeds.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import gesso
from examples.rubric.templates import TEMPLATES, Values
from gesso.eval.answers import side_by_side

FILLINGS, SEEDS, SHOWN = 20, 5, 100
EACH, ALL, OF_SHOWN = 0.85, 0.92, 0.95


@dataclass(frozen=True)
class Sample:
    """One answer to be judged."""

    template: int
    filling: int | None  # None: the one that is shown
    seed: int

    @property
    def values(self) -> Values:
        template = TEMPLATES[self.template]
        return template.shown if self.filling is None else template.fresh(self.filling)


@dataclass(frozen=True)
class Judged:
    sample: Sample
    answer: str
    right: bool


def samples(fillings: int, seeds: int, shown: int, only: str = "") -> Iterator[Sample]:
    """Yield the samples of every template. One without values is asked with as many seeds instead."""
    for number, template in enumerate(TEMPLATES):
        if only not in template.name:
            continue
        for seed in range(shown):
            yield Sample(number, None, seed)
        for filling in range(fillings if template.kinds else 0):
            for seed in range(seeds):
                yield Sample(number, filling, seed)


def judge(wanted: Sequence[Sample], model: str, batch: int) -> list[Judged]:
    """Return the judged answers, in order."""
    torch.set_num_threads(1)  # the models are too small for more
    judged: dict[Sample, Judged] = {}
    for base in dict.fromkeys(TEMPLATES[sample.template].model for sample in wanted):
        of_model = [sample for sample in wanted if TEMPLATES[sample.template].model == base]
        g = gesso.load(model if base == "gesso-mini" else base)
        questions = [TEMPLATES[sample.template].ask(sample.values) for sample in of_model]
        plans = (question.answer(g, sample.seed) for question, sample in zip(questions, of_model, strict=True))
        for index, answer, _ in side_by_side(g, plans, batch):
            right = isinstance(answer, str) and questions[index].is_right(answer)
            judged[of_model[index]] = Judged(sample=of_model[index], answer=str(answer), right=right)
    return [judged[sample] for sample in wanted]


def run(wanted: Sequence[Sample], model: str, batch: int, processes: int) -> list[Judged]:
    judging = partial(judge, model=model, batch=batch)
    if processes == 1:
        return judging(wanted)
    # Every process gets samples of every template: some take longer than others.
    parts = [wanted[first::processes] for first in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        return [one for part in pool.map(judging, parts) for one in part]


def share(judged: Sequence[Judged]) -> float:
    return sum(one.right for one in judged) / len(judged) if judged else 1.0


def table(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield the lines of the table: each template, and all of them."""
    yield "| Example | Fresh values | The values shown |"
    yield "|---|---|---|"
    for number, template in enumerate(TEMPLATES):
        fresh, shown = of_template(judged, number)
        if fresh or shown:
            yield f"| {template.name} | {_cell(fresh)} | {_cell(shown)} |"
    fresh, shown = ([one for one in judged if (one.sample.filling is None) is is_shown] for is_shown in (False, True))
    yield f"| all | {_cell(fresh)} | {_cell(shown)} |"


def of_template(judged: Sequence[Judged], number: int) -> tuple[list[Judged], list[Judged]]:
    """Return the answers for fresh values, and for those that are shown."""
    all_of_it = [one for one in judged if one.sample.template == number]
    fresh = [one for one in all_of_it if one.sample.filling is not None]
    return fresh, [one for one in all_of_it if one.sample.filling is None]


def misses(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield what falls short."""
    for number, template in enumerate(TEMPLATES):
        fresh, shown = of_template(judged, number)
        if share(fresh) < EACH:
            yield f"{template.name}: {share(fresh):.0%} of the fresh answers are right, below {EACH:.0%}"
        if share(shown) < OF_SHOWN:
            yield f"{template.name}: {share(shown):.0%} of the seeds are right as shown, below {OF_SHOWN:.0%}"
    fresh = [one for one in judged if one.sample.filling is not None]
    if share(fresh) < ALL:
        yield f"all: {share(fresh):.0%} of the fresh answers are right, below {ALL:.0%}"


def _cell(judged: Sequence[Judged]) -> str:
    return f"{sum(one.right for one in judged)} of {len(judged)}" if judged else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", "-m", default="gesso-mini", help="in place of gesso-mini")
    parser.add_argument("--fillings", type=int, default=FILLINGS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="per filling")
    parser.add_argument("--shown", type=int, default=SHOWN, help="seeds of the filling that is shown")
    parser.add_argument("--only", default="", help="a part of the names of the examples to check")
    parser.add_argument("--batch", type=int, default=16, help="answers that are written at once")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--wrong", type=Path, help="write the wrong answers to this file")
    asked = parser.parse_args(arguments)
    wanted = list(samples(asked.fillings, asked.seeds, asked.shown, asked.only))
    judged = run(wanted, asked.model, asked.batch, asked.processes)
    print("\n".join(table(judged)))
    if asked.wrong:
        lines = (_wrong(one) for one in judged if not one.right)
        asked.wrong.write_text("".join(lines), encoding="utf-8")
    short = list(misses(judged))
    print("\n".join(short), file=sys.stderr)
    return 1 if short else 0


def _wrong(one: Judged) -> str:
    template = TEMPLATES[one.sample.template]
    return f"{template.name}, seed {one.sample.seed}, {dict(one.sample.values)}: {one.answer!r}\n"


if __name__ == "__main__":
    sys.exit(main())

"""Score simple ways to fill the hidden stretches, on the items of `gesso eval`.

    python -m examples.proteins.baselines --task Proteins --count 500

- most common: always the most common residue of the training sequences
- frequencies: residues drawn with their frequencies in the training sequences
- visible: the most common residue of the visible part
- k-mer: a Markov chain over four residues, conditioned on both sides; the most probable residue at each position
- copy: the residues of the training sequences that align best with the two sides, k-mer where there are none; if the
  prompt shows a relative, those of the relative

Intervals are those of independent families. With `--run FILE`, an evaluation that `gesso eval --json` printed stands
below, and its differences to each baseline.
"""

import argparse
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.proteins import task as tasks
from examples.proteins.relatives import Packed, alignment_scores, shared_words
from examples.proteins.residues import RESIDUES, encode
from examples.proteins.sequences import Protein, read_proteins
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.estimate import Estimate, estimate_score
from gesso.eval.evaluate import fingerprint
from gesso.eval.paired import check_same_items, read_runs, student

ORDER = 3  # residues that predict the next
WORD = (0, 1, 2, 3, 4)  # offsets of the residues that a shared word compares
PRIOR = 20.0  # weight of the shorter context, in occurrences
Chain = npt.NDArray[np.float64]  # probability of the last index after the ORDER before it
Fill = Callable[[Item], str]


def fills(train: Sequence[str], items: Sequence[Item]) -> dict[str, Fill]:
    """Return each baseline as a function from an item to an answer."""
    counts = Counter("".join(train))
    common = max(RESIDUES, key=counts.__getitem__)
    weights = [counts[residue] for residue in RESIDUES]

    def frequencies(item: Item) -> str:
        return "".join(random.Random(item.name).choices(RESIDUES, weights, k=len(item.expected)))

    def visible(item: Item) -> str:
        seen = Counter(item.meta["before"] + item.meta["after"])
        return max(RESIDUES, key=lambda residue: (seen[residue], counts[residue])) * len(item.expected)

    chain = fit_chain(train)
    copies = copy_all([item for item in items if not item.meta["relative"]], train)
    for item in items:
        if item.meta["relative"]:
            copies |= copy_all([item], [item.meta["relative"]])

    def copy(item: Item) -> str:
        between = likeliest(chain, item.meta["before"], item.meta["after"], len(item.expected))
        return "".join(a if a in RESIDUES else b for a, b in zip(copies[item.name], between, strict=True))

    return {
        "most common": lambda item: common * len(item.expected),
        "frequencies": frequencies,
        "visible": visible,
        "k-mer": lambda item: likeliest(chain, item.meta["before"], item.meta["after"], len(item.expected)),
        "copy": copy,
    }


def fit_chain(train: Sequence[str]) -> Chain:
    """Return the probability of a residue after the ORDER residues before it, smoothed by shorter contexts."""
    size = len(RESIDUES)
    codes = encode(" ".join(train)).astype(np.int64)
    probability = np.full(size, 1 / size)
    for order in range(ORDER + 1):
        windows = np.lib.stride_tricks.sliding_window_view(codes, order + 1)
        inside = windows[(windows < size).all(axis=1)]
        counts = np.bincount(inside @ size ** np.arange(order, -1, -1), minlength=size ** (order + 1))
        counted = counts.reshape((size,) * (order + 1))
        probability = (counted + PRIOR * probability) / (counted.sum(axis=-1, keepdims=True) + PRIOR)
    return probability


def likeliest(chain: Chain, before: str, after: str, length: int) -> str:
    """Return the most probable residue at each hidden position, given both sides."""
    return "".join(RESIDUES[i] for i in marginals(chain, before, after, length).argmax(axis=1))


def marginals(chain: Chain, before: str, after: str, length: int) -> Chain:
    """Return the probability of each residue at each hidden position, given both sides."""
    size = len(RESIDUES)
    known = encode(after[:ORDER])
    state = np.zeros((size,) * ORDER)
    state[tuple(encode(before[-ORDER:]))] = 1
    forward = []
    for _ in range(length):
        state = np.einsum("abc,abcd->bcd", state, chain)
        forward.append(state)
    behind = np.ones((size,) * ORDER)  # probability of the visible residues that follow, after each context
    for code in reversed(known):
        only = np.zeros(size)
        only[code] = 1
        behind = np.einsum("abcd,d,bcd->abc", chain, only, behind, optimize=True)
    found = []
    for state in reversed(forward):
        joint = (state * behind).sum(axis=(0, 1))
        found.append(joint / joint.sum())
        behind = np.einsum("abcd,bcd->abc", chain, behind)
    return np.stack(found[::-1])


def copy_all(items: Sequence[Item], train: Sequence[str]) -> dict[str, str]:
    """Return, per item, the training residues at the hidden positions of the best alignments of both visible sides.

    Each half is copied next to the side that it adjoins, unless that side aligns less than half as well as the other. A
    character that is no residue stands for a position that the alignment does not have.
    """
    windows = [item.meta["before"] + "-" * len(item.expected) + item.meta["after"] for item in items]
    ours, theirs = Packed.of(windows), Packed.of(train)
    begins = np.searchsorted(ours.owner, np.arange(len(items)))  # places of the first residues
    holes = begins + [len(item.meta["before"]) for item in items]
    best = [(0, 0)] * (2 * len(items))  # per side: score, and how far the training place is from the place here
    for at_a, at_b in shared_words(ours.words(WORD), theirs.words(WORD)):
        found, owner = alignment_scores(ours, at_a, theirs, at_b), ours.owner[at_a]
        side = 2 * owner + (at_a > holes[owner])
        last = {int(side[i]): int(i) for i in np.argsort(found)}  # the highest of a side comes last
        for number, i in last.items():
            best[number] = max(best[number], (int(found[i]), int(at_b[i] - at_a[i])))
    copies = {}
    for index, item in enumerate(items):
        left, right = best[2 * index : 2 * index + 2]
        if 2 * min(left, right)[0] < max(left, right)[0]:
            left = right = max(left, right)
        texts = [_copied(theirs, int(holes[index]) + shift, len(item.expected)) for _, shift in (left, right)]
        half = len(item.expected) // 2
        copies[item.name] = texts[0][:half] + texts[1][half:] if left[0] else "-" * len(item.expected)
    return copies


def _copied(packed: Packed, start: int, length: int) -> str:
    alphabet = np.frombuffer((RESIDUES + "-").encode(), np.uint8)
    return alphabet[packed.codes[max(start, 0) : start + length]].tobytes().decode().ljust(length, "-")


def scores(task: tasks.Proteins, items: Sequence[Item], fill: Fill) -> Mapping[str, list[float]]:
    rows = [task.score(item, fill(item)) for item in items]
    return {name: [row[name] for row in rows] for name in task.scores}


def families_of(items: Sequence[Item], proteins: Sequence[Protein]) -> list[str]:
    family = {protein.name: protein.family for protein in proteins}
    return [family[item.name.partition(":")[0]] for item in items]


def estimate(values: Sequence[float], families: Sequence[str]) -> Estimate:
    """Return the mean with its 95 % interval, where items of one family may resemble each other.

    It is not narrower than that of independent items.
    """
    mean = math.fsum(values) / len(values)
    sums: dict[str, float] = defaultdict(float)
    for value, family in zip(values, families, strict=True):
        sums[family] += value - mean
    count = len(sums)
    if count < 3:
        return Estimate(mean, None, None)
    within, between = (math.fsum(one * one for one in ones) for ones in ((v - mean for v in values), sums.values()))
    error = math.sqrt(count / (count - 1) * max(within, between)) / len(values)
    reach = student(count - 1) * error
    return Estimate(mean, mean - reach, mean + reach)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("Proteins", "Known", "Motifs", "Relatives"), default="Proteins")
    parser.add_argument("--data", type=Path, default=tasks.FOLDER, help="the folder of examples.proteins.data")
    parser.add_argument("--split", default="test")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, action="append", default=[], metavar="FILE", help="may be repeated")
    asked = parser.parse_args(arguments)
    try:
        task = getattr(tasks, asked.task)(data=(asked.data,))
        items = list(task.items(asked.split, asked.count, asked.seed))
        proteins = read_proteins(asked.data)
        runs = {path.stem: read_runs(path)[0] for path in asked.run}
        for run in runs.values():
            check_same_items(run.fingerprint, fingerprint(items))
    except InputError as error:
        sys.exit(str(error))
    families = families_of(items, proteins)
    by_family = partial(estimate, families=families)

    def show(name: str, found: Mapping[str, Sequence[float]], of: Callable[..., Estimate], sign: str = "") -> None:
        shown = (f"{score} {of(values).shown(100, sign)}" for score, values in found.items())
        print(f"{name:12}", "  ".join(shown), flush=True)

    print(f"{len(items)} items of {len(set(families))} families; shares in %")
    train = [protein.sequence for protein in proteins if protein.split == "train"]
    baselines = {name: scores(task, items, fill) for name, fill in fills(train, items).items()}
    for name, found in (baselines | {name: run.scores for name, run in runs.items()}).items():
        show(name, found, estimate_score if len(set(families)) == len(families) else by_family)
    for name, run in runs.items():
        for other, found in baselines.items():
            changes = {score: differences(values, run.scores[score]) for score, values in found.items()}
            show(f"{name} - {other}", changes, by_family, "+")


def differences(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


if __name__ == "__main__":
    main()

"""Measure how probable the hidden residues are, in nats per residue: the lower, the better.

    python -m examples.proteins.likelihood -m runs/proteins/model --task Proteins --count 500

Each way gives a probability to every residue at every hidden position from what is visible, so none sees another hidden
residue: the model's first pass over an empty canvas, the k-mer chain of `baselines`, and the frequencies in training.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import gesso
from examples.proteins import task as tasks
from examples.proteins.baselines import estimate, families_of, fit_chain, marginals
from examples.proteins.residues import RESIDUES, encode
from examples.proteins.sequences import read_proteins
from gesso.eval import Item


def by_canvas(g: gesso.Gesso, item: Item) -> float:
    """Return the negative log-probability of the hidden residues in one pass."""
    assert isinstance(item.prompt, str)
    other = RESIDUES[0] if item.expected[0] != RESIDUES[0] else RESIDUES[1]  # `decide` wants a second choice
    return -g.decide(item.prompt, [item.expected, other]).scores[item.expected]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="runs/proteins/model")
    parser.add_argument("--task", choices=("Proteins", "Known", "Relatives"), default="Proteins")
    parser.add_argument("--data", type=Path, default=tasks.FOLDER, help="the folder of examples.proteins.data")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu or cuda; by default the first GPU, or else the CPU")
    asked = parser.parse_args(arguments)
    try:
        items = list(getattr(tasks, asked.task)(data=(asked.data,)).items("test", asked.count, asked.seed))
        proteins = read_proteins(asked.data)
        g = gesso.load(asked.model, device=asked.device)
    except gesso.GessoError as error:
        sys.exit(str(error))
    train = [protein.sequence for protein in proteins if protein.split == "train"]
    counts, chain = Counter("".join(train)), fit_chain(train)
    total = sum(counts.values())
    found: dict[str, list[float]] = {"frequencies": [], "k-mer": [], "canvas": []}
    for item in items:
        hidden, length = item.expected, len(item.expected)
        probability = marginals(chain, item.meta["before"], item.meta["after"], length)
        found["frequencies"].append(sum(math.log(total / counts[residue]) for residue in hidden) / length)
        found["k-mer"].append(-float(np.log(probability[np.arange(length), encode(hidden)]).mean()))
        found["canvas"].append(by_canvas(g, item) / length)
    for name, values in found.items():
        value = estimate(values, families_of(items, proteins))
        print(f"{name:12} {value.mean:.3f} ({value.low:.3f} to {value.high:.3f}) nats per residue")


if __name__ == "__main__":
    main()

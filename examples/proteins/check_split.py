"""Search the training sequences for relatives of the test sequences, by another method than the one that divided them.

    python -m examples.proteins.check_split
    python -m examples.proteins.check_split --mmseqs mmseqs

Each test sequence is aligned, with gaps, with the 20 training sequences that share most words of four residues with it.
With --mmseqs, the program MMseqs2 searches instead. Exit status 1: a test sequence has a near relative.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from examples.proteins.align import align
from examples.proteins.relatives import Packed, shared_words
from examples.proteins.sequences import Protein, read_proteins
from examples.proteins.task import FOLDER
from gesso.errors import InputError

WORD = (0, 1, 2, 3)  # offsets of the residues that a shared word compares
CANDIDATES = 20
EXPECTED = 1e-3  # alignments that chance gives more often are not counted
COLUMNS = 40  # shorter alignments are not counted
LEVELS = (0.3, 0.4, 0.5, 0.6, 0.8)
NEAR = 0.5  # identity of a near relative
Hit = tuple[int, float, int]  # number of the test sequence, identity, columns


def own_hits(test: Sequence[str], train: Sequence[str]) -> Iterator[Hit]:
    database = sum(map(len, train))
    for number, candidates in enumerate(nearest(test, train)):
        found = align(test[number], [train[i] for i in candidates]) if candidates else []
        for one in found:
            if one.expected(len(test[number]), database) < EXPECTED:
                yield number, one.identity, one.columns


def nearest(queries: Sequence[str], targets: Sequence[str]) -> Iterator[list[int]]:
    """Yield, per query, the targets that share most words with it, for their length."""
    theirs = Packed.of(targets)
    words = theirs.words(WORD)
    # Long sequences share words by chance: about in proportion to their length.
    scale = np.sqrt([len(target) for target in targets])
    for query in queries:
        counts = np.zeros(len(targets), np.int64)
        for _, places in shared_words(Packed.of([query]).words(WORD), words):
            counts += np.bincount(theirs.owner[places], minlength=len(targets))
        order = np.argsort(-counts / scale, kind="stable")[:CANDIDATES]
        yield [int(target) for target in order if counts[target]]


def mmseqs_hits(program: str, test: Sequence[str], train: Sequence[str]) -> Iterator[Hit]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, sequences in (("test", test), ("train", train)):
            entries = "".join(f">{number}\n{sequence}\n" for number, sequence in enumerate(sequences))
            (folder / file).write_text(entries, encoding="ascii")
        form = ("--format-output", "query,fident,alnlen", "-e", str(EXPECTED), "-s", "7", "-v", "1")
        command = (program, "easy-search", "test", "train", "hits", "scratch", *form)
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        except OSError as error:
            raise InputError(f"cannot run {program}: {error}; install MMseqs2, or leave out --mmseqs") from None
        if done.returncode:
            raise InputError(f"{program} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        for line in (folder / "hits").read_text(encoding="ascii").splitlines():
            query, identity, columns = line.split("\t")
            yield int(query), float(identity), int(columns)


def report(label: str, proteins: Sequence[Protein], hits: Iterator[Hit]) -> int:
    """Print how many sequences have a relative at each identity, and return how many have a near one."""
    best = [0.0] * len(proteins)
    for number, identity, columns in hits:
        if columns >= COLUMNS:
            best[number] = max(best[number], identity)
    levels = ", ".join(f"{sum(value >= level for value in best)} at {level:.0%}" for level in LEVELS)
    print(f"{label}: {len(best)} sequences; with a training relative of at least this identity: {levels}", flush=True)
    return sum(value >= NEAR for value in best)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER, help="the folder of examples.proteins.data")
    parser.add_argument("--mmseqs", help="the program MMseqs2, to search with it")
    parser.add_argument("--known", type=int, default=100, help="members of training families to search for, to compare")
    asked = parser.parse_args(arguments)
    try:
        proteins = read_proteins(asked.data)
        train = [protein.sequence for protein in proteins if protein.split == "train"]
        new = [protein for protein in proteins if protein.split == "test" and not protein.known]
        known = [protein for protein in proteins if protein.split == "test" and protein.known][: asked.known]

        def search(group: Sequence[Protein]) -> Iterator[Hit]:
            texts = [protein.sequence for protein in group]
            return mmseqs_hits(asked.mmseqs, texts, train) if asked.mmseqs else own_hits(texts, train)

        near = report("test", new, search(new))
        report("members of training families", known, search(known))
    except InputError as error:
        sys.exit(str(error))
    if near:
        sys.exit(f"{near} test sequences have a relative of at least {NEAR:.0%} identity in training")


if __name__ == "__main__":
    main()

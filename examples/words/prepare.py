"""Write what training reads: python -m examples.words.prepare

data/words/train.jsonl    one row per training sequence and round, with random letters hidden
data/words/model/         shape and tokenizer of the model; the tokenizer has one token per character
"""

import json
import random
import sys
from collections.abc import Iterator

from examples.letters import write_shape
from examples.words.domain import FILE, hide, prompt, sequences
from gesso.errors import InputError

ROUNDS = 4  # rows per sequence
SHARES = (0.2, 0.9)  # of the letters hidden: more than in the test, so that a row teaches more letters


def rows() -> Iterator[dict[str, str]]:
    """Yield every training sequence ROUNDS times, in another order and with other letters hidden each time."""
    draw, train = random.Random(0), sequences("train")
    for _ in range(ROUNDS):
        for sequence in draw.sample(train, len(train)):
            yield {"prompt": prompt(hide(sequence, draw.uniform(*SHARES), draw)), "completion": sequence}


def main() -> None:
    try:
        lines = [json.dumps(row) + "\n" for row in rows()]
        write_shape(FILE.parent / "model")
    except InputError as error:
        sys.exit(str(error))
    FILE.with_name("train.jsonl").write_text("".join(lines), encoding="utf-8")
    counts = ", ".join(f"{len(sequences(split)):,} {split}" for split in ("train", "validation", "test"))
    print(f"{counts}; {len(lines):,} rows")


if __name__ == "__main__":
    main()

"""Write what training reads: python -m examples.verbs.prepare

data/verbs/train.jsonl    one row per training sequence and round, with random letters hidden
data/verbs/model/         shape and tokenizer of the model; the tokenizer has one token per character
"""

import json
import random
import sys
from collections.abc import Iterator

from examples.letters import write_shape
from examples.verbs.domain import FILE, LENGTH, hide, prompt, sequences
from gesso.errors import InputError
from gesso.eval.task import SPLITS

ROUNDS = 12  # rows per sequence
SHARES = (0.2, 0.9)  # of the letters hidden; the test hides 60 %


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
    counts = {split: len(sequences(split)) for split in SPLITS}
    given = len(set(FILE.read_text(encoding="utf-8").splitlines()))
    print(f"{sum(counts.values()):,} of {given:,} different lines fit LETTER, FORMS and WIDTH")
    print(", ".join(f"{count:,} {split}" for split, count in counts.items()) + f"; {len(lines):,} rows")
    print(f"the recipe needs canvas_lengths = [{LENGTH + 3}], and max_length = {2 * LENGTH + 4} or more")


if __name__ == "__main__":
    main()

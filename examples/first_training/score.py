"""Count the answers of a model that equal those of the rows:

python -m examples.first_training.score ROWS --adapter runs/NAME/adapter
python -m examples.first_training.score ROWS --adapter runs/NAME/adapter --paraphrases FILE

The questions are asked with the default settings. Paraphrases ask the rows' questions in other words; next to the model
stands the answer of the row whose question is nearest by TF-IDF, which is what a search would give.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gesso


class Row(NamedTuple):
    question: str
    answer: str


def read(path: Path) -> list[Row]:
    messages = [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
    return [Row(asked["content"], answered["content"]) for asked, answered in messages]


def count_exact(rows: Sequence[Row], adapter: Path | None) -> int:
    """Return the number of rows whose question the model answers exactly as the row does. Seeds are row numbers."""
    g = gesso.load(adapter=adapter, max_batch=16)
    questions = [[{"role": "user", "content": row.question}] for row in rows]
    results = g.run([g.chat_request(chat, seed=number) for number, chat in enumerate(questions)])
    return sum(result.text.strip() == row.answer for result, row in zip(results, rows, strict=True))


def count_nearest(rows: Sequence[Row], asked: Sequence[Row]) -> int:
    """Return the number of questions whose nearest row by TF-IDF has the expected answer."""
    documents = [Counter(words(row.question)) for row in rows]
    frequency = Counter(word for document in documents for word in document)
    weights = {word: math.log((1 + len(rows)) / (1 + count)) + 1 for word, count in frequency.items()}
    vectors = [vector(document, weights) for document in documents]

    def nearest(question: str) -> Row:
        query = vector(Counter(words(question)), weights)
        scores = [sum(value * row.get(word, 0.0) for word, value in query.items()) for row in vectors]
        return rows[scores.index(max(scores))]

    return sum(nearest(row.question).answer == row.answer for row in asked)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def vector(counts: Counter[str], weights: dict[str, float]) -> dict[str, float]:
    values = {word: count * weights[word] for word, count in counts.items() if word in weights}
    norm = math.sqrt(sum(value**2 for value in values.values())) or 1.0
    return {word: value / norm for word, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--adapter", type=Path, help="Default: the bundled model without one.")
    parser.add_argument("--paraphrases", type=Path)
    options = parser.parse_args()
    rows = read(options.rows)
    asked = read(options.paraphrases) if options.paraphrases else rows
    print(f"{count_exact(asked, options.adapter)} of {len(asked)} answers are exact")
    if options.paraphrases:
        print(f"{count_nearest(rows, asked)} of {len(asked)} by the nearest question (TF-IDF)")


if __name__ == "__main__":
    main()

"""Measure how gesso-mini answers questions that it was not trained on.

    python -m examples.mini.off_topic --seeds 3

asks every question with every seed, and prints the share of answers that are blank, have no punctuation at the end, or
contain the syntax of a tool call; the answers with such a flaw; and some samples. The exit status is 1 if any answer
has a flaw.
"""

import argparse
import random
import re
import sys
from collections.abc import Sequence

import gesso
from examples.mini.questions import QUESTIONS
from gesso.chat.answer import Answer
from gesso.engine.events import Result

CALL = re.compile(r"\w\{|call:|[{}]|<\|?\w+\|?>")


def flaws(answer: Answer) -> list[str]:
    """Return what is wrong with the form of an answer."""
    text = answer.text.strip()
    found = {
        "blank": not text,
        "no end punctuation": bool(text) and text[-1] not in ".!?",
        "call syntax": bool(CALL.search(text)),
    }
    return [name for name, is_found in found.items() if is_found]


def ask(g: gesso.Gesso, questions: Sequence[str], seeds: int, batch: int) -> list[tuple[str, Result]]:
    """Return every question with its answer, once per seed."""
    asked = [(question, seed) for question in questions for seed in range(seeds)]
    requests = [g.chat_request([{"role": "user", "content": question}], seed=seed) for question, seed in asked]
    results = [result for at in range(0, len(asked), batch) for result in g.run(requests[at : at + batch])]
    return [(question, result) for (question, _), result in zip(asked, results, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask gesso-mini questions that it was not trained on.")
    parser.add_argument("--model", default=None, help="checkpoint; gesso-mini unless given")
    parser.add_argument("--seeds", type=int, default=3, help="answers per question")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="number of questions")
    parser.add_argument("--samples", type=int, default=10, help="answers to print")
    parser.add_argument("--batch", type=int, default=16, help="answers that are written at once")
    given = parser.parse_args()
    g = gesso.load(given.model, max_batch=given.batch)
    results = ask(g, QUESTIONS[: given.questions], given.seeds, given.batch)
    answers = [(question, g.read_answer(result)) for question, result in results]
    sys.exit(report(answers, given.samples) > 0)


def report(answers: Sequence[tuple[str, Answer]], samples: int) -> int:
    """Print the shares of flaws, the answers with a flaw and some others. Return how many have a flaw."""
    judged = [(question, answer.text, flaws(answer)) for question, answer in answers]
    flawed = [one for one in judged if one[2]]
    questions = {question for question, _ in answers}
    print(f"{len(judged)} answers to {len(questions)} questions, {len(flawed)} with a flaw")
    for name in ("blank", "no end punctuation", "call syntax"):
        print(f"  {name:20}{100 * sum(name in found for *_, found in judged) / len(judged):5.1f} %")
    for question, text, found in flawed + random.Random(0).sample(judged, min(samples, len(judged))):
        print(f"{question}\n    {text!r} {', '.join(found)}")
    return len(flawed)


if __name__ == "__main__":
    main()

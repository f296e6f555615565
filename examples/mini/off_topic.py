"""Measure how gesso-mini answers questions that it was not trained on.

    python -m examples.mini.off_topic --seeds 3

asks every question with every seed, and prints the share of answers that are blank, have no punctuation at the end, or
contain the syntax of a tool call, and some samples.
"""

import argparse
import random
import re
from collections.abc import Sequence

import gesso
from gesso.chat.answer import Answer
from gesso.engine.events import Result

QUESTIONS = (
    """
Why is the sky blue?|How do birds find their way home?|What makes bread rise?|Why do cats purr?
How does a bicycle stay upright?|What is the tallest mountain?|Who invented the telephone?|Why is the sea salty?
How far away is the moon?|What do bees eat in winter?|Can fish sleep?|Why do leaves change colour in autumn?
What is the speed of light?|How do vaccines work?|Why do we yawn?|What causes thunder?
How old is the universe?|What is photosynthesis?|Who painted the Mona Lisa?|How many bones does a shark have?
What is inflation?|Why did the Roman Empire fall?|How do I boil an egg?|What should I cook tonight?
Recommend a book about the sea.|Tell me a story about a dragon.|Write a haiku about rain.|Sing me a song.
What is the meaning of life?|Do you dream?|Are you happy today?|What is your favourite colour?
Explain gravity to a child.|What is a black hole?|How do magnets work?|Why is ice slippery?
Translate "good morning" to French.|How do you say thank you in Japanese?|What is the plural of octopus?
Is a tomato a fruit?|What is the difference between a crocodile and an alligator?|Why do onions make me cry?
How do I remove a coffee stain?|What is a good name for a dog?|How do I tie a tie?|How long should I sleep?
Is coffee bad for me?|What helps against a headache?|How do I learn to swim?|What is yoga?
Who was the first person in space?|When did the Second World War end?|Where does chocolate come from?
What language do they speak in Brazil?|How many people live in India?|What is the largest desert?
Which river is the longest?|What time is it in Tokyo?|Will it rain tomorrow?|What day is it today?
How do computers work?|What is the internet?|Who owns the moon?|What is a prime number?
What is 17 times 23?|Is zero an even number?|What is the square root of two?|Prove that there are endless primes.
What is democracy?|How does a bill become a law?|Why do we pay taxes?|What is a stock market?
Give me advice about my career.|How do I write a good letter?|How do I make friends?|My boss is unfair.
I feel sad.|I am bored.|I love you.|You are wrong.
Tell me something interesting.|Surprise me.|Continue: once upon a time|Finish this sentence: the early bird
What do you think about art?|Who is your maker?|Which music do you like?|What is jazz?
How is glass made?|How do planes fly?|What is steel made of?|How does a battery work?
Why is the grass green?|Where do butterflies go at night?|How do trees drink water?|Do plants feel pain?
What is a good joke about cheese?|Why did the chicken cross the road?|Knock knock.|What rhymes with orange?
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
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
    parser.add_argument("--seeds", type=int, default=3, help="answers per question")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="number of questions")
    parser.add_argument("--samples", type=int, default=10, help="answers to print")
    parser.add_argument("--batch", type=int, default=16, help="answers that are written at once")
    given = parser.parse_args()
    g = gesso.load(max_batch=given.batch)
    judged = [
        (question, answer.text, flaws(answer))
        for question, result in ask(g, QUESTIONS[: given.questions], given.seeds, given.batch)
        for answer in [g.read_answer(result)]
    ]
    print(f"{len(judged)} answers to {given.questions} questions")
    for name in ("blank", "no end punctuation", "call syntax"):
        print(f"  {name:20}{100 * sum(name in found for *_, found in judged) / len(judged):5.1f} %")
    for question, text, found in random.Random(0).sample(judged, min(given.samples, len(judged))):
        print(f"{question}\n    {text!r} {', '.join(found)}")


if __name__ == "__main__":
    main()

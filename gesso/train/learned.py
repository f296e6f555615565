"""How many of its rows a trained model answers exactly, for rows that it should know by heart."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gesso.chat.tokenizer import Tokenizer
from gesso.model.transformer import DiffusionGemma
from gesso.train.data import Example
from gesso.train.held_out import Answer, prompt_of, question

TRIED = 40  # rows at most: an answer takes as long as a training step


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The rows that were tried, and those of all rows that no model can learn: their question has several answers."""

    exact: int
    tried: int
    ambiguous: int
    example: str = ""  # a question with several answers

    @property
    def share(self) -> float:
        return self.exact / self.tried


def try_rows(model: DiffusionGemma, examples: Sequence[Example], tokenizer: Tokenizer, answer: Answer) -> Learned:
    """Ask the questions of some rows, evenly spaced, and compare the answers with those of the rows."""
    count = min(len(examples), TRIED)
    chosen = [examples[number * len(examples) // count] for number in range(count)]
    answers = answer(model, [prompt_of(example) for example in chosen])
    pairs = zip(answers, chosen, strict=True)
    exact = sum(text.strip() == expected(example, tokenizer) for text, example in pairs)
    by_prompt: dict[tuple[int, ...], list[Example]] = defaultdict(list)
    for example in examples:
        by_prompt[example.tokens[: example.spans[-1][0]]].append(example)
    several = {
        prompt: rows for prompt, rows in by_prompt.items() if len({expected(row, tokenizer) for row in rows}) > 1
    }
    ambiguous = sum(map(len, several.values()))
    most = max(several, key=lambda prompt: len(several[prompt]), default=())
    return Learned(exact=exact, tried=count, ambiguous=ambiguous, example=question(most, tokenizer) if most else "")


def has_prompt(example: Example) -> bool:
    """Return whether a row asks something: a plain text has only the token that begins it before its response."""
    return example.spans[-1][0] > 1


def expected(example: Example, tokenizer: Tokenizer) -> str:
    start, end = example.spans[-1]
    return tokenizer.decode(example.tokens[start:end]).strip()

"""Your own questions and answers: `gesso eval --data FILE`, one JSON object per line."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.chat.messages import check_messages
from gesso.checks import shown
from gesso.errors import InputError
from gesso.eval.python_infill import parses
from gesso.eval.task import LOG_PROBABILITY, Item, check_draw
from gesso.files import parse_json, read_text

Prompt = str | tuple[Mapping[str, Any], ...]
Answers = tuple[str, ...]


def _exact(output: str, answers: Answers) -> bool:
    return output.strip() in [answer.strip() for answer in answers]


def _contains(output: str, answers: Answers) -> bool:
    return any(answer in output for answer in answers)


def _json(output: str, answers: Answers) -> bool:
    try:
        value = parse_json(output)
    except ValueError:
        return False
    return any(_equal(value, parse_json(answer)) for answer in answers)


def _python(output: str, _: Answers) -> bool:
    return bool(output.strip()) and parses(output)


SCORES: Mapping[str, Callable[[str, Answers], bool]] = {
    "exact": _exact,
    "contains": _contains,
    "json": _json,
    "python": _python,
}
LIKELIHOOD = "likelihood"  # generates no text
KINDS = (*SCORES, LIKELIHOOD)


def _equal(a: Any, b: Any) -> bool:
    """Return whether two values are the same JSON: 1 equals 1.0, but not true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a == b and isinstance(a, bool) == isinstance(b, bool)


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The rows of JSON Lines files, in their order, scored in one way of KINDS."""

    data: tuple[Path, ...]
    kind: str = "exact"
    needs_answers: bool = True  # False: rows without one are prompts that the caller does not score

    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown score {self.kind!r}; expected {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        return ", ".join(path.name for path in self.data)

    @property
    def scores(self) -> tuple[str, ...]:
        return (LOG_PROBABILITY if self.kind == LIKELIHOOD else self.kind,)

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        if split != "test":
            raise InputError(f"your own data has one split, test; got {split}")
        return islice((item for path in self.data for item in self._read(path)), count)

    def score(self, item: Item, output: str) -> dict[str, float]:
        return {self.kind: float(SCORES[self.kind](output, item.meta["answers"]))}

    def _read(self, path: Path) -> Iterator[Item]:
        for number, line in enumerate(read_text(path).removeprefix("\ufeff").split("\n"), 1):
            if not line.strip():
                continue
            try:
                yield self._item(parse_json(line), f"{path.name}:{number}")
            except ValueError as error:  # InputError is one
                reason = error if isinstance(error, InputError) else f"not JSON: {error}"
                raise InputError(f"{path}, line {number}: {reason}") from None

    def _item(self, row: Any, place: str) -> Item:
        if not isinstance(row, dict):
            raise InputError(f"expected a JSON object with prompt and answer, got {shown(row)}")
        answers = self._answers(row.get("answer"))
        return Item(
            name=str(row.get("id", place)),
            prompt=_prompt(row),
            expected=_expected(answers),
            meta={"answers": answers},
        )

    def _answers(self, given: Any) -> Answers:
        if given is None and (self.kind == "python" or not self.needs_answers):
            return ()
        if given is None:
            raise InputError(f"answer is missing; --score {self.kind} compares with it")
        answers = tuple(given) if isinstance(given, list) else (given,)
        if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
            raise InputError(
                f"answer: expected a text that is not empty, or a list of such texts, got {shown(given)}; write JSON "
                "as a text"
            )
        for answer in answers if self.kind == "json" else ():
            try:
                parse_json(answer)
            except ValueError as error:
                raise InputError(f"answer: {shown(answer)} is not JSON: {error}") from None
        return answers


def has_answers(paths: Iterable[Path]) -> bool:
    """Return whether the rows of files have answers. Reject files in which only some rows do."""
    items = OwnData(data=tuple(paths), needs_answers=False).items("test", sys.maxsize, seed=0)
    answered = [bool(item.meta["answers"]) for item in items]  # one per row
    if any(answered) and not all(answered):
        raise InputError(f"{sum(answered)} of {len(answered)} rows have an answer; give one to every row, or to none")
    return any(answered)


def _expected(answers: Answers) -> str:
    """Return the answers as one text for people."""
    if not answers:
        return ""
    return answers[0] if len(answers) == 1 else json.dumps(answers)


def _prompt(row: Mapping[str, Any]) -> Prompt:
    if ("prompt" in row) == ("messages" in row):
        raise InputError(f"expected either prompt or messages; the row has {', '.join(row) or 'no key'}")
    if "messages" in row:
        return tuple(check_messages(row["messages"]))
    prompt = row["prompt"]
    if not isinstance(prompt, str) or not prompt:
        raise InputError(f"prompt: expected a text that is not empty, got {shown(prompt)}")
    return prompt

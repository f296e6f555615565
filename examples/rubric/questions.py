"""What an example asks a model, and whether an answer is right."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gesso.api import Gesso
from gesso.engine.decision import choice_tokens
from gesso.engine.plan import Plan, compare, generate
from gesso.eval.python_infill import parses
from gesso.eval.sudoku.grid import solves
from gesso.eval.sudoku.task import Sudoku, spaced


class Question(Protocol):
    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        """Return the plan for an answer, so that the engine writes several side by side."""
        ...

    def is_right(self, answer: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Json:
    """A request that is answered with JSON for a schema."""

    request: str
    schema: Mapping[str, Any]
    value: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        options = {**self.options, "json_schema": dict(self.schema), "seed": seed}
        (result,) = yield from generate([g.chat_request(_user(self.request), **options)])
        return g.read_answer(result).text

    def is_right(self, answer: str) -> bool:
        return _loaded(answer) == self.value


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request that is answered with a call of one of the tools."""

    request: str
    tools: Sequence[Mapping[str, Any]]
    name: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        tools = [dict(tool) for tool in self.tools]
        options = {**self.options, "tools": tools, "seed": seed}
        (result,) = yield from generate([g.chat_request(_user(self.request), **options)])
        answer = g.read_answer(result, tools)
        calls = [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
        return json.dumps(calls[0] if len(calls) == 1 else [answer.text, calls])

    def is_right(self, answer: str) -> bool:
        return _loaded(answer) == {"name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A message whose answer begins with a text."""

    request: str
    beginning: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        (result,) = yield from generate([g.chat_request(_user(self.request), **{**self.options, "seed": seed})])
        return g.read_answer(result).text

    def is_right(self, answer: str) -> bool:
        return answer.startswith(self.beginning)


@dataclass(frozen=True, kw_only=True)
class Hole:
    """A hole in a file. The file has to parse, and the hole has to contain the same statements as `missing`."""

    before: str
    after: str
    missing: str

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        filled = yield from g.infill_plan(self.before, self.after, seed=seed)
        return filled.text

    def is_right(self, answer: str) -> bool:
        written = self.before + answer + self.after
        return parses(written) and _same_code(written, self.before + self.missing + self.after)


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A span of a file that is rewritten to fit the text on both sides."""

    before: str
    wrong: str
    after: str
    right: str

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        text = self.before + self.wrong + self.after
        span = len(self.before), len(self.before) + len(self.wrong)
        edited = yield from g.edit_plan(text, span, seed=seed)
        return edited.replacement

    def is_right(self, answer: str) -> bool:
        return _same_code(self.before + answer + self.after, self.before + self.right + self.after)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """A text to continue. The lines of the answer have to begin with those of `beginning`, apart from indentation."""

    prompt: str
    beginning: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        (result,) = yield from generate([g.request(self.prompt, **{**self.options, "seed": seed})])
        return result.text

    def is_right(self, answer: str) -> bool:
        return answer.split()[: len(self.beginning.split())] == self.beginning.split()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A text or a message, and the one of several continuations that is likeliest. It has no seed."""

    prompt: str | Sequence[Mapping[str, str]]
    choices: Sequence[str]
    right: str

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        prompt = self.prompt if isinstance(self.prompt, str) else [dict(message) for message in self.prompt]
        scored = yield from compare(g.decision_request(prompt, choice_tokens(g.tokenizer, self.choices)))
        return self.choices[scored.log_likelihoods.index(max(scored.log_likelihoods))]

    def is_right(self, answer: str) -> bool:
        return answer == self.right


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """A Sudoku as 81 characters."""

    puzzle: str

    def answer(self, g: Gesso, seed: int) -> Plan[str]:
        (result,) = yield from generate([g.request(spaced(self.puzzle), **{**Sudoku.options, "seed": seed})])
        return "".join(result.text.split())

    def is_right(self, answer: str) -> bool:
        return solves(answer, self.puzzle)


def _user(request: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": request}]


def _loaded(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _same_code(written: str, wanted: str) -> bool:
    return parses(written) and ast.dump(ast.parse(written)) == ast.dump(ast.parse(wanted))

"""What a finished answer is checked by, as data that can travel to another process.

An automaton enforces most of a JSON schema, but not all of it, so an answer is checked before it is returned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gesso.chat.answer import Decode, read
from gesso.constraints.validate import calls_problem, schema_problem


@dataclass(frozen=True, kw_only=True)
class AnswerCheck:
    """The JSON schema of a text, or else the schemas of the arguments of tool calls."""

    json_schema: Mapping[str, Any] | bool | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # schemas by the name of a tool
    required: bool = False  # the answer must have a call
    chat: bool = False  # thoughts and calls are no part of the text

    def problem(self, tokens: Sequence[int], text: str, decode: Decode) -> str | None:
        """Return what is wrong with a finished answer; None if nothing is."""
        if not self.chat:
            assert self.json_schema is not None, "calls are those of a chat"
            return schema_problem(self.json_schema, text)
        answer = read(tokens, text, decode, self.parameters)
        if self.json_schema is not None:
            return schema_problem(self.json_schema, answer.text)
        return calls_problem(self.parameters, answer.tool_calls, required=self.required)


# Of a request in an engine process: the server has the schemas, and asks a child, which may take long.
CHECKED_BY_SERVER = AnswerCheck()

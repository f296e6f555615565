"""Requests of the soak test: a small one of every kind, and attacks in small doses."""

import json
from collections.abc import Sequence
from typing import Any

from tools.load import attacks
from tools.load.wire import CHAT, COMPLETIONS, EDITS, RESPONSES, Answer, Body

QUICK = {"preset": "fast", "canvas_length": 32, "steps": 6}
MINUTES = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
TIMER = {"name": "set_timer", "description": "Set a timer.", "parameters": MINUTES}
TOOL = {"type": "function", "function": TIMER}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
USER = [{"role": "user", "content": "Set a timer for ten minutes."}]
HOLE = {"prompt": "def mean(x):\n    ", "suffix": "\n    return total / len(x)\n"}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": USER, "max_tokens": 32}),
    "chat, streamed": (CHAT, {"messages": USER, "max_tokens": 32, "stream": True}),
    "completion": (COMPLETIONS, {"prompt": "def fib(n):", "max_tokens": 32}),
    "completion, streamed": (COMPLETIONS, {"prompt": "def fib(n):", "max_tokens": 64, "stream": True}),
    "completion, two choices": (COMPLETIONS, {"prompt": "def fib(n):", "max_tokens": 16, "n": 2}),
    "logprobs": (COMPLETIONS, {"prompt": "def fib(n):", "max_tokens": 16, "logprobs": 2}),
    "suffix": (COMPLETIONS, {**HOLE, "max_tokens": 16}),
    "suffix, best of 4": (COMPLETIONS, {**HOLE, "max_tokens": 16, "best_of": 4}),
    "edit": (EDITS, {"input": "The sky is green.", "span": [11, 16], "instruction": "Correct it."}),
    "response": (RESPONSES, {"input": "Who are you?", "max_output_tokens": 32}),
    "JSON schema": (CHAT, {"messages": USER, "max_tokens": 64, "response_format": FORMAT}),
    "regex": (COMPLETIONS, {"prompt": "A number: ", "max_tokens": 16, "regex": "[0-9]{2,6}"}),
    "choice": (COMPLETIONS, {"prompt": "Is it so? ", "max_tokens": 16, "choice": ["yes", "no", "perhaps"]}),
    "tool call": (CHAT, {"messages": USER, "max_tokens": 64, "tools": [TOOL], "tool_choice": "required"}),
    "tokenize": ("/tokenize", {"prompt": "To be, or not to be"}),
    "tokenize, messages": ("/tokenize", {"messages": USER, "tools": [TOOL]}),
    "detokenize": ("/detokenize", {"tokens": [300, 301, 302, 303]}),
}


def body(kind: str, seed: int) -> tuple[str, dict[str, Any]]:
    path, fields = KINDS[kind]
    return (path, fields) if path.endswith("tokenize") else (path, {**fields, "seed": seed, "diffusion": QUICK})


def content(kind: str, answer: Answer) -> Any:
    """Return the part of an answer that the same seed must reproduce.

    Raise ValueError for an incomplete answer, and RuntimeError for an error event of a stream.
    """
    if KINDS[kind][1].get("stream"):
        return _streamed(answer.content)
    found = answer.json
    match found:
        case {"tokens": tokens}:
            return tokens
        case {"prompt": text}:
            return text
        case {"output": output}:
            return [part.get("text") for item in output for part in item.get("content", ())]
        case {"choices": choices}:
            return [_choice(choice) for choice in choices]
    raise ValueError(f"unknown form of answer: {str(found)[:100]}")


def _choice(choice: dict[str, Any]) -> Any:
    if "message" not in choice:
        return [choice["text"], choice["finish_reason"]]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [message.get("content"), calls, choice["finish_reason"]]


def _streamed(received: bytes) -> str:
    lines = [line.removeprefix("data: ") for line in received.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    for event in events:
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
    if not lines or lines[-1] != "[DONE]":
        raise ValueError("the stream ended without [DONE] and without an error")
    deltas = [choice.get("delta", {}).get("content") or choice.get("text") for e in events for choice in e["choices"]]
    return "".join(delta or "" for delta in deltas)


def doses() -> Sequence[tuple[str, Body]]:
    """Return attacks that are small enough for a server without defences to survive."""
    tools = [{"name": f"f{number}"} for number in range(1000)]
    huge = attacks.completion(max_tokens=4000, **attacks.ENDLESS | {"canvas_length": 4000})
    return [
        (CHAT, {"messages": USER, "tools": tools, "tool_choice": "required"}),
        ("/tokenize", {"messages": USER, "tools": tools}),
        (COMPLETIONS, attacks.many_wrong_prompts(10_000)),
        (COMPLETIONS, attacks.completion(t_max=1e308, t_min=1e308)),
        (COMPLETIONS, attacks.completion(t_max=1e-40, t_min=1e-40, more={"logprobs": 2})),
        (COMPLETIONS, attacks.completion(t_max=1e-46, t_min=1e-46, more={"regex": "[a-z]{3}"})),
        (COMPLETIONS, huge),
        (COMPLETIONS, attacks.completion(more={"regex": attacks.slow_regex(7)})),
        (COMPLETIONS, attacks.completion(more={"grammar": 'root ::= "a"' + "*" * 5000})),
        (COMPLETIONS, attacks.completion("x = 1\n" * 100, more={"suffix": "\nx\n", "best_of": 8}, steps=2)),
        (EDITS, {"input": "The sky is green.", "span": [11, 16], "instruction": "and so on " * 20_000}),
        (COMPLETIONS, b'{"prompt": [' + b"1" * 5000 + b"]}"),
        *attacks.nested(500),
    ]

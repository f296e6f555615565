"""Small datasets for tests: rows, files and a tokenizer."""

import json
from pathlib import Path
from typing import Any

from gesso.chat.tokenizer import Tokenizer
from gesso.train.data import Dataset
from gesso.train.recipe import DataSettings
from tests.tiny import tokenizer_json

EOS = 1
USER = {"role": "user", "content": "Why?"}
REPLY = {"role": "assistant", "content": "So."}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "blue"}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {}}}]


def make_tokenizer(directory: Path, template: str | None = None) -> Tokenizer:
    """Return the tiny tokenizer with one merge, so that the tokens depend on where a text is cut."""
    directory.mkdir(exist_ok=True)
    raw = json.loads(tokenizer_json())
    vocabulary = raw["model"]["vocab"]
    raw["model"]["vocab"] = {piece: i for piece, i in vocabulary.items() if i not in (110, 111)} | {
        "\n": 110,
        "\n\n": 111,
    }
    raw["model"]["merges"] = [["\n", "\n"]]
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return Tokenizer.from_directory(directory)


def write(path: Path, *rows: Any) -> str:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def dataset(tokenizer: Tokenizer, *files: str, **settings: Any) -> Dataset:
    return Dataset(DataSettings(files=files, **{"max_length": 4096, "on_bad_row": "skip", **settings}), tokenizer, EOS)


def thought(text: str, answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"<|channel>thought\n{text}<channel|>{answer}"}

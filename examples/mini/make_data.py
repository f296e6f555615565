"""Make the training data of gesso-mini: Python, structured output, and a checkpoint directory without weights.

    python -m examples.mini.make_data --out data/mini --cache data/wheels     (or make mini-data)

    python.jsonl.xz            source under permissive licences
    python-heldout.jsonl.xz    files of the same packages, for evaluation
    part/python.jsonl.xz       a part of the same source, for mini-chat.toml
    structured.jsonl.xz        requests, and their answers as JSON or tool calls
    chat.jsonl.xz              conversations: other topics, tool results and small talk
    twelfth/python.jsonl.xz    a smaller part of the source, for mini-copy.toml
    copying.jsonl.xz           values of any length, and their copies in JSON or tool calls
    again.jsonl.xz             new requests and conversations, and holes in small classes
    wordings/*.jsonl.xz        requests in more wordings, and new rows of the other kinds, for mini-wordings.toml
    requests/*.jsonl.xz        more of them, for mini-requests.toml
    model/                     the shape (config.json beside this file), the tokenizer and the chat template

Existing parts are kept; delete one to make it again. Wheels are downloaded once, into the cache. The data is the same
on every machine, except the source of the standard library, which is that of the running Python.
"""

import argparse
import json
import lzma
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gesso
from examples.mini.vocabulary import learn
from examples.python_infill import corpus
from examples.python_infill.small_classes import training_rows as class_rows
from examples.rows import write_rows
from examples.structured.chat import training_rows as chat_rows
from examples.structured.copying import training_rows as copying_rows
from examples.structured.rows import training_rows
from examples.structured.varied import training_rows as varied_rows
from gesso.errors import InputError

HERE = Path(__file__).parent
PACKAGES = HERE.parent / "python_infill" / "packages.toml"
TEMPLATE = Path(gesso.__file__).parent / "chat" / "chat_template.jinja"
ROWS = 150_000
PART, TWELFTH = 6, 12  # one in six packages, and one in twelve
# The tokenizer is trained on a sample: all of the standard library, one in 6 other documents, and one in 8 rows.
EVERY_DOCUMENT, EVERY_ROW = 6, 8

Progress = Callable[[str], None]


def make(
    out: Path, cache: Path, *, packages: Path = PACKAGES, shape: Path = HERE, rows: int = ROWS, say: Progress = print
) -> None:
    """Make all missing parts. `shape` is the directory of config.json and generation_config.json."""
    out.mkdir(parents=True, exist_ok=True)
    names = ("python", "python-heldout", "part/python", "structured", "chat", "twelfth/python", "copying", "again")
    python, held_out, part, structured, chat, twelfth, copying, again = (out / f"{name}.jsonl.xz" for name in names)
    if is_missing((python, held_out), say):
        summary = corpus.build(out, packages, cache, progress=say)
        say(f"{python}: {summary.files.total():,} documents, {summary.bytes.total() / 1e6:.1f} MB of text")
    if is_missing((structured,), say):
        say(f"{structured}: writing {rows:,} rows")
        write_rows(training_rows(rows, seed=0), structured)
    if is_missing((part,), say):
        corpus.build(part.parent, packages, cache, progress=say, every=PART)
    if is_missing((chat,), say):
        say(f"{chat}: writing {rows // 2:,} rows")
        write_rows(chat_rows(rows // 2, seed=0), chat)
    if is_missing((twelfth,), say):
        corpus.build(twelfth.parent, packages, cache, progress=say, every=TWELFTH)
    if is_missing((copying,), say):
        write_rows(copying_rows(rows * 4 // 5, seed=0), copying)
    if is_missing((again,), say):
        write_rows(rows_again(rows), again)
    for directory, parts in later_parts(rows).items():
        (out / directory).mkdir(exist_ok=True)
        for name, new_rows in parts.items():
            path = out / directory / f"{name}.jsonl.xz"
            if is_missing((path,), say):
                write_rows(new_rows, path)
    if is_missing((out / "model",), say):
        say(f"{out / 'model'}: training the tokenizer")
        make_model(out / "model", shape, texts(python, structured))


def rows_again(rows: int) -> Iterator[dict[str, Any]]:
    """Yield rows that no earlier stage has: a third of `rows` are requests, and some less conversations and classes."""
    yield from training_rows(rows // 3, seed=1)
    yield from chat_rows(rows * 4 // 15, seed=1)
    yield from class_rows(rows // 6, seed=0)


def later_parts(rows: int) -> dict[str, dict[str, Iterator[dict[str, Any]]]]:
    """Return the rows of the last two stages by directory and file."""
    return {
        "wordings": {
            "varied": varied_rows(rows, seed=0),
            "copying": copying_rows(rows * 8 // 15, seed=1),
            "chat": chat_rows(rows * 4 // 15, seed=2),
            "classes": class_rows(rows // 5, seed=1),
        },
        "requests": {
            "varied": varied_rows(rows * 4 // 3, seed=1),
            "copying": copying_rows(rows // 3, seed=2),
            "chat": chat_rows(rows // 6, seed=3),
            "classes": class_rows(rows * 2 // 15, seed=2),
        },
    }


def is_missing(parts: tuple[Path, ...], say: Progress) -> bool:
    if all(part.exists() for part in parts):
        say(f"{', '.join(map(str, parts))}: already exists")
        return False
    return True


def texts(python: Path, structured: Path) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on."""
    others = 0
    for document in read(python):
        if not document["source"].startswith("python=="):
            others += 1
            if others % EVERY_DOCUMENT != 1:
                continue
        yield document["text"]
    for number, row in enumerate(read(structured)):
        if number % EVERY_ROW == 0:
            yield from (message["content"] for message in row["messages"])


def read(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def make_model(target: Path, shape: Path, sample: Iterator[str]) -> None:
    """Write a checkpoint directory without weights. It appears when it is complete."""
    config = json.loads((shape / "config.json").read_text(encoding="utf-8"))
    tokenizer = learn(sample, config["text_config"]["vocab_size"])
    unfinished = target.with_name(f"{target.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    (unfinished / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    for file in (shape / "config.json", shape / "generation_config.json", TEMPLATE):
        shutil.copyfile(file, unfinished / file.name)
    unfinished.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the training data of gesso-mini.")
    parser.add_argument("--out", type=Path, default=Path("data/mini"))
    parser.add_argument("--cache", type=Path, default=Path("data/wheels"), help="directory of downloaded wheels")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="list of wheels")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="rows of structured output; half as many of conversations"
    )
    try:
        make(**vars(parser.parse_args()))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""Make what the model in the box is trained on: Python, structured output, and a checkpoint that lacks its weights.

    python recipes/mini/make_data.py --out data/mini --cache data/wheels     (or make mini-data)

    python.jsonl.xz            source under licences that let anyone learn from it
    python-heldout.jsonl.xz    files of the same packages, to be asked about
    structured.jsonl.xz        requests, and the JSON or the call of a tool that answers them
    model/                     the shape (config.json beside this file), the tokenizer and the chat template

A part that is there is left alone; delete it to have it made anew. Wheels are downloaded once, into the cache. All but
the source of the standard library, which is that of the Python this runs on, is the same on every machine.
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
from gesso.errors import InputError
from gesso.eval import Structured, python_corpus
from gesso.eval.run import write_rows
from gesso.train.vocabulary import learn

HERE = Path(__file__).parent
PACKAGES = HERE.parent / "packages.toml"
TEMPLATE = Path(gesso.__file__).parent / "chat" / "chat_template.jinja"
ROWS = 150_000
# A sample is enough to count pairs of letters in: one in so many documents that are not the standard library's, and
# rows. The standard library is the plainest Python there is, so all of it counts.
EVERY_DOCUMENT, EVERY_ROW = 6, 8

Say = Callable[[str], None]


def make(
    out: Path, cache: Path, *, packages: Path = PACKAGES, shape: Path = HERE, rows: int = ROWS, say: Say = print
) -> None:
    """All parts that are not there yet; `shape` is where config.json and generation_config.json are."""
    out.mkdir(parents=True, exist_ok=True)
    python, held_out, structured = (out / f"{name}.jsonl.xz" for name in ("python", "python-heldout", "structured"))
    if is_missing((python, held_out), say):
        summary = python_corpus.build(out, packages, cache, progress=say)
        say(f"{python}: {summary.files.total():,} documents, {summary.bytes.total() / 1e6:.1f} MB of text")
    if is_missing((structured,), say):
        say(f"{structured}: {rows:,} rows to write")
        write_rows(Structured().training_rows(rows, seed=0), rows, structured)
    if is_missing((out / "model",), say):
        say(f"{out / 'model'}: the tokenizer is learnt")
        make_model(out / "model", shape, texts(python, structured))


def is_missing(parts: tuple[Path, ...], say: Say) -> bool:
    if all(part.exists() for part in parts):
        say(f"{', '.join(map(str, parts))}: there already")
        return False
    return True


def texts(python: Path, structured: Path) -> Iterator[str]:
    """What the tokenizer is learnt from."""
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


def make_model(target: Path, shape: Path, learnt_from: Iterator[str]) -> None:
    config = json.loads((shape / "config.json").read_text(encoding="utf-8"))
    tokenizer = learn(learnt_from, config["text_config"]["vocab_size"])
    unfinished = target.with_name(f"{target.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    (unfinished / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    for file in (shape / "config.json", shape / "generation_config.json", TEMPLATE):
        shutil.copyfile(file, unfinished / file.name)
    unfinished.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of the model in the box.")
    parser.add_argument("--out", type=Path, default=Path("data/mini"))
    parser.add_argument("--cache", type=Path, default=Path("data/wheels"), help="where downloaded wheels are kept")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="another list than recipes/packages.toml")
    parser.add_argument("--rows", type=int, default=ROWS, help="of structured output")
    try:
        make(**vars(parser.parse_args()))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

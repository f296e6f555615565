"""Repair a Markdown or JSON file of up to 40 lines.

    python -m examples.documents.repair broken.md -m runs/documents/model
    python -m examples.documents.repair broken.json -m runs/documents/model --write tokens --patch

Prints the repaired text, or with --patch the changes. The file itself is not changed.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gesso
from examples.documents import patch
from examples.documents.corpus import MOST_LINES
from examples.documents.task import Documents, question
from gesso.errors import GessoError, InputError

KIND_OF = {".md": "markdown", ".markdown": "markdown", ".json": "json"}


@dataclass(frozen=True)
class Repair:
    text: str
    patch: str
    drafts: tuple[str, ...]  # the patch after every denoising step


def repair(g: gesso.Gesso, kind: str, text: str, **options: Any) -> Repair:
    """Return the repaired text and the drafts of its patch. Options are those of `Gesso.generate`."""
    drafts = []
    for event in g.stream(question(kind, text), **{**Documents.options, **options}):
        if isinstance(event, gesso.Draft):
            drafts.append(event.text)
        if isinstance(event, gesso.Done):
            return Repair(patch.apply(event.text, text), event.text, tuple(drafts))
    raise RuntimeError("the stream ended without a result")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-m", "--model", default="runs/documents/model")
    parser.add_argument(
        "--write",
        choices=("canvas", "tokens", "verified"),
        default="canvas",
        help="how to write the patch, for comparison",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patch", action="store_true", help="print the patch")
    asked = parser.parse_args(arguments)
    try:
        kind = KIND_OF.get(asked.file.suffix)
        if kind is None:
            raise InputError(f"{asked.file}: the name must end in {', '.join(KIND_OF)}")
        text = asked.file.read_text(encoding="utf-8").rstrip("\n")
        if text.count("\n") >= MOST_LINES:
            raise InputError(
                f"{asked.file}: at most {MOST_LINES} lines; the model was trained on excerpts of that length"
            )
        repaired = repair(gesso.load(asked.model), kind, text, seed=asked.seed, write=asked.write)
    except (GessoError, OSError, UnicodeDecodeError) as error:
        sys.exit(str(error))
    print(repaired.patch if asked.patch else repaired.text)


if __name__ == "__main__":
    main()

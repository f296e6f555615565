"""Read JSON schemas from a directory, in the layouts in which JSONSchemaBench is published.

A subset is a directory of `.json` files with a schema each, or `.jsonl` and `.parquet` files whose rows have the schema
as text in the column `json_schema`, such as `Github_easy/test-00000-of-00001.parquet` and
`data/Github_easy-00000-of-00001.parquet`.
"""

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gesso.errors import InputError

SUFFIXES = (".json", ".jsonl", ".parquet")
COLUMN = "json_schema"
SAMPLE = Path(__file__).with_name("schemas.json")  # our own schemas, by subset and name
PART = re.compile(r"-\d+-of-\d+$")
SPLITS = {"train", "val", "test"}


@dataclass(frozen=True, slots=True)
class Named:
    """A schema with its place."""

    subset: str
    name: str
    schema: Any


def read_schemas(data: Path | None) -> list[Named]:
    """Return all schemas below a directory, or those of one file; our own sample if none is given."""
    if data is None:
        sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
        return [Named(subset, name, schema) for subset, of in sample.items() for name, schema in of.items()]
    if not data.exists():
        raise InputError(f"--data {data}: there is no such file or directory")
    root = data if data.is_dir() else data.parent
    paths = sorted(path for path in data.rglob("*") if path.suffix in SUFFIXES) if data.is_dir() else [data]
    found = [named for path in paths for named in _of_file(path, root)]
    if not found:
        raise InputError(f"--data {data}: expected files that end in {', '.join(SUFFIXES)}")
    return found


def _of_file(path: Path, root: Path) -> Iterator[Named]:
    subset = _subset(path, root)
    if path.suffix == ".json":
        yield Named(subset, path.stem, _parsed(path.read_text(encoding="utf-8-sig"), path))
        return
    for number, row in enumerate(_rows(path), start=1):
        source = row.get(COLUMN) if isinstance(row, dict) else None
        if source is None:
            raise InputError(f"{path}: row {number} has no {COLUMN!r}; expected the schema there")
        schema = _parsed(source, path) if isinstance(source, str) else source
        yield Named(subset, str(row.get("unique_id", f"{path.stem}:{number}")), schema)


def _subset(path: Path, root: Path) -> str:
    """Return the directory of a file, or the name of a file that holds a whole subset."""
    stem = PART.sub("", path.stem)
    if path.suffix != ".json" and stem not in SPLITS:
        return stem
    return path.parent.name if path.parent != root else root.resolve().name


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise InputError(f"{path}: reading .parquet needs pyarrow: pip install pyarrow") from None
        yield from parquet.read_table(path).to_pylist()
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield _parsed(line, path)


def _parsed(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None

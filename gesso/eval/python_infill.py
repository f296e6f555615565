"""Python infill: restore a missing line of a source file from the code before and after it.

The prompt is `<|fim_prefix|>` before `<|fim_suffix|>` after `<|fim_middle|>`. The completion is the line with its
indentation, without its line break. A tokenizer may have the markers as special tokens.
"""

import ast
import itertools
import os
import random
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.chat.tokenizer import FILL
from gesso.errors import InputError
from gesso.eval.task import Item, check_draw, split_of

PREFIX, SUFFIX, MIDDLE = FILL
# Directories to skip, and prefixes of the files that a Python build writes about its machine.
SKIPPED = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")
MACHINE = ("_sysconfigdata", "config-")


def prompt(before: str, after: str) -> str:
    return f"{PREFIX}{before}{SUFFIX}{after}{MIDDLE}"


def sides(infill_prompt: str) -> tuple[str, str]:
    """Return the text before and after the hole of such a prompt."""
    before, after = infill_prompt.removeprefix(PREFIX).removesuffix(MIDDLE).split(SUFFIX)
    return before, after


def parses(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes in strings
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def source_files(data: tuple[Path, ...]) -> dict[str, Path]:
    """Return Python files by the name that decides their split: the path inside the given directory, or the file name.

    The split depends on the name and not on the content, so a file of the standard library keeps its split across
    Python versions.
    """
    files: dict[str, Path] = {}
    for root in data:
        if root.is_file():
            files.setdefault(root.name, root)
            continue
        if not root.is_dir():
            raise InputError(f"no such file or directory: {root}")
        for path in sorted(_python_files(root)):
            files.setdefault(path.relative_to(root).as_posix(), path)
    if not files:
        raise InputError(f"no Python files in {', '.join(map(str, data))}")
    return files


def _python_files(root: Path) -> Iterator[Path]:
    """Yield the Python files below a directory, without tests and files that depend on the machine."""
    for folder, inner, names in os.walk(root):
        # Change the list in place so that os.walk does not enter these directories; site-packages may be very large.
        inner[:] = [name for name in inner if name not in SKIPPED and not name.startswith(MACHINE)]
        for name in names:
            if name.endswith(".py") and not name.startswith(MACHINE):
                yield Path(folder, name)


def read_source(path: Path) -> str | None:
    """Return the text of a file, or None if it does not parse or contains the markers."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    return text if parses(text) and not any(marker in text for marker in FILL) else None


def maskable(source: str) -> list[int]:
    """Return the indices of code lines: at least 3 characters, no comments, no docstrings or multi-line strings.

    Inside a docstring any words parse and only one wording is exact, so neither score would mean anything.
    """
    prose: set[int] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno - 1, node.end_lineno or node.lineno))
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))):
            end = node.end_lineno or node.lineno
            prose.update(range(node.lineno - 1, end) if end > node.lineno else ())
    lines = [line.strip() for line in source.split("\n")]
    return [i for i, line in enumerate(lines) if len(line) >= 3 and not line.startswith("#") and i not in prose]


def edit_similarity(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Return 1 minus the Levenshtein distance of two texts or lists divided by the longer length."""
    if not a and not b:
        return 1.0
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return 1 - previous[-1] / max(len(a), len(b))


@dataclass(frozen=True, kw_only=True)
class PythonInfill:
    """Lines of the running Python's standard library, or of the files and directories in `data`."""

    data: tuple[Path, ...] = ()
    context: int = 700  # characters of code on each side, whole lines only: about 220 tokens of gesso-mini

    name: ClassVar[str] = "python_infill"
    scores: ClassVar[tuple[str, ...]] = ("exact", "parses", "edit_similarity")
    # A line needs a short canvas only, and ends at the next line break.
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 64, "stop": "\n"})

    def __post_init__(self) -> None:
        if self.context < 1:
            raise InputError(f"context must be at least 1 character, got {self.context}")

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        """Return one line of every file in random order, then another of every file, and so on, without repetition."""
        check_draw(split, count)
        files = source_files(self.data or (Path(sysconfig.get_path("stdlib")),))
        names = sorted(name for name in files if split_of(name) == split)
        random.Random(f"infill {split} {seed}").shuffle(names)
        return self._draw(names, files, split, count, seed)

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `exact` (ignoring surrounding white space), `parses` (the whole file, with a non-empty line) and
        `edit_similarity`."""
        line = output.strip()
        expected = item.expected.strip()
        return {
            "exact": float(line == expected),
            "parses": float(bool(line) and parses(item.meta["before"] + output + item.meta["after"])),
            "edit_similarity": edit_similarity(line, expected),
        }

    def hole(self, item: Item) -> tuple[str, str]:
        assert isinstance(item.prompt, str)
        return sides(item.prompt)

    def _draw(self, names: list[str], files: Mapping[str, Path], split: str, count: int, seed: int) -> Iterator[Item]:
        sources: dict[str, str] = {}  # text to name: copies of a file under other names count once
        lines: dict[str, list[int]] = {}
        for name in names:
            source = read_source(files[name])
            if source is not None and source not in sources:
                candidates = maskable(source)
                if candidates:
                    sources[source] = name
                    lines[name] = random.Random(f"infill {name} {seed}").sample(candidates, len(candidates))
            if len(lines) == count:
                break
        drawn = 0
        for turn in itertools.count():
            if all(turn >= len(of_file) for of_file in lines.values()):
                raise InputError(f"the {split} split of these files has {drawn} lines, but {count} were requested")
            for source, name in sources.items():
                if turn < len(lines[name]):
                    yield self.mask(name, source, lines[name][turn])
                    drawn += 1
                if drawn == count:
                    return

    def mask(self, name: str, source: str, line: int) -> Item:
        """Return the item for one line of a file, counted from 0."""
        lines = source.split("\n")
        before = "".join(text + "\n" for text in lines[:line])
        after = "".join("\n" + text for text in lines[line + 1 :])
        near = len(before) - len(before[-self.context :])
        if near:  # begin at a line break
            near = before.find("\n", near - 1) + 1
        far = len(after) if len(after) <= self.context else max(after.rfind("\n", 0, self.context + 1), 0)
        return Item(
            name=f"{name}:{line + 1}",
            prompt=prompt(before[near:], after[:far]),
            expected=lines[line],
            meta={"before": before, "after": after},
        )

"""The Python corpus: verified licences, no evaluation data, no duplicates, no unsuitable files."""

import hashlib
import json
import lzma
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from examples.python_infill import corpus as python_corpus
from examples.python_infill.corpus import LONGEST, build, documents, parts, strip_header, unwanted
from examples.python_infill.wheels import Package, complaint
from gesso import InputError
from gesso.eval.python_infill import parses
from gesso.eval.task import split_of

MIT = "License-Expression: MIT"


def code(seed: str, functions: int = 6) -> str:
    """Source that no other seed gives."""
    bodies = (f"def {seed}_{i}(value):\n    return value.{seed}(first={i}, of='{seed}')\n" for i in range(functions))
    return f'"""About {seed}."""\n\n' + "\n\n".join(bodies)


def wheel(directory: Path, files: dict[str, str], metadata: str = MIT, name: str = "paint") -> Package:
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.4\nName: {name}\n{metadata}\n\n")
        for member, text in files.items():
            archive.writestr(member, text)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Package(name=name, version="1.0", license="MIT", sha256=sha256)


def names(split: str, count: int) -> list[str]:
    found = (f"paint/m{i}.py" for i in range(1000))
    return [name for name in found if (split_of(f"paint/{name}") == "train") == (split == "train")][:count]


@pytest.fixture
def library(tmp_path, monkeypatch) -> dict[str, str]:
    """A standard library of one file to learn from and one to be asked about."""
    files = {split: next(f"s{i}.py" for i in range(99) if split_of(f"s{i}.py") == split) for split in ("train", "test")}
    (tmp_path / "stdlib").mkdir()
    for split, name in files.items():
        (tmp_path / "stdlib" / name).write_text(code(f"library_{split}"))
    # The standard library has thousands of files.
    monkeypatch.setattr(python_corpus.sysconfig, "get_path", lambda _: str(tmp_path / "stdlib"))
    return files


def built(tmp_path: Path, *packages: Package, every: int = 1) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Texts by the end of their source: learnt, held out; and the drops."""
    rows = [", ".join(f'{key} = "{value}"' for key, value in vars(package).items()) for package in packages]
    (tmp_path / "list.toml").write_text("package = [" + ", ".join(f"{{{row}}}" for row in rows) + "]\n")
    summary = build(tmp_path / "out", tmp_path / "list.toml", tmp_path / "cache", progress=lambda _: None, every=every)
    read = []
    for name in ("python", "python-heldout"):
        with lzma.open(tmp_path / "out" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        assert all(row.keys() == {"text", "source", "license"} for row in rows)
        read.append({row["source"].partition("/")[2]: row["text"] for row in rows})
    return *read, summary.dropped


def test_held_out_files_and_their_copies_are_excluded(tmp_path, library):
    copy, fresh, other = names("train", 3)
    stolen = code("library_test", 4) + code("around_it", 4)
    held = names("held out", 1)[0]
    files = {copy: stolen, fresh: code("fresh"), other: code("other"), held: code("held")}
    learnt, asked, dropped = built(tmp_path, wheel(tmp_path / "cache", files))
    assert learnt.keys() == {library["train"], fresh, other}
    assert asked == {held: code("held")}
    assert dropped == {"leaks a held-out file": 1}


def test_a_part_has_the_standard_library_and_one_in_some_packages(tmp_path, library):
    named = {name: f"{name}/{names('train', 1)[0]}" for name in ("a", "b", "c")}
    packages = [wheel(tmp_path / "cache", {path: code(name)}, name=name) for name, path in named.items()]
    learnt, held, _ = built(tmp_path, *packages, every=2)
    assert (learnt | held).keys() == {library["train"], named["a"], named["c"]}


def test_no_file_is_duplicated_or_in_both_splits(tmp_path, library):
    first, spaced, near, small = names("train", 4)
    files = {first: code("a", 30), spaced: code("a", 30).replace("\n\n", "\r\n"), near: code("a", 28) + code("b", 2)}
    files |= {small: code("c"), names("held out", 1)[0]: code("a", 29)}
    learnt, asked, dropped = built(tmp_path, wheel(tmp_path / "cache", files))
    assert learnt.keys() == {library["train"], first, small}
    assert not asked
    assert dropped == {"duplicate": 1, "near duplicate": 1}


@pytest.mark.parametrize(
    "metadata, listed, says",
    [
        (MIT, "MIT", None),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD-3-Clause", None),
        ("License: Apache License, Version 2.0", "Apache-2.0", None),
        ("License-Expression: MIT OR Apache-2.0", "MIT OR Apache-2.0", None),
        ("License-Expression: MIT AND LGPL-2.1-only", "MIT", "LGPL"),
        ("License-Expression: GPL-3.0-only", "GPL-3.0-only", "not one of"),
        ("License: MIT\nClassifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", "MIT", "GNU"),
        ("License: MPL-2.0 AND MIT", "MIT", "MPL"),
        ("License: Apache 2.0", "MIT", "does not mention MIT"),
        ("Summary: paint", "MIT", "no licence"),
    ],
)
def test_a_licence_that_contradicts_the_metadata_is_reported(tmp_path, metadata, listed, says):
    package = wheel(tmp_path, {}, metadata)
    found = complaint(Package(**(vars(package) | {"license": listed})), next(tmp_path.glob("*.whl")))
    assert found is None if says is None else says in found


def test_a_contradicted_licence_stops_the_build(tmp_path, library):
    package = wheel(tmp_path / "cache", {"paint/a.py": code("a")}, "License-Expression: GPL-3.0-only")
    with pytest.raises(InputError, match="paint: listed as MIT, but its metadata has GPL-3.0-only"):
        built(tmp_path, package)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "reason, text",
    [
        (None, code("good")),
        ("size", "x = 1\n"),
        ("generated", "# Generated by a machine. DO NOT EDIT!\n" + code("a")),
        ("copyleft header", "# Under the GNU General Public License\n" + code("a")),
        ("benchmark", code("a") + "URL = 'openai/HumanEval'\n"),
        ("benchmark", code("a") + "".join(f"def {n}(x): ...\n" for n in ("below_zero", "rolling_max", "string_xor"))),
        (None, code("a") + "def rolling_max(x): ...\n"),
        ("special tokens", code("a") + "PAD = '<pad>'\n"),
        ("not ASCII", code("a") + "# " + "ж" * 200 + "\n"),
        ("long lines", code("a") + f"x = '{'y' * 1000}'\n"),
        ("data", "TABLE = [\n" + "    'red', 'green',\n" * 50 + "]\n"),
        ("does not parse", code("a") + "print 'Python 2'\n"),
        ("only imports", '"""Doc."""\n' + "".join(f"from .part{i} import thing{i} as thing{i}\n" for i in range(20))),
    ],
)
def test_unsuitable_text_is_dropped(reason, text):
    assert unwanted(text) == reason


@pytest.mark.parametrize("path", ["a/_vendor/b.py", "a/tests/b.py", "a/test_b.py", "a/b_pb2.py", "a/Migrations/b.py"])
def test_vendored_generated_and_test_files_are_dropped(path):
    assert python_corpus.unwanted_path(path)
    assert python_corpus.unwanted_path("a/contest.py") is None


def test_a_long_file_is_split_between_statements():
    long = code("a", 3000)
    found = parts(long)
    assert len(found) > 1 and "".join("".join(part.split()) for part in found) == "".join(long.split())
    assert all(len(part) <= LONGEST and parses(part) and part.endswith(")\n") for part in found)
    assert parts(code("a")) == [code("a")]


def test_a_licence_header_is_removed_and_other_comments_stay():
    assert strip_header("#!/usr/bin/python\n# Copyright (c) me\n#\n# MIT License\n\nimport os\n") == "import os\n"
    assert strip_header("# How it works.\nimport os\n") == "# How it works.\nimport os\n"
    assert next(documents("# Copyright me\n" + code("a"), "s", "MIT", Counter())).text == code("a")
    assert not list(documents("# Copyright me\n" * 20 + "x = 1\n", "s", "MIT", Counter())), "nothing but a header"

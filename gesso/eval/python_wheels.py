"""Wheels to take Python source from: pinned by hash, downloaded, and under a licence that their own metadata bears out.

`recipes/packages.toml` lists them. They are unzipped, never installed or run.
"""

import email
import hashlib
import io
import re
import subprocess
import sys
import tempfile
import tokenize
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from gesso.errors import InputError

# The same wheels on every machine, whatever it is: their hashes are in the list.
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
WHEELS = ("--python-version=3.11", *(f"--platform={platform}" for platform in PLATFORMS))
# SPDX names, and how metadata from before SPDX says them.
PERMISSIVE = {
    "MIT": r"\bMIT\b|Permission is hereby granted, free of charge",
    "MIT-0": r"\bMIT-0\b|MIT No Attribution",
    "MIT-CMU": r"\bMIT-CMU\b",
    "Apache-2.0": r"\bApache\b|\bASL\b",
    "BSD-2-Clause": r"\bBSD\b|Redistribution and use in source and binary forms",
    "BSD-3-Clause": r"\bBSD\b|Redistribution and use in source and binary forms",
    "0BSD": r"\b0BSD\b|Zero-Clause BSD",
    "PSF-2.0": r"\bPSF|Python Software Foundation",
    "Python-2.0": r"\bPSF|Python Software Foundation",
    "ISC": r"\bISCL?\b",
    "Zlib": r"\bzlib\b",
    "Unlicense": r"\bUnlicense\b",
    "HPND": r"\bHPND\b|Historical Permission",
    "CC0-1.0": r"\bCC0\b",
    "ZPL-2.1": r"\bZPL\b|Zope Public",
}
COPYLEFT = re.compile(
    r"GPL|\bGNU\b|General Public|\bMPL|Mozilla|\bEPL|Eclipse Public|EUPL|CDDL|CeCILL|Attribution-|Proprietary|BUSL",
    re.I,
)


@dataclass(frozen=True, kw_only=True)
class Package:
    name: str
    version: str
    license: str  # an SPDX expression of names in PERMISSIVE
    sha256: str  # of the wheel


def read_packages(path: Path) -> list[Package]:
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
        found = [Package(**row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} must be a list of package = {{name, version, license, sha256}}: {error!r}") from error
    return sorted(found, key=lambda package: package.name)


def fetch(packages: Sequence[Package], cache: Path, progress: Callable[[str], None]) -> list[Path]:
    """The wheel of each package, downloaded if it is not in the cache. The hash decides, not the name of a file."""
    cache.mkdir(parents=True, exist_ok=True)
    have = _by_hash(cache)
    if missing := [package for package in packages if package.sha256 not in have]:
        progress(f"downloading {len(missing)} wheels to {cache}")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.writelines(f"{p.name}=={p.version} --hash=sha256:{p.sha256}\n" for p in missing)
            wanted.flush()
            pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *WHEELS)
            command = (*pip, "--require-hashes", "--dest", str(cache), "--requirement", wanted.name)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        have = _by_hash(cache)
        if lost := [package.name for package in packages if package.sha256 not in have]:
            raise InputError(f"pip could not download {', '.join(lost)}: {done.stderr.strip()[-1000:]}")
    return [have[package.sha256] for package in packages]


def _by_hash(cache: Path) -> dict[str, Path]:
    return {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in sorted(cache.rglob("*.whl"))}


def complaint(package: Package, wheel: Path) -> str | None:
    """What is wrong with the licence in the list, going by the wheel's own metadata."""
    if unknown := [name for name in _names(package.license) if name not in PERMISSIVE]:
        return f"{unknown[0]} is not among {', '.join(PERMISSIVE)}"
    metadata = read_metadata(wheel)
    if expression := metadata["License-Expression"]:
        same = set(_names(expression)) == set(_names(package.license))
        return None if same else f"listed as {package.license}, its metadata says {expression}"
    says = statements(metadata)
    if any(COPYLEFT.search(line) for line in says):
        return f"listed as {package.license}, its metadata says {'; '.join(says)}"
    silent = [n for n in _names(package.license) if not any(re.search(PERMISSIVE[n], line, re.I) for line in says)]
    return f"its metadata does not speak of {silent[0]}: {'; '.join(says) or 'no licence'}" if silent else None


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as members:
        # The top one: packages vendored with their own metadata lie deeper.
        name = min((n for n in members.namelist() if n.endswith(".dist-info/METADATA")), key=lambda n: n.count("/"))
        return email.message_from_string(members.read(name).decode("utf-8", "replace"))


def statements(metadata: Message) -> list[str]:
    """The licence classifiers and the beginning of the free text, which may be the whole licence."""
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return [*classifiers, *([metadata["License"][:200]] if metadata["License"] else [])]


def _names(expression: str) -> list[str]:
    return re.sub(r"[()]|\b(AND|OR)\b", " ", expression).split()


def decode(data: bytes) -> str:
    """The text with plain line breaks and one at its end; empty if it is in no encoding that Python would read."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return re.sub(r"\r\n?", "\n", data.decode(encoding)).strip("\n").rstrip() + "\n"
    except (SyntaxError, UnicodeDecodeError):
        return ""

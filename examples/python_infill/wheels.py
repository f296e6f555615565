"""Download the wheels of the Python corpus, pinned by hash, and check their licences against their metadata.

`packages.toml` lists them. They are unzipped, never installed or executed.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from email.message import Message
from pathlib import Path
from typing import TypeVar

from gesso.errors import InputError

# Fixed, so that every machine downloads the wheels whose hashes are listed.
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
WHEELS = ("--python-version=3.11", *(f"--platform={platform}" for platform in PLATFORMS))
# SPDX names, and their patterns in older metadata.
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
    license: str  # an expression of SPDX names, such as those in PERMISSIVE
    sha256: str  # of the wheel


AnyPackage = TypeVar("AnyPackage", bound=Package)


def read_packages(path: Path, kind: type[AnyPackage]) -> list[AnyPackage]:
    """Return the packages of a list. `kind` is the class of its rows."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
        found = [kind(**row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        names = ", ".join(field.name for field in fields(kind))
        raise InputError(f"{path} must be a list of package = {{{names}}}; {error!r}") from error
    return sorted(found, key=lambda package: package.name)


def fetch(packages: Sequence[Package], cache: Path, progress: Callable[[str], None]) -> list[Path]:
    """Return the wheel of each package, and download those whose hash is not in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    have = _by_hash(cache)
    if missing := [package for package in packages if package.sha256 not in have]:
        progress(f"downloading {len(missing)} wheel{'s' * (len(missing) != 1)} to {cache}")
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


def complaint(package: Package, wheel: Path, allowed: Mapping[str, str] = PERMISSIVE) -> str | None:
    """Return how the listed licence contradicts the wheel's metadata, or None.

    allowed: the accepted licences, and their patterns in older metadata.
    """
    if unknown := [name for name in _names(package.license) if name not in allowed]:
        return f"{unknown[0]} is not one of {', '.join(allowed)}"
    metadata = read_metadata(wheel)
    if expression := metadata["License-Expression"]:
        same = set(_names(expression)) == set(_names(package.license))
        return None if same else f"listed as {package.license}, but its metadata has {expression}"
    says = statements(metadata)
    if any(COPYLEFT.search(line) for line in says):
        return f"listed as {package.license}, but its metadata has {'; '.join(says)}"
    silent = [n for n in _names(package.license) if not any(re.search(allowed[n], line, re.I) for line in says)]
    return f"its metadata does not mention {silent[0]}: {'; '.join(says) or 'no licence'}" if silent else None


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as members:
        # The topmost one: vendored packages have their own metadata in deeper directories.
        name = min((n for n in members.namelist() if n.endswith(".dist-info/METADATA")), key=lambda n: n.count("/"))
        return email.message_from_string(members.read(name).decode("utf-8", "replace"))


def statements(metadata: Message) -> list[str]:
    """Return the licence classifiers and the beginning of the licence text."""
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return [*classifiers, *([metadata["License"][:200]] if metadata["License"] else [])]


def _names(expression: str) -> list[str]:
    return re.sub(r"[()]|\b(AND|OR)\b", " ", expression).split()


def decode(data: bytes) -> str:
    """Return the text with \\n line breaks and one at its end, or "" if its encoding is invalid."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return re.sub(r"\r\n?", "\n", data.decode(encoding)).strip("\n").rstrip() + "\n"
    except (SyntaxError, UnicodeDecodeError):
        return ""

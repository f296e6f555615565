"""Download Debian packages that carry protein sequences, pinned by hash, and read files out of them.

`packages.toml` lists them. They are unpacked, never installed. A package is an ar archive with a compressed tar inside,
so this needs no dpkg.
"""

import hashlib
import io
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gesso.errors import InputError

LISTED = Path(__file__).with_name("packages.toml")
MAGIC = b"!<arch>\n"


@dataclass(frozen=True, kw_only=True)
class Package:
    name: str
    version: str
    file: str  # name of the .deb
    sha256: str  # of the .deb
    members: Mapping[str, str]  # FASTA file in the package, and "forward" or "reversed"


def read_packages(path: Path = LISTED) -> list[Package]:
    return [Package(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["package"]]


def fetch(package: Package, cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the package's file in the cache, downloaded by apt-get if it is not there."""
    path = cache / package.file
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        progress(f"downloading {package.file} to {cache}")
        command = ("apt-get", "download", f"{package.name}={package.version}")
        try:
            done = subprocess.run(command, cwd=cache, capture_output=True, text=True, check=False)
            reason = done.stderr.strip()[-500:]
        except OSError as error:
            reason = str(error)
        if not path.exists():
            raise InputError(
                f"apt-get could not download {package.file}: {reason or 'apt has another architecture or release'}\n"
                f"Get this file of Debian 12 from any mirror of Debian, save it in {cache}, and run the command again."
            )
    if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != package.sha256:
        raise InputError(
            f"{path} has the SHA-256 {found}, expected {package.sha256}; delete it and run the command again"
        )
    return path


def read_member(deb: Path, name: str) -> bytes:
    """Return the content of one file of a package."""
    with tarfile.open(fileobj=io.BytesIO(_data(deb)), mode="r:*") as tar:
        for member in tar:
            if member.name.removeprefix("./") == name and (file := tar.extractfile(member)):
                return file.read()
    raise InputError(f"{deb} contains no file {name}")


def _data(deb: Path) -> bytes:
    """Return the archive `data.tar.*` of a package."""
    raw = deb.read_bytes()
    at = len(MAGIC) if raw.startswith(MAGIC) else len(raw)
    while at + 60 <= len(raw):  # each entry: a header of 60 bytes, the content, and padding to an even length
        name, size = raw[at : at + 16].decode("ascii").rstrip(" /"), int(raw[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return raw[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise InputError(f"{deb} is not a Debian package: it has no data.tar; delete it and run the command again")

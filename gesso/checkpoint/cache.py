"""The hub cache: names of hub models, their directories, and which of their files are complete.

The cache has the layout of huggingface_hub, so that other programs find the same files: `models--OWNER--MODEL` has
`blobs/HASH`, `snapshots/COMMIT/FILE` (links to blobs) and `refs/main` (the commit in use). Gesso adds
`gesso/COMMIT.json`, its manifest: the files that it needs of a commit, and which of them had the right hash.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gesso.checkpoint.safetensors import INDEX, SINGLE, weights_named
from gesso.errors import CheckpointError
from gesso.files import read_json, replacing

ADAPTER = "adapter_model.safetensors"
GGUF = ".gguf"
PARTIAL = ".gesso-incomplete"  # appended to a blob's name; other programs neither read nor continue such a file
COMMIT = re.compile(r"[0-9a-f]{40}")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class HubName:
    """A repository, and for GGUF one of its files: `owner/model:FILE.gguf` or `owner/model:Q4_K_M`."""

    repository: str
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName | None":
        """Return the parts of a hub name, or None if the text is something else."""
        # huggingface_hub joins owner and model with "--", and rejects both sequences in a name.
        if not NAME.fullmatch(text) or "--" in text.partition(":")[0] or ".." in text:
            return None
        repository, _, file = text.partition(":")
        return cls(repository, file or None)

    def __str__(self) -> str:
        return self.repository + (f":{self.file}" if self.file else "")

    def matches(self, names: Iterable[str]) -> list[str]:
        """Return the GGUF files that the name means: the one of that name, or all that contain the label."""
        label = (self.file or "").lower()
        files = ggufs(names)
        exact = [name for name in files if name.lower() in (label, label + GGUF)]
        # A label is a whole word of the name: Q4_K must not match Q4_K_M.
        word = re.compile(rf"(?<![a-z0-9_]){re.escape(label)}(?![a-z0-9_])")
        return exact or [name for name in files if word.search(name.lower())]


def ggufs(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(GGUF))


@dataclass(frozen=True)
class ManifestEntry:
    """A file in a manifest. `hash` is the name of its blob: SHA-256 if it is in LFS, or else Git's SHA-1."""

    size: int
    hash: str
    verified: bool = False


Manifest = Mapping[str, ManifestEntry]


# --- one repository -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repository:
    """The directory of a hub repository in the cache. It need not exist."""

    path: Path

    @classmethod
    def of(cls, name: str) -> "Repository":
        return cls(cache_directory() / f"models--{name.replace('/', '--')}")

    @property
    def commit(self) -> str | None:
        """The commit in use."""
        try:
            text = (self.path / "refs" / "main").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if COMMIT.fullmatch(text) else None

    def commits(self) -> list[str]:
        """Return all commits with a manifest, and the one in use."""
        commits = {path.stem for path in (self.path / "gesso").glob("*.json") if COMMIT.fullmatch(path.stem)}
        if self.commit:
            commits.add(self.commit)
        return sorted(commits)

    def snapshot(self, commit: str) -> Path:
        return self.path / "snapshots" / commit

    def blob(self, hash: str) -> Path:
        return self.path / "blobs" / hash

    def manifest(self, commit: str) -> Manifest:
        """Return the manifest of a commit; empty if Gesso has not begun to download it."""
        with suppress(CheckpointError, TypeError, AttributeError):
            files = read_json(self.path / "gesso" / f"{commit}.json")["files"]
            return {name: ManifestEntry(**entry) for name, entry in files.items()}
        return {}

    def write_manifest(self, commit: str, files: Manifest) -> None:
        target = self.path / "gesso" / f"{commit}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        content = {"files": {name: asdict(entry) for name, entry in files.items()}}
        with replacing(target) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())

    def use(self, commit: str) -> None:
        """Make a commit the one in use."""
        (self.path / "refs").mkdir(exist_ok=True)
        with replacing(self.path / "refs" / "main") as file:
            file.write(commit.encode())

    def bytes_of(self, commit: str, name: str, entry: ManifestEntry) -> int:
        """Return the bytes of a file that are on disk, complete or not."""
        partial = self.blob(entry.hash + PARTIAL)
        for path in (self.snapshot(commit) / name, self.blob(entry.hash), partial):
            with suppress(OSError):
                return path.stat().st_size
        return 0

    @contextmanager
    def locked(self, timeout: float | None = None) -> Iterator[None]:
        """Keep other processes from downloading or removing this repository. Without a timeout, wait for them."""
        from filelock import Timeout
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # exported lazily

        path = self.path.parent / ".locks" / self.path.name / "gesso.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with WeakFileLock(path, timeout=timeout):
                yield
        except Timeout:
            raise CheckpointError(f"another process is downloading {self.path.name}; stop it first") from None


def cache_directory() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def find_complete(name: HubName, *, weights: bool) -> Path | None:
    """Return the directory, or for GGUF the file, of a model whose files are all here and verified."""
    repository = Repository.of(name.repository)
    commit = repository.commit
    manifest = repository.manifest(commit) if commit else {}
    if commit is None or not manifest:
        return None
    snapshot = repository.snapshot(commit)
    verified = {file for file, entry in manifest.items() if entry.verified and (snapshot / file).is_file()}
    if name.file:
        matching = name.matches(verified)
        return snapshot / matching[0] if len(matching) == 1 else None
    unneeded = (GGUF,) if weights else (GGUF, ".safetensors")
    needed = [file for file in manifest if not file.endswith(unneeded)]
    if not needed or not verified.issuperset(needed):
        return None
    return snapshot if not weights or has_weights(snapshot) else None


def find_unverified(name: HubName, *, weights: bool) -> Path | None:
    """Return a model that another program has downloaded, if no file that loading needs is missing."""
    repository = Repository.of(name.repository)
    commit = repository.commit
    if commit is None or repository.manifest(commit):
        return None
    snapshot = repository.snapshot(commit)
    if name.file:
        matching = name.matches(path.name for path in snapshot.glob(f"*{GGUF}"))
        return snapshot / matching[0] if len(matching) == 1 else None
    if not any((snapshot / file).is_file() for file in ("config.json", "adapter_config.json")):
        return None
    return snapshot if not weights or has_weights(snapshot) else None


def has_weights(directory: Path) -> bool:
    """Return whether the weights that the index names, or the single weight file, are all here."""
    if (directory / INDEX).exists():
        with suppress(CheckpointError):
            return all((directory / file).is_file() for file in weights_named(read_json(directory / INDEX)))
        return False
    return any((directory / file).is_file() for file in (SINGLE, ADAPTER))

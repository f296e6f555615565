"""Find a model of the Hugging Face hub: in the cache, or else download the files that it needs.

A download is of one commit. Its files are downloaded into blobs and verified one by one; only when all of them are
right do they appear in the snapshot and in the manifest as verified. Until then, `find` does not return the model.
"""

import logging
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gesso.checkpoint.cache import (
    ADAPTER,
    COMMIT,
    PARTIAL,
    HubName,
    ManifestEntry,
    Repository,
    find_complete,
    find_unverified,
    ggufs,
)
from gesso.checkpoint.download import Advance, check_space, download, first_bytes, hash_of
from gesso.checkpoint.safetensors import INDEX, SINGLE, is_plain, weights_named
from gesso.errors import CheckpointError
from gesso.files import read_json
from gesso.progress import Progress

logger = logging.getLogger("gesso")

ANNOUNCED = 10**8  # bytes from which on a download is announced in one line
MODEL_TYPE, GGUF_ARCHITECTURE = "diffusion_gemma", "diffusion-gemma"
HEADER = 128  # bytes of a GGUF file to read; the first key and its value, the architecture, end before


def find(name: HubName, *, weights: bool = True) -> Path:
    """Return the directory of a model, or for GGUF its file. Download it if it is not here.

    A model that is here is used as it is, without a request to the hub; `pull` looks for a newer version. Without
    `weights`, only the other files are needed.
    """
    if complete := find_complete(name, weights=weights):
        return complete
    try:
        return pull(name, weights=weights)
    except _UnavailableError:
        if unverified := find_unverified(name, weights=weights):
            return unverified
        raise


def pull(name: HubName, *, weights: bool = True) -> Path:
    """Download the newest commit of a model, as far as it is not here, and return its directory or GGUF file."""
    with explained(str(name), Repository.of(name.repository)):
        commit, listed = _listing(name.repository)
        repository = Repository.of(name.repository)
        with repository.locked():
            return _Download(name, repository, commit, listed).run(weights)


class _Download:
    """The download of one commit."""

    def __init__(self, name: HubName, repository: Repository, commit: str, listed: Mapping[str, ManifestEntry]) -> None:
        self.name = name
        self.repository = repository
        self.commit = commit
        self.listed = listed
        self.headers = request_headers()
        # Equal hashes are equal files, so those of other commits count too.
        manifests = [repository.manifest(known_commit) for known_commit in repository.commits()]
        self.verified = {entry.hash for files in manifests for entry in files.values() if entry.verified}

    def run(self, weights: bool) -> Path:
        """Download and verify the files that are not here, then publish all of them."""
        files = [self._gguf()] if self.name.file else self._checkpoint(weights)
        missing = [file for file in files if not self._is_here(file)]
        total = sum(self.listed[file].size for file in missing)
        unfinished = [self.repository.blob(self.listed[file].hash + PARTIAL) for file in missing]
        left = total - sum(path.stat().st_size for path in unfinished if path.exists())
        if missing:
            check_space(left, self.repository.path, str(self.name))
            self._record(files, verified=False)
        if left > ANNOUNCED:
            logger.warning("downloading %s: %.1f GB into %s", self.name, left / 1e9, self.repository.path)
        with Progress(in_bytes=True, visible=sys.stderr.isatty()) as progress:
            for file in missing:
                self._fetch(file, partial(progress.add, str(self.name), total))
        self._publish(files)
        snapshot = self.repository.snapshot(self.commit)
        return snapshot / files[0] if self.name.file else snapshot

    # --- choose files ---------------------------------------------------------------------------------------------

    def _gguf(self) -> str:
        """Return the one GGUF file that the name means, after a look at the architecture in its header."""
        matching = self.name.matches(self.listed)
        if len(matching) != 1:
            candidates = ", ".join(matching or ggufs(self.listed)) or "it has none"
            raise CheckpointError(
                f"{self.name.repository} has {len(matching) or 'no'} GGUF files for {self.name.file!r}; name one of "
                f"these: {candidates}"
            )
        (file,) = matching
        if not self._is_here(file):
            header = first_bytes(self._url(file), min(HEADER, self.listed[file].size), self.headers)
            architecture = gguf_architecture(header)
            if architecture not in (None, GGUF_ARCHITECTURE):
                raise _other_architecture(self.name, architecture)
        return file

    def _checkpoint(self, weights: bool) -> list[str]:
        self._check_architecture()
        return self._small() + (self._weights() if weights else [])

    def _small(self) -> list[str]:
        """Return the files other than weights: configuration, tokenizer, chat template, index of the weights."""
        endings = (".json", ".jinja") if "tokenizer.json" in self.listed else (".json", ".jinja", ".model")
        files = [file for file in self.listed if file.endswith(endings)]
        return [file for file in files if file == INDEX or not file.endswith(".index.json")]

    def _check_architecture(self) -> None:
        """Reject a repository of another kind before its weights are downloaded."""
        if "config.json" in self.listed:
            kind = self._read("config.json").get("model_type")
            if kind != MODEL_TYPE:
                raise _other_architecture(self.name, kind)
        elif "adapter_config.json" not in self.listed:
            files = ", ".join(ggufs(self.listed))
            advice = f"; for one of its GGUF files, write {self.name}:FILE: {files}" if files else ""
            raise CheckpointError(f"{self.name} has no config.json, so it is not a checkpoint{advice}")

    def _weights(self) -> list[str]:
        """Return the weight files: those that the index names, or the single one. Never pickles."""
        if INDEX in self.listed:
            files = weights_named(self._read(INDEX))
            if missing := sorted(files - self.listed.keys()):
                raise CheckpointError(f"{INDEX} of {self.name} names {missing[0]}, which the repository does not have")
            return sorted(files)
        for file in (SINGLE, ADAPTER):
            if file in self.listed:
                return [file]
        raise CheckpointError(f"{self.name} has no weights in safetensors: neither {INDEX} nor {SINGLE}")

    # --- fetch and publish ----------------------------------------------------------------------------------------

    def _read(self, file: str) -> dict[str, Any]:
        """Download a small file that decides what else to download, and return its content."""
        if not self._is_here(file):
            self._fetch(file, lambda _: None)
        published = self.repository.snapshot(self.commit) / file
        return read_json(published if published.is_file() else self.repository.blob(self.listed[file].hash))

    def _fetch(self, file: str, advance: Advance) -> None:
        entry = self.listed[file]
        if not self.repository.blob(entry.hash).is_file():  # two files may have the same content
            download(self._url(file), self.repository.blob(entry.hash), entry, dict(self.headers), advance)
        self.verified.add(entry.hash)

    def _is_here(self, file: str) -> bool:
        """Return whether a file is here with the right hash. Delete it if it is damaged."""
        entry = self.listed[file]
        for path in (self.repository.snapshot(self.commit) / file, self.repository.blob(entry.hash)):
            if path.is_file():
                is_verified = entry.hash in self.verified
                if path.stat().st_size == entry.size and (is_verified or hash_of(path, entry) == entry.hash):
                    self.verified.add(entry.hash)
                    return True
                path.unlink()
        return False

    def _publish(self, files: list[str]) -> None:
        """Put the files into the snapshot, and make this commit the one in use."""
        snapshot = self.repository.snapshot(self.commit)
        snapshot.mkdir(parents=True, exist_ok=True)
        moved: dict[Path, Path] = {}
        for file in files:
            target, blob = snapshot / file, self.repository.blob(self.listed[file].hash)
            if target.is_file():
                continue
            try:
                target.symlink_to(os.path.relpath(blob, snapshot))
            except (OSError, NotImplementedError):  # the file system has no symbolic links
                if blob in moved:  # two files with the same content
                    shutil.copyfile(moved[blob], target)
                else:
                    os.replace(blob, target)
                    moved[blob] = target
        self._record(files, verified=True)
        self.repository.use(self.commit)

    def _record(self, files: list[str], *, verified: bool) -> None:
        """Write into the manifest which files this commit needs, and which of them are complete."""
        before = self.repository.manifest(self.commit)
        done = set(files) if verified else {file for file, entry in before.items() if entry.verified}
        now = {file: replace(self.listed[file], verified=file in done) for file in files}
        self.repository.write_manifest(self.commit, {**before, **now})

    def _url(self, file: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.name.repository, file, revision=self.commit)


# --- the hub's answers --------------------------------------------------------------------------------------------


def _listing(repository: str) -> tuple[str, dict[str, ManifestEntry]]:
    """Return the newest commit and its files. Files in folders are left out: a checkpoint has none that are needed."""
    from huggingface_hub import HfApi

    request_headers()  # checks the token
    info = HfApi().model_info(repository, files_metadata=True)
    if not COMMIT.fullmatch(commit := info.sha or ""):
        raise CheckpointError(f"the hub's commit of {repository} is {commit!r}, expected 40 hexadecimal digits")
    return commit, entries(info.siblings or [], is_plain)


def entries(listed: Iterable[Any], accepts: Callable[[str], bool]) -> dict[str, ManifestEntry]:
    """Return the files of the hub's listing whose names are accepted. Names and hashes become paths in the cache."""
    by_name = {}
    for file in listed:
        hash, size = (file.lfs.sha256, file.lfs.size) if file.lfs else (file.blob_id, file.size)
        if accepts(file.rfilename) and size is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", hash or ""):
            by_name[file.rfilename] = ManifestEntry(size=size, hash=str(hash))
    return by_name


def request_headers() -> dict[str, str]:
    """Return the headers of a request to the hub. Reject a malformed token, which the library would print."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported lazily

    headers = build_hf_headers(library_name="gesso")
    if not re.fullmatch(r"[ -~]*", headers.get("authorization", "")):
        raise CheckpointError(
            "the Hugging Face token has characters that no token has; set HF_TOKEN again, or log in again with "
            "hf auth login"
        )
    return headers


def gguf_architecture(header: bytes) -> str | None:
    """Return general.architecture if it is the first key of a GGUF file, where llama.cpp writes it, or else None."""
    key = b"general.architecture"
    prefix = struct.Struct(f"<4sIQQQ{len(key)}sIQ")  # magic, version, tensors, keys; length and name; type and length
    if len(header) < prefix.size:
        return None
    magic, _, _, _, _, name, kind, length = prefix.unpack_from(header)
    if magic != b"GGUF" or name != key or kind != 8:  # 8: text
        return None
    return header[prefix.size : prefix.size + length].decode("utf-8", "replace")


def _other_architecture(name: HubName, kind: object) -> CheckpointError:
    return CheckpointError(
        f"{name} is a model of type {kind!r}, but gesso runs only {MODEL_TYPE!r}; no weights were downloaded"
    )


class _UnavailableError(CheckpointError):
    """The hub gave no usable answer, or the cache cannot be written, so files that are here may be used."""


@contextmanager
def explained(name: str, repository: Repository) -> Iterator[None]:
    """Turn errors of the hub, the network and the disk into one line with the cause and what to do."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):
            advice = "Check the name. If it is private or gated, accept its terms on the hub and set HF_TOKEN."
        else:
            advice = "Try again later; a download continues where it stopped."
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise _UnavailableError(
            f"{name} could not be downloaded from the hub (status {status}): {first}. {advice}"
        ) from error
    except HFValidationError as error:
        raise CheckpointError(f"{name} is not a name of the hub: {error}") from error
    except Exception as error:
        # huggingface_hub 1 raises the errors of httpx, and version 2 those of httpx2.
        network = type(error).__module__.partition(".")[0] in ("httpx", "httpx2") or isinstance(error, ConnectionError)
        if network:
            first = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
            raise _UnavailableError(
                f"{name} is not on this machine and the hub cannot be reached: {first}. Check the network, HF_ENDPOINT "
                "and HF_HUB_OFFLINE; a download continues where it stopped."
            ) from error
        if isinstance(error, OSError):
            raise _UnavailableError(
                f"{name} cannot be stored in {repository.path}: {error.strerror or error}; a "
                "download continues where it stopped"
            ) from error
        raise

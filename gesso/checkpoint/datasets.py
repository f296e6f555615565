"""Find a dataset of the Hugging Face hub: in the cache, or else download the files of one split.

The cache is that of `hub.py`, with `datasets--OWNER--NAME` in place of `models--…`. The manifest of a commit lists all
data files of the dataset, and which of them are here with the right hash.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gesso.checkpoint.cache import COMMIT, PARTIAL, HubName, ManifestEntry, Repository, cache_directory
from gesso.checkpoint.download import check_space, download
from gesso.checkpoint.hub import entries, explained, request_headers
from gesso.checkpoint.safetensors import is_plain
from gesso.errors import CheckpointError, InputError
from gesso.progress import Progress

# Words for splits, as the hub recognizes them in the names of files and folders.
SPLITS = ("train", "training", "test", "testing", "eval", "evaluation", "validation", "valid", "val", "dev")
DEFAULT = "train"
NAMED = 8  # files named by an error


@dataclass(frozen=True)
class DatasetName:
    """A dataset, and a split or a file of it: `owner/name`, `owner/name:test`, `owner/name:data/part.jsonl`."""

    repository: str
    part: str | None = None

    @classmethod
    def parse(cls, text: str) -> "DatasetName | None":
        """Return the parts of a dataset's name, or None if the text is something else."""
        repository, _, part = text.partition(":")
        name = HubName.parse(repository)
        if name is None or (part and not is_within(part)) or text.endswith(":"):
            return None
        return cls(name.repository, part or None)

    def __str__(self) -> str:
        return self.repository + (f":{self.part}" if self.part else "")


def is_within(name: str) -> bool:
    """Return whether this is a relative path that stays in its folder, on any operating system."""
    return all(map(is_plain, name.split("/")))


def find_dataset(name: DatasetName, suffixes: Sequence[str]) -> list[Path]:
    """Return the local files of a split in order. Files that are here are used without a request to the hub."""
    repository = Repository(cache_directory() / f"datasets--{name.repository.replace('/', '--')}")
    if commit := repository.commit:
        listed = repository.manifest(commit)
        files = choose(name, listed, suffixes) if listed else []
        paths = [repository.snapshot(commit) / file for file in files]
        if paths and all(listed[file].verified for file in files) and all(path.is_file() for path in paths):
            return paths
    with explained(str(name), repository), repository.locked():
        return _download(name, repository, suffixes)


def choose(name: DatasetName, listed: Mapping[str, ManifestEntry], suffixes: Sequence[str]) -> list[str]:
    """Return the files of a split. They have one format and lie in one folder, so that no row is read twice."""
    data = sorted(file for file in listed if file.endswith(tuple(suffixes)) and file.rpartition("/")[2] not in SIDE)
    if name.part in data:
        return [str(name.part)]
    split = name.part or DEFAULT
    files = [file for file in data if _has_word(file, split)]
    if not files and name.part is None and not any(_has_word(file, word) for file in data for word in SPLITS):
        files = data  # a dataset without splits
    if split.lower() not in SPLITS and any(_has_word(file, word) for file in files for word in SPLITS):
        files = [file for file in files if _has_word(file, DEFAULT)]  # the name is that of a folder with splits
    if not files:
        raise InputError(f"{name.repository} has no data files of split {split!r}; {_advice(name, data)}")
    kind = next(suffix for suffix in suffixes if any(file.endswith(suffix) for file in files))
    files = [file for file in files if file.endswith(kind)]
    if len({file.rpartition("/")[0] for file in files}) > 1:
        raise InputError(f"{name} has files in several folders; {_advice(name, files)}")
    return files


SIDE = ("dataset_infos.json", "dataset_info.json", "package.json")  # descriptions, no rows


def _has_word(file: str, word: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])", file.lower()) is not None


def _advice(name: DatasetName, files: Sequence[str]) -> str:
    if not files:
        return "it has no files that gesso reads: .jsonl, .json or .parquet"
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return f"name a split or one of its files, as {name.repository}:FILE: {', '.join(files[:NAMED])}{more}"


def _download(name: DatasetName, repository: Repository, suffixes: Sequence[str]) -> list[Path]:
    from huggingface_hub import HfApi, hf_hub_url

    headers = request_headers()
    info = HfApi().dataset_info(name.repository, files_metadata=True)
    if not COMMIT.fullmatch(commit := info.sha or ""):
        raise CheckpointError(f"the hub's commit of {name.repository} is {commit!r}, expected 40 hexadecimal digits")
    before = repository.manifest(commit)
    listed = {
        file: replace(entry, verified=file in before and before[file].verified)
        for file, entry in entries(info.siblings or [], is_within).items()
        if file.endswith(tuple(suffixes))
    }
    snapshot, files = repository.snapshot(commit), choose(name, listed, suffixes)
    missing = [file for file in files if not (listed[file].verified and (snapshot / file).is_file())]
    total = sum(listed[file].size for file in missing)
    unfinished = [repository.blob(listed[file].hash + PARTIAL) for file in missing]
    check_space(total - sum(path.stat().st_size for path in unfinished if path.exists()), repository.path, str(name))
    with Progress(in_bytes=True, visible=sys.stderr.isatty()) as progress:
        advance = partial(progress.add, str(name), total)
        for file in missing:
            url = hf_hub_url(name.repository, file, repo_type="dataset", revision=commit)
            blob = repository.blob(listed[file].hash)
            if blob.is_file():  # verified when it was downloaded, by an interrupted call or for another commit
                advance(listed[file].size)
            else:
                download(url, blob, listed[file], dict(headers), advance)
            _publish(blob, snapshot / file)
            listed[file] = replace(listed[file], verified=True)
    repository.write_manifest(commit, listed)
    repository.use(commit)
    return [snapshot / file for file in files]


def _publish(blob: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.symlink_to(os.path.relpath(blob, target.parent))
    except (OSError, NotImplementedError):  # the file system has no symbolic links
        shutil.copyfile(blob, target)

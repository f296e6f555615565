"""The models on this machine, bundled or in the hub cache: list, describe and remove them."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gesso import bundled
from gesso.checkpoint.cache import GGUF, PARTIAL, HubName, Repository, cache_directory, has_weights
from gesso.errors import CheckpointError
from gesso.files import read_json

# --- list ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A row of `gesso models`."""

    name: str
    format: str
    precision: str
    bytes: int  # on disk
    total_bytes: int  # once complete
    last_used: str | None  # date of the last access, if the file system records it
    state: str  # bundled, complete, incomplete, configuration (no weights) or old (not the commit in use)
    path: str


def models() -> list[LocalModel]:
    """Return the bundled models, and the DiffusionGemma models in the hub cache."""
    rows = [
        _row(name, "bundled", directory, {path.name: path.stat().st_size for path in directory.iterdir()})
        for name, directory in bundled.DIRECTORIES.items()
        if directory.is_dir()
    ]
    for path in sorted(cache_directory().glob("models--*--*")):
        parts = path.name.split("--")
        if len(parts) == 3:
            rows += _rows("/".join(parts[1:]), Repository(path))
    return rows


def _rows(name: str, repository: Repository) -> Iterator[LocalModel]:
    for commit in repository.commits():
        snapshot = repository.snapshot(commit)
        manifest = repository.manifest(commit)
        if not manifest:
            if _config(snapshot).get("model_type") == "diffusion_gemma":
                sizes = {path.name: path.stat().st_size for path in snapshot.iterdir() if path.is_file()}
                yield _row(name, "complete" if has_weights(snapshot) else "incomplete", snapshot, sizes)
            continue
        plain = {file: entry for file, entry in manifest.items() if not file.endswith(GGUF)}
        packed = {file: {file: entry} for file, entry in manifest.items() if file.endswith(GGUF)}
        for file, files in {**({"": plain} if plain else {}), **packed}.items():
            state = "complete"
            if not all(entry.verified for entry in files.values()):
                state = "incomplete"
            elif not file and not has_weights(snapshot):
                state = "configuration"
            elif commit != repository.commit:
                state = "old"
            sizes = {file_name: repository.bytes_of(commit, file_name, entry) for file_name, entry in files.items()}
            total = sum(entry.size for entry in files.values())
            yield _row(f"{name}:{file}" if file else name, state, snapshot / file, sizes, total)


def _row(name: str, state: str, path: Path, sizes: Mapping[str, int], total: int | None = None) -> LocalModel:
    if path.name.endswith(GGUF):
        format, precision = "gguf", _label(path.name)
    else:
        format, precision = describe(_config(path))
    directory = path if path.suffix != GGUF else path.parent
    return LocalModel(
        name=name,
        format=format,
        precision=precision,
        bytes=sum(sizes.values()),
        total_bytes=sum(sizes.values()) if total is None else total,
        last_used=_last_used(directory / file for file in sizes),
        state=state,
        path=str(path),
    )


def describe(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the format and the precision of a checkpoint by its config.json, as far as they are known."""
    given = config.get("quantization_config") or config.get("quantization")
    if not isinstance(given, dict):
        inner = config.get("text_config")
        dtypes = [
            part.get(key) for part in (config, inner) if isinstance(part, dict) for key in ("dtype", "torch_dtype")
        ]
        short_names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
        precision = next((short_names[dtype] for dtype in dtypes if dtype in short_names), "unknown")
        return "safetensors" if config else "unknown", precision
    method = given.get("quant_method")
    if method == "compressed-tensors":
        groups = given.get("config_groups")
        weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
        kinds = {f"{group.get('type')}{group.get('num_bits')}" for group in weights if isinstance(group, dict)}
        named = {"float8": "fp8", "float4": "nvfp4"}
        return method, "+".join(sorted(named.get(kind, kind) for kind in kinds)) or "unknown"
    if method == "modelopt":
        return method, str(given.get("quant_algo") or "unknown").lower()
    if method is None and "bits" in given:
        mode = given.get("mode") or "affine"
        return "mlx", f"int{given['bits']}" if mode == "affine" else str(mode)
    return str(method), "unknown"


def _config(directory: Path) -> Mapping[str, Any]:
    with suppress(CheckpointError):
        return read_json(directory / "config.json")
    return {}


def _label(name: str) -> str:
    """Return the precision in the name of a GGUF file, such as Q4_K_M."""
    label = re.search(r"(?<![A-Za-z0-9])(I?Q\d\w*|BF16|F16|F32|MXFP4\w*|NVFP4\w*)", name.removesuffix(GGUF), re.I)
    return label[1] if label else "unknown"


def _last_used(paths: Iterable[Path]) -> str | None:
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(path.stat().st_atime)
    return datetime.fromtimestamp(max(times)).date().isoformat() if times else None


# --- remove -------------------------------------------------------------------------------------------------------


def removable(name: HubName) -> list[LocalModel]:
    """Return the rows of `models` that `remove` would delete."""
    repository = Repository.of(name.repository)
    if repository.path.is_symlink():
        raise CheckpointError(
            f"{repository.path} is a symbolic link, so its files are not Gesso's to remove; remove the link yourself"
        )
    rows = list(_rows(name.repository, repository))
    if name.file is None:
        return rows
    files = name.matches({Path(row.path).name for row in rows})
    return [row for row in rows if Path(row.path).name in files]


def remove(name: HubName) -> int:
    """Delete a model, its interrupted downloads and its old versions. Return the bytes that this frees.

    Only entries of the cache are deleted: a symbolic link is removed, and its target stays.
    """
    repository = Repository.of(name.repository)
    rows = removable(name)
    if not rows:
        raise CheckpointError(f"{name} is not in {cache_directory()}; gesso models lists the models that are")
    with repository.locked(timeout=1):
        if name.file is None:
            return _remove_all(repository)
        # Only the files that were named: other programs may have put more into the same snapshot.
        chosen = {Path(row.path).name for row in rows}
        freed = 0
        for commit in repository.commits():
            manifest = dict(repository.manifest(commit))
            for file in [file for file in manifest if file in chosen]:
                hash = manifest.pop(file).hash
                for path in (
                    repository.snapshot(commit) / file,
                    repository.blob(hash),
                    repository.blob(hash + PARTIAL),
                ):
                    freed += _unlink(path)
            repository.write_manifest(commit, manifest)
        snapshots = repository.path / "snapshots"
        if any(files for _, _, files in os.walk(snapshots)):
            return freed
        return freed + _remove_all(repository)


def _unlink(path: Path) -> int:
    """Delete a file or link, and return the bytes of a file."""
    with suppress(OSError):
        size = 0 if path.is_symlink() else path.lstat().st_size
        path.unlink()
        return size
    return 0


def _remove_all(repository: Repository) -> int:
    from huggingface_hub import scan_cache_dir

    freed = sum(
        (Path(folder) / file).lstat().st_size
        for folder, _, files in os.walk(repository.path)
        for file in files
        if not (Path(folder) / file).is_symlink()
    )
    # Files of other programs may be in the shared blob store of huggingface_hub, which knows who else uses them.
    scanned = scan_cache_dir(cache_directory())
    ours = [cached for cached in scanned.repos if cached.repo_path.name == repository.path.name]
    if commits := [revision.commit_hash for cached in ours for revision in cached.revisions]:
        # Without the other repositories: a copy of this one may have the same commits.
        strategy = replace(scanned, repos=frozenset(ours)).delete_revisions(*commits)
        freed = max(freed, strategy.expected_freed_size)
        strategy.execute()
    if repository.path.exists():
        shutil.rmtree(repository.path)  # does not follow links
    return freed

"""Keys and values of prompts in files, so that a long system prompt is read once and not once per process.

A prompt is stored piece by piece, in the pieces in which the engine encodes it. The name of a file is a hash of the
model, and of all tokens up to the end of the piece: prompts with a common beginning share its files, and a file can
never be used for another text or other weights. A file has, for each layer, the keys and values of its piece, rotated
as in the cache:

    k.0, v.0, k.1, …  [S, M, D]     S tokens: the whole piece, or in a sliding layer as many as its window holds

They are those that this machine would compute, to the bit: `identity` names everything that they depend on.

S tokens, M key/value heads, D head dim.
"""

import hashlib
import logging
import os
import stat
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gesso.engine.pieces import Cuts
from gesso.errors import GessoError, InputError
from gesso.files import check_regular, locked, remove_all_abandoned, replacing
from gesso.model.cache import SPARE, KVCache, LayerKV

logger = logging.getLogger("gesso")

SUFFIX = ".prefix.safetensors"
LOCK = ".prefix.lock"
VERSION = 3  # increases when the same model, backend and machine give other keys or values, or the layout changes
TOKEN_BYTES = 24  # of a token in a hash: a soft token of an image has more than 128 bits and a sign
LIMIT = 20 * 10**9  # bytes of all files in a directory; 256 tokens of the 26B in float32 are 115 MB


class _Damaged(Exception):
    pass


@dataclass(frozen=True)
class PrefixFiles:
    """The stored prompts of one model. `limit` bounds the files of all models in the directory."""

    directory: Path
    identity: str
    limit: int = LIMIT

    def __post_init__(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts can be private
            mode = stat.S_IMODE(self.directory.stat().st_mode)
        except OSError as error:
            raise InputError(f"the cache directory {self.directory} cannot be created: {error.strerror}") from None
        if os.name == "posix" and mode & 0o077:
            logger.warning(
                "the cache directory %s is open to other users (mode %o), and prompts are stored in it; "
                "close it with chmod 700",
                self.directory,
                mode,
            )

    def stored(self, tokens: Sequence[int], cuts: Cuts) -> int:
        """Return how many tokens at the beginning of a prompt are stored, in whole pieces."""
        count = 0
        for end, path in self._paths(tokens, cuts).items():
            if not path.exists():
                break
            count = end
        return count

    def read(self, cache: KVCache, row: int, tokens: Sequence[int], cuts: Cuts) -> int:
        """Read stored tokens into an empty row with room for them, and return how many there are.

        A file that is damaged or has just been deleted ends the text that is read.
        """
        pieces: dict[int, Mapping[str, Tensor]] = {}  # by end
        for end, path in self._paths(tokens[: self.stored(tokens, cuts)], cuts).items():
            try:
                pieces[end] = _read(path, cache, end - cuts.last(end - 1))
            except FileNotFoundError:
                break
            except (_Damaged, OSError, SafetensorError) as error:
                logger.warning("the stored prompt %s is damaged and is not used: %s", path, error)
                with suppress(OSError):
                    path.unlink()
                break
            with suppress(OSError):
                os.utime(path)  # it is the most recently used one
        for end, tensors in pieces.items():
            for index, layer in enumerate(cache.layers):
                k_SMD, v_SMD = tensors[f"k.{index}"], tensors[f"v.{index}"]
                layer.write(row, end - len(k_SMD), k_SMD, v_SMD)
        cache.lengths[row] = max(pieces, default=0)
        cache.reached[row] = cache.lengths[row] + SPARE  # the files have no more than a window
        return cache.lengths[row]

    def write(self, cache: KVCache, row: int, tokens: Sequence[int], cuts: Cuts) -> None:
        """Store the last piece of a row that has just been encoded: its tokens are those given. Log it if that fails.

        In sliding layers only the end of a row is left, so a piece can be stored only then. While another process
        stores one, this piece is left for the next time.
        """
        path, length = self._paths(tokens, cuts)[len(tokens)], len(tokens) - cuts.last(len(tokens) - 1)
        if path.exists():
            return
        tensors = {}
        for index, layer in enumerate(cache.layers):
            for name, part in zip("kv", layer.read(row, len(tokens)), strict=True):
                tensors[f"{name}.{index}"] = part[-_kept(layer, length) :].contiguous()
        data = save(tensors, {"crc32": str(_checksum(tensors))})
        if len(data) > self.limit:
            return
        try:
            with locked(self.directory / LOCK) as is_locked:
                if is_locked:
                    remove_all_abandoned(self.directory, SUFFIX)
                self._delete_oldest(self.limit - len(data))
                with replacing(path, private=True) as file:
                    file.write(data)
        except GessoError:
            return
        except OSError as error:
            logger.warning("the prompt cannot be stored in %s: %s", self.directory, error.strerror or error)

    def _paths(self, tokens: Sequence[int], cuts: Cuts) -> dict[int, Path]:
        """Return the file of every whole piece of a prompt by its end. It depends on all tokens before that."""
        paths: dict[int, Path] = {}
        hashed = hashlib.sha256(f"{VERSION}\n{self.identity}\n{cuts.piece}\n".encode())
        for start, end in pairwise((0, *cuts.ends(len(tokens)))):
            hashed.update(b"".join(token.to_bytes(TOKEN_BYTES, "little", signed=True) for token in tokens[start:end]))
            paths[end] = self.directory / (hashed.hexdigest() + SUFFIX)
        return paths

    def _delete_oldest(self, size: int) -> None:
        """Delete the least recently used files until the others have at most `size` bytes."""
        files = []
        for path in self.directory.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process deletes, too
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        for _, length, path in sorted(files):
            if sum(each for _, each, _ in files) <= size:
                return
            path.unlink(missing_ok=True)
            files.remove((_, length, path))


def _kept(layer: LayerKV, length: int) -> int:
    """Return how many tokens of a piece of this length a layer still needs after it."""
    return length if layer.window is None else min(length, layer.window - 1)


def _read(path: Path, cache: KVCache, length: int) -> dict[str, Tensor]:
    check_regular(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        checksum = (file.metadata() or {}).get("crc32")
    for index, layer in enumerate(cache.layers):
        expected = (_kept(layer, length), *layer.k[0].shape[1:])
        for name in (f"k.{index}", f"v.{index}"):
            tensor = tensors.get(name)
            if tensor is None or tuple(tensor.shape) != expected or tensor.dtype != layer.k[0].dtype:
                raise _Damaged(f"tensor {name} is missing or has another shape or dtype")
    if checksum != str(_checksum(tensors)):
        raise _Damaged("its checksum does not match")
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].view(torch.uint8).numpy().data, checksum)
    return checksum

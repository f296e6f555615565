"""A name for the weights of a checkpoint that changes whenever they do."""

import hashlib

from gesso.checkpoint.source import CheckpointSource


def identity(source: CheckpointSource) -> str:
    """Return a hash of a checkpoint: its configuration, and the name, size and time of change of every weight file.

    Hashing 15 GB of weights would take longer than reading a prompt. A copy of a checkpoint may have another identity.
    """
    hashed = hashlib.sha256(repr(source.config).encode())
    for file in source.files:
        status = file.stat()
        hashed.update(f"{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return hashed.hexdigest()

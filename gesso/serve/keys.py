"""API keys: read from a file or the environment, compared in constant time."""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gesso.errors import InputError
from gesso.files import read_text

VARIABLE = "GESSO_API_KEYS"
KEYS_LIMIT = 1 << 20  # bytes


def read_keys(file: Path | None) -> tuple[str, ...]:
    """Read keys from a file, one per line, or from the environment, separated by commas."""
    if file is None:
        keys = os.environ.get(VARIABLE, "").split(",")
    else:
        keys = [line for line in read_text(file, KEYS_LIMIT).splitlines() if not line.startswith("#")]
    stripped = tuple(key.strip() for key in keys if key.strip())
    if file is not None and not stripped:
        raise InputError(f"{file} contains no key; write one key per line")
    return stripped


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for child processes, which must not see the keys."""
    return {name: value for name, value in environment.items() if name != VARIABLE}


class Keys:
    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holder(self, authorization: bytes) -> str | None:
        """Return a name for the holder of a key that reveals nothing about the key, or None for an unknown key.

        All digests have the same length and all are compared, so the time taken reveals nothing either.
        """
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        holder = None
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(given, digest):
                holder = f"key-{number}"
        return holder if scheme.lower() == b"bearer" else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

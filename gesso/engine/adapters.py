"""The adapters that the requests of an engine may name, and when an unloaded one can be freed."""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gesso.checks import shown
from gesso.errors import InputError


@dataclass(frozen=True)
class Adapter:
    """An adapter that is attached to the model. `free` detaches it.

    Each has an epoch of its own; 0 is the base model. A row of the cache is reused only by requests of the same
    epoch, so an adapter never leaves its keys and values to a later one of the same name.
    """

    adapter_epoch: int
    free: Callable[[], None]


class AdapterTable:
    def __init__(self, changed: Callable[[], None]) -> None:
        """Make an empty table; `changed` tells the backend that adapters were attached or detached."""
        self.known: dict[str, Adapter] = {}
        self.retired: dict[str, Adapter] = {}  # only running requests may use them
        self._epochs, self._changed = itertools.count(1), changed

    def add(self, name: str, free: Callable[[], None]) -> None:
        """Add an adapter that has been attached to the model. After an error it is detached again."""
        try:
            self._changed()
        except Exception:  # the backend may keep factors in a form of its own, for which it lacks memory
            free()
            self._changed()
            raise
        self.known[name] = Adapter(next(self._epochs), free)

    def check(self, name: str | None) -> None:
        """Raise InputError unless a new request may name this adapter."""
        if name is not None and (not isinstance(name, str) or name not in self.known):
            known = ", ".join(self.known) or "none"
            raise InputError(f"there is no adapter called {shown(name)}; loaded are: {known}")

    def adapter_epoch(self, name: str | None) -> int:
        return 0 if name is None else self.known[name].adapter_epoch

    def retire(self, name: str) -> None:
        """Reject new requests with an adapter."""
        self.check(name)
        self.retired[name] = self.known.pop(name)

    def free_unused(self, used: Collection[str | None]) -> None:
        """Detach the retired adapters that no request uses."""
        for name in [name for name in self.retired if name not in used]:
            self.retired.pop(name).free()
            self._changed()

"""The captured passes of a backend: a pass, with the steps of its canvases, as one CUDA graph.

A thousand launches become one. What differs from pass to pass is in tensors that keep their addresses: tokens,
positions, cache addresses, adapters, seeds, settings. `packed.py` has passes over texts and canvases, of few
sizes; `token_pass.py` those that write token by token.

In Python a pass is captured when its size or shape is needed again. A server captures all packed passes before it
is ready.

On a CPU there are no graphs, and a captured pass runs its operations one by one. Tests use that for comparison.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from gesso.backends.base import Counts, Work
from gesso.backends.cuda.canvases import Slots
from gesso.backends.cuda.captured import Captured
from gesso.backends.cuda.compiling import compiling_only
from gesso.backends.cuda.packed import PackedPass, needed_by
from gesso.backends.cuda.pass_sizes import Expected, PassSize, smallest
from gesso.backends.cuda.passes import Passes
from gesso.backends.cuda.token_pass import CapturedTokens, Shape, shape_of
from gesso.model.cache import KVCache

MAX_TOKEN_PASSES = 32
MAX_COUNTED = 256  # passes whose uses are counted
# A capture takes 0.2 s, in which a server answers nobody. So it captures a pass that it did not expect only after so
# many uses.
PATIENCE = 8


class Graphs:
    """The captured passes of a backend."""

    def __init__(self, backend: Passes, expected: Expected | None, is_server: bool = False) -> None:
        """`is_server`: passes are captured before they are needed."""
        self.backend = backend
        self.can_capture = backend.can_capture
        self.expected = expected if self.can_capture and backend.can_pack else None
        self.is_server = is_server
        self.left = self.expected.sizes() if self.expected else []  # not captured yet
        self.packed: dict[PassSize, PackedPass] = {}
        self.token_passes: OrderedDict[Shape, CapturedTokens] = OrderedDict()  # the least recently used first
        self.uses: OrderedDict[PassSize | Shape, int] = OrderedDict()  # of passes that are not captured
        self.slots: Slots | None = None
        self.pool: Any = None  # graphs share memory, because one runs at a time and its results are copied

    def find(self, work: Sequence[Work], cache: KVCache) -> PackedPass | CapturedTokens | None:
        """Return the captured pass for this work, or None if there is none yet, or none can be captured."""
        if not self.can_capture:
            return None
        if self.expected is not None and (needed := needed_by(work, self.expected)) is not None:
            return self._find_packed(needed, cache)
        shape = shape_of(work)
        return None if shape is None else self._find_token_pass(shape, work, cache)

    def _find_packed(self, needed: PassSize, cache: KVCache) -> PackedPass | None:
        size = smallest([*self.packed, *self.left], needed)
        if size is None or size in self.packed:
            return None if size is None else self.packed[size]
        if self.is_server:
            larger = smallest(self.packed, needed)
            return self.packed[larger] if larger else self.capture(size, cache)
        return self.capture(size, cache) if self._uses(size) > 1 else None

    def _find_token_pass(self, shape: Shape, work: Sequence[Work], cache: KVCache) -> CapturedTokens | None:
        if shape not in self.token_passes:
            if self.is_server and self._uses(shape) <= PATIENCE:
                return None
            self.token_passes[shape] = CapturedTokens(self.backend, shape, work, cache)
            if len(self.token_passes) > MAX_TOKEN_PASSES:
                self.token_passes.popitem(last=False)
        self.token_passes.move_to_end(shape)
        token_pass = self.token_passes[shape]
        if token_pass.has_run and not token_pass.is_captured:
            self._capture(token_pass)
        return token_pass

    def _uses(self, key: PassSize | Shape) -> int:
        """Count a use of a pass that is not captured, and return how many there have been."""
        self.uses[key] = count = self.uses.pop(key, 0) + 1
        if len(self.uses) > MAX_COUNTED:
            self.uses.popitem(last=False)
        return count

    # --- capturing ------------------------------------------------------------------------------------------------

    def compile(self, cache: KVCache, counts: Counts) -> None:
        """Compile the kernels of the packed passes that are left, several at a time.

        If the kernels of the first pass have been compiled by an earlier process, so have most others.
        """
        first, *others = self.left
        before = counts.compilations
        with compiling_only():
            self._new(first, cache).dry_run()
        if counts.compilations > before:
            with compiling_only():
                for size in others:
                    self._new(size, cache).dry_run()

    def capture_next(self, cache: KVCache) -> None:
        """Capture the packed pass that a server needs most."""
        self.capture(self.left[0], cache)

    def capture(self, size: PassSize, cache: KVCache) -> PackedPass:
        """Run a packed pass without work, and capture it."""
        self.left.remove(size)  # also if it fails
        packed = self._new(size, cache)
        packed.dry_run()
        self._capture(packed)
        self.packed[size] = packed
        return packed

    def _new(self, size: PassSize, cache: KVCache) -> PackedPass:
        assert self.expected is not None
        if self.slots is None:
            self.slots = Slots(self.expected.batch, self.expected.canvas, self.backend.model)
        return PackedPass(self.backend, size, self.slots, self.expected, cache)

    def _capture(self, graph: Captured) -> None:
        is_first = not any(each.is_captured for each in (*self.packed.values(), *self.token_passes.values()))
        if graph.device.type == "cuda" and is_first:
            self.pool = torch.cuda.graph_pool_handle()  # a pool ends with the last graph that uses its memory
        graph.capture(self.pool)

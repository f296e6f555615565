"""The memory of tensors while code runs, for tests of what exists at a time."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made within, as long as they live, without the parameters of a module.

    `counts` chooses the tensors; by default, all count.
    """

    def __init__(self, module: nn.Module, counts: Callable[[Tensor], bool] = lambda tensor: True) -> None:
        super().__init__()
        self.counts = counts
        self.sizes = {parameter.untyped_storage()._cdata: 0 for parameter in module.parameters()}
        self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operation(*args, **(kwargs or {}))
        tensors = [tensor for tensor in tree_iter(results) if isinstance(tensor, Tensor) and self.counts(tensor)]
        for storage in (tensor.untyped_storage() for tensor in tensors):
            key = storage._cdata
            if key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, key)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return results

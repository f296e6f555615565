"""The CPU backend: the plain model, whose packed weights are multiplied by kernels instead of being unpacked.

- `formats`: which formats have kernels. `products`: products with tensors. `experts`, `norms`, `attention`: parts
  of the model that use kernels.
- `kernels`: the kernels, in Python that numba compiles.
- `threads`: kernels on the threads of torch.

Import these modules only where numba is installed, except `formats`.
"""

from functools import cache

from torch import nn

from gesso.backends.cpu.formats import KERNELS
from gesso.backends.torch import TorchBackend
from gesso.checkpoint.quantize.packed import Packed
from gesso.model.experts import Experts
from gesso.model.modules import RMSNorm
from gesso.model.transformer import DiffusionGemma


def supports(model: DiffusionGemma) -> bool:
    """Return whether the model is on a CPU and has weights that the kernels multiply."""
    has_kernels = any(isinstance(module, Packed) and module.format in KERNELS for module in model.modules())
    return model.device.type == "cpu" and has_kernels and is_installed()


@cache
def is_installed() -> bool:
    """Return whether numba is installed: `pip install gesso[cpu]`."""
    try:
        import numba  # noqa: F401
    except ImportError:  # also if its version does not fit that of numpy
        return False
    return True


class CpuBackend(TorchBackend):
    """Runs the plain model with kernels for packed weights."""

    def __init__(self, model: DiffusionGemma) -> None:
        from gesso.backends.cpu.attention import attend

        use_kernels(model)
        super().__init__(model)
        self.attend = attend

    def drop_captured(self) -> None:
        use_kernels(self.model)  # the weights have changed


def use_kernels(model: nn.Module) -> None:
    """Let the model's packed matrices, experts and norms use kernels wherever no gradient is needed."""
    from gesso.backends.cpu.experts import PackedExperts
    from gesso.backends.cpu.norms import KernelNorm
    from gesso.backends.cpu.products import Matrix

    for module in list(model.modules()):
        if isinstance(module, Packed) and module.format in KERNELS:
            module.product = Matrix.of(module)
        for name, child in module.named_children():
            if isinstance(child, Experts) and not isinstance(child, PackedExperts):
                setattr(module, name, PackedExperts(child))
            elif type(child) is RMSNorm:
                setattr(module, name, KernelNorm(child))

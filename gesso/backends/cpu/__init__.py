"""The CPU backend: the plain model, whose packed weights are multiplied by kernels instead of being unpacked.

- `token`: one token of text through all layers, in one kernel. `vocabulary`: the prediction of the next token.
- `formats`: which formats have kernels. `products`: products with tensors. `experts`, `norms`, `attention`, `mixtures`:
  parts of the model that use kernels.
- `kernels`: the kernels, in Python that numba compiles.
- `threads`: kernels on the threads of torch.

Import these modules only where numba is installed, except `formats`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gesso.backends.base import Piece
from gesso.backends.cpu.formats import KERNELS
from gesso.backends.torch import TorchBackend
from gesso.checkpoint.quantize.packed import Packed
from gesso.diffusion.prediction import Prediction
from gesso.model.cache import KVCache
from gesso.model.experts import Experts
from gesso.model.modules import RMSNorm
from gesso.model.transformer import DiffusionGemma

if TYPE_CHECKING:
    from gesso.backends.cpu.token import TokenPass


def supports(model: DiffusionGemma) -> bool:
    """Return whether the model is on a CPU and has weights that the kernels multiply."""
    has_kernels = any(isinstance(module, Packed) and module.format in KERNELS for module in model.modules())
    return model.device.type == "cpu" and has_kernels and is_installed()


@cache
def is_installed() -> bool:
    """Return whether numba is installed: `pip install 'gesso-lm[cpu]'`."""
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
        self.attend, self.token = attend, token_pass(model)

    def run(self, pieces: Sequence[Piece], cache: KVCache) -> list[Tensor]:
        return [hidden_SH for piece in pieces for hidden_SH in self._run(piece, cache)]

    @torch.no_grad()
    def _run(self, piece: Piece, cache: KVCache) -> list[Tensor]:
        is_token = piece.causal and len(piece.ids_S) == 1 and piece.adapter is None and piece.image_SH is None
        if self.token is None or not is_token or not self.token.can_run(cache):
            return super().run([piece], cache)
        return [self.token.run(piece.ids_S, cache, piece.row)]

    @torch.no_grad()
    def predict(
        self,
        hidden_TH: Tensor,
        temperature_T: Tensor,
        key_T2: Tensor,
        lengths: Sequence[int],
        soft: bool = True,
        likely: bool = False,
    ) -> Prediction:
        from gesso.backends.cpu import vocabulary

        head, softcap = vocabulary.head_of(self.model), self.model.config.final_logit_softcapping
        if head is None:
            return super().predict(hidden_TH, temperature_T, key_T2, lengths, soft, likely)
        predictions = []
        given = hidden_TH, temperature_T, key_T2
        for hidden_CH, temperature_C, key_C2 in zip(*(tensor.split(list(lengths)) for tensor in given), strict=True):
            length = len(hidden_CH)
            prediction = None
            if length > 1 or soft or likely:
                prediction = super().predict(hidden_CH, temperature_C, key_C2, [length], soft, likely)
            if length == 1:  # also beside canvases, so that its bits do not depend on them
                by_kernel = vocabulary.predict(head, softcap, hidden_CH, temperature_C.item(), key_C2)
                prediction = by_kernel if prediction is None else _with_statistics_of(prediction, by_kernel)
            assert prediction is not None
            predictions.append(prediction)
        return Prediction.cat(predictions)

    def drop_captured(self) -> None:
        use_kernels(self.model)  # the weights have changed
        self.token = token_pass(self.model)


def _with_statistics_of(prediction: Prediction, other: Prediction) -> Prediction:
    return replace(
        prediction,
        candidate_C=other.candidate_C,
        argmax_C=other.argmax_C,
        confidence_C=other.confidence_C,
        entropy_C=other.entropy_C,
    )


def token_pass(model: DiffusionGemma) -> "TokenPass | None":
    """Return the pass of one token for a model that uses kernels; None if it has parts without kernels."""
    from gesso.backends.cpu import token

    return token.TokenPass(model) if token.supports(model) else None


def use_kernels(model: nn.Module) -> None:
    """Let the model's packed matrices, experts and norms use kernels wherever no gradient is needed."""
    from gesso.backends.cpu.experts import PackedExperts
    from gesso.backends.cpu.mixtures import mixture
    from gesso.backends.cpu.norms import KernelNorm
    from gesso.backends.cpu.products import PackedMatrix

    for module in list(model.modules()):
        if isinstance(module, Packed) and module.format in KERNELS:
            module.product = PackedMatrix.of(module)
            module.mixture = partial(mixture, module.product) if len(module.shape) == 2 else None
        for name, child in module.named_children():
            if isinstance(child, Experts) and not isinstance(child, PackedExperts):
                setattr(module, name, PackedExperts(child))
            elif type(child) is RMSNorm:
                setattr(module, name, KernelNorm(child))

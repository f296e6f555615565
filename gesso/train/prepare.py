"""Prepare a model for training: grouped experts, and on a GPU kernels that unpack its quantized weights."""

from gesso.model.transformer import DiffusionGemma
from gesso.train.experts import make_grouped


def prepare(model: DiffusionGemma) -> None:
    make_grouped(model)
    if model.device.type == "cuda":
        from gesso.backends.cuda.kernels.widen import use_kernels

        use_kernels(model, model.dtype)

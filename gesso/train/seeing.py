"""The embeddings of the images of a batch, from the vision tower of the model that is trained.

The embeddings of a frozen tower never change, so they are kept for the next epoch, in host memory.

P patches of an image, I values of a patch, S soft tokens of all images, H hidden.
"""

from collections import OrderedDict

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma
from gesso.train.batch import Batch, BatchImage

LIMIT = 4 * 10**9  # bytes of embeddings to keep; an image of 280 tokens has 1.6 MB in the 26B


class Seeing:
    """Embed the images of batches. Frozen towers have a cache, trained ones take gradients."""

    def __init__(self, model: DiffusionGemma, recompute: bool = False) -> None:
        self.model = model
        self.recompute = recompute
        self.cache: OrderedDict[int, Tensor] = OrderedDict()  # by digest, the last used at the end
        self.cached_bytes = 0

    @property
    def trains(self) -> bool:
        vision = self.model.vision
        return vision is not None and any(parameter.requires_grad for parameter in vision.parameters())

    def soft_tokens(self, batch: Batch) -> Tensor | None:
        """Return the embeddings [S, H] of all images of a batch, in order; None if it has none."""
        if not batch.images:
            return None
        if self.model.vision is None or batch.pixels_PI is None:
            raise InputError("a batch has images, but the model has no vision tower; choose a checkpoint that has one")
        pixels = batch.pixels_PI.split([image.rows * image.columns for image in batch.images])
        embed = self._trained_embedding if self.trains else self._cached_embedding
        return torch.cat([embed(part_PI, image) for part_PI, image in zip(pixels, batch.images, strict=True)])

    def zero(self) -> Tensor | None:
        """Return a zero with a gradient for every trained weight of the tower: a batch may have no image."""
        if not self.trains or self.model.vision is None:
            return None
        return 0.0 * torch.stack([p.float().sum() for p in self.model.vision.parameters() if p.requires_grad]).sum()

    def _trained_embedding(self, pixels_PI: Tensor, image: BatchImage) -> Tensor:
        if not self.recompute:
            return self.model.see(pixels_PI, image.rows, image.columns)
        embedding_SH: Tensor = checkpoint(self.model.see, pixels_PI, image.rows, image.columns, use_reentrant=False)
        return embedding_SH

    @torch.no_grad()
    def _cached_embedding(self, pixels_PI: Tensor, image: BatchImage) -> Tensor:
        if image.digest in self.cache:
            self.cache.move_to_end(image.digest)
        else:
            embedding_SH = self.model.see(pixels_PI, image.rows, image.columns).cpu()
            self.cache[image.digest] = embedding_SH
            self.cached_bytes += embedding_SH.nbytes
            while self.cached_bytes > LIMIT and len(self.cache) > 1:
                _, evicted_SH = self.cache.popitem(last=False)
                self.cached_bytes -= evicted_SH.nbytes
        return self.cache[image.digest].to(self.model.device)

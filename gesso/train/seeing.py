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
from gesso.train.batch import Batch

LIMIT = 4 * 10**9  # bytes of embeddings to keep; an image of 280 tokens has 1.6 MB in the 26B


class Seeing:
    def __init__(self, model: DiffusionGemma, recompute: bool = False) -> None:
        self.model, self.recompute = model, recompute
        self.kept: OrderedDict[int, Tensor] = OrderedDict()  # by digest, the one used last at the end
        self.kept_bytes = 0

    @property
    def trains(self) -> bool:
        vision = self.model.vision
        return vision is not None and any(parameter.requires_grad for parameter in vision.parameters())

    def soft_tokens(self, batch: Batch) -> Tensor | None:
        """Return the embeddings [S, H] of all images of a batch, in order; None if it has none."""
        if not batch.seen:
            return None
        if self.model.vision is None or batch.pixels_PI is None:
            raise InputError("a batch has images, but the model has no vision tower; choose a checkpoint that has one")
        pixels = batch.pixels_PI.split([one.rows * one.columns for one in batch.seen])
        if self.trains:
            return torch.cat(
                [self._look(part, one.rows, one.columns) for part, one in zip(pixels, batch.seen, strict=True)]
            )
        found = []
        for part, one in zip(pixels, batch.seen, strict=True):
            if (kept := self.kept.get(one.digest)) is not None:
                self.kept.move_to_end(one.digest)
            else:
                with torch.no_grad():
                    kept = self.model.see(part, one.rows, one.columns).cpu()
                self.kept[one.digest] = kept
                self.kept_bytes += kept.nbytes
                while self.kept_bytes > LIMIT and len(self.kept) > 1:
                    self.kept_bytes -= self.kept.popitem(last=False)[1].nbytes
            found.append(kept.to(self.model.device))
        return torch.cat(found)

    def zero(self) -> Tensor | None:
        """Return a zero with a gradient for every trained weight of the tower: a batch may have no image."""
        if not self.trains or self.model.vision is None:
            return None
        return 0.0 * torch.stack([p.float().sum() for p in self.model.vision.parameters() if p.requires_grad]).sum()

    def _look(self, pixels_PI: Tensor, rows: int, columns: int) -> Tensor:
        if not self.recompute:
            return self.model.see(pixels_PI, rows, columns)
        found: Tensor = checkpoint(self.model.see, pixels_PI, rows, columns, use_reentrant=False)
        return found

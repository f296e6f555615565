"""The features of images that were seen before, so that a second question about an image takes no vision pass.

They are in host memory: copying those of an image to a GPU takes less than a millisecond, and GPU memory is scarce.

S soft tokens of an image, H hidden.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from gesso.images.image import Image

LIMIT = 128 * 10**6  # bytes of all features; an image of 280 tokens has 1.6 MB in the 26B, one of 1,120 has 6.3


class Seen:
    """Features by the digest of their image. The least recently used are dropped beyond `limit` bytes."""

    def __init__(self, see: Callable[[Image], Tensor], device: torch.device, limit: int = LIMIT) -> None:
        self.see, self.device, self.limit = see, device, limit
        self.held: OrderedDict[int, Tensor] = OrderedDict()
        self.read = self.kept = 0  # calls that took a vision pass, and calls that did not

    def features(self, image: Image) -> Tensor:
        """Return the features [S, H] of an image on the device. The caller must not change them."""
        held_SH = self.held.pop(image.digest, None)
        self.read, self.kept = self.read + (held_SH is None), self.kept + (held_SH is not None)
        found_SH = self.see(image) if held_SH is None else held_SH.to(self.device)
        self.held[image.digest] = found_SH.cpu() if held_SH is None else held_SH
        while self.nbytes > self.limit:
            self.held.popitem(last=False)
        return found_SH

    @property
    def nbytes(self) -> int:
        return sum(features_SH.nbytes for features_SH in self.held.values())

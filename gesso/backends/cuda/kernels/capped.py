"""Stored logits under the softcap at a step's temperature, and the tilings of products with the vocabulary.

Instead of tanh, these kernels use differences of distances to the cap, in powers of two.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from gesso.backends.cuda.kernels.linear import SHARED_REST
from gesso.backends.cuda.kernels.special import exp2, reciprocal
from gesso.cards.card import Card

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)  # below any logit, but finite: minus infinity times a probability of zero would be NaN


class Product(NamedTuple):
    """The tiling of a product: a program computes `rows` x `columns` of it, in steps of `inner_bytes`."""

    rows: int
    columns: int
    warps: int
    stages: int
    inner_bytes: int = 128  # a row of the shared-memory swizzle: 64 bfloat16, 32 float32

    def inner(self, dtype: torch.dtype) -> int:
        return self.inner_bytes // dtype.itemsize

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.columns) * self.inner_bytes


def no_epilogue(product: Product) -> int:
    return 0


def fitted(products: Sequence[Product], card: Card, epilogue_bytes: Callable[[Product], int] = no_epilogue) -> Product:
    """Return the first tiling of which at least two stages and the epilogue fit the card's shared memory, with as many
    of its stages as fit.
    """
    for product in products:
        left = card.block_bytes - SHARED_REST - epilogue_bytes(product)
        for stages in range(product.stages, 1, -1):
            if card.tiles_in_memory(stages) * product.stage_bytes <= left:
                return product._replace(stages=stages)
    raise AssertionError("the last tiling of every table fits every card")


@triton.jit
def distance_to_cap(stored, softcap, PTX: tl.constexpr):
    """Return the distance of a logit to the cap, relative to the range from cap to -cap: (1 - tanh(x / softcap)) / 2.

    It is precise near the cap, where the likely tokens are. A difference of two, times `span_of`, is a difference of
    logits at the step's temperature, in powers of two.
    """
    return reciprocal(1.0 + exp2(stored.to(tl.float32) * (2.0 * LOG2E / softcap), PTX), PTX)


@triton.jit
def logit_at(distance, softcap):
    """Return the logit at this distance to the cap."""
    return softcap * (1.0 - 2.0 * distance)


@triton.jit
def first_of_largest(value, index, NONE: tl.constexpr):
    """Return the lowest index of the largest value. NaN does not equal itself; if it is the largest, return the last
    index.
    """
    return tl.minimum(tl.min(tl.where(value == tl.max(value, 0), index, NONE), 0), NONE - 1)


@triton.jit
def span_of(softcap, temperature):
    """Return the range of logits at a temperature, in powers of two."""
    return 2.0 * LOG2E * softcap / temperature

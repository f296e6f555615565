"""What the launch of a feed-forward takes: the matrices, and the list of its tiles.

R pairs, N tiles of rows.
"""

from dataclasses import dataclass

from torch import Tensor

from gesso.backends.cuda.kernels.experts import Matrices
from gesso.backends.cuda.kernels.linear import Matrix


@dataclass(frozen=True)
class FeedForward:
    """The matrices of a feed-forward: gate and up of all experts, their down, and those of the dense MLP."""

    gate_up: Matrices
    down: Matrices
    dense_gate: Matrix
    dense_up: Matrix
    dense_down: Matrix

    @property
    def dense(self) -> tuple[Matrix, Matrix, Matrix]:
        return self.dense_gate, self.dense_up, self.dense_down


@dataclass(frozen=True)
class TileList:
    """Pairs sorted by expert, and the list of their tiles, without gaps."""

    order_R: Tensor  # the pair at each place of the sorted order
    expert_N: Tensor  # the expert of each tile
    first_N: Tensor  # the place of its first pair
    rows_N: Tensor  # the number of its pairs
    count_1: Tensor  # the number of tiles; the rest of the list is not set
    counters: Tensor  # zeros for the kernel: one, one per possible tile of pairs, one per tile of tokens

    def tensors(self) -> tuple[Tensor, ...]:
        return self.order_R, self.expert_N, self.first_N, self.rows_N, self.count_1, self.counters

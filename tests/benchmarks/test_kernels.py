"""The benchmark of kernels tries the tilings that it names."""

import pytest
import torch

from gesso.cards.running import INTERPRETER


def test_the_tested_tiling_is_the_one_that_runs():
    kernels = pytest.importorskip("benchmarks.kernels")
    experts, linear = kernels.experts, kernels.linear
    tried = 0
    for name, candidate in kernels.candidates().items():
        for tiling in candidate.tilings:
            with kernels._tiled(candidate, tiling):
                table, key = candidate.table, candidate.key
                if table in (experts.UP, experts.DOWN):
                    matrices = experts.Matrices(torch.empty(1, 1, 1, dtype=key))
                    found = [experts.choose_tiling(table, matrices, tokens) for tokens in (1, 256, 2048)]
                elif table in (linear.PLAIN, linear.GATED):
                    found = [
                        linear.choose_tiling(table, tokens, [2816], key, INTERPRETER)[0] for tokens in (1, 256, 2048)
                    ]
                else:
                    found = [kernels.experts_four_bit.choose_tiling(*key, tokens) for tokens in (1, 256, 2048)]
                assert set(found) == {tiling}, name
                tried += 1
    assert tried > 100

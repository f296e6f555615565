"""Hash kernels against the plain hashes, to the bit: in Triton's interpreter, or on a GPU.

B canvases, C positions, T rows of keys, V tokens.
"""

import random

import pytest
import torch
import triton
import triton.language as tl

from gesso.backends.cuda.kernels import hash as hash_kernel
from gesso.backends.cuda.kernels.hash import token_hash, token_uniform, uniform
from gesso.diffusion import hash

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def _random(key_T2, hash_TV, uniform_TV, same_TV, V: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    token = tl.arange(0, BLOCK)
    key_0, key_1 = tl.load(key_T2 + row * 2), tl.load(key_T2 + row * 2 + 1)
    hashes = token_hash(key_0, key_1, token)
    tl.store(hash_TV + row * V + token, hashes, mask=token < V)
    tl.store(uniform_TV + row * V + token, uniform(hashes), mask=token < V)
    tl.store(same_TV + row * V + token, token_uniform(key_0, key_1, token), mask=token < V)


def test_token_hash_kernel_matches_plain_hash_to_the_bit():
    signs = torch.tensor([[-1, -1], [-(2**31), 2**31 - 1], [2**31 - 1, -(2**31)], [0, 0], [7, -7]], dtype=torch.int32)
    key_T2 = torch.cat([signs, hash.position_keys(5, 0, 1, 0, 3, signs.device)]).to(DEVICE)
    hash_TV = torch.empty(len(key_T2), 1000, dtype=torch.int32, device=DEVICE)
    uniform_TV, same_TV = (torch.empty(len(key_T2), 1000, device=DEVICE) for _ in range(2))
    _random[(len(key_T2),)](key_T2, hash_TV, uniform_TV, same_TV, V=1000, BLOCK=1024)
    expected_TV = hash.token_hash(key_T2, 1000)
    assert torch.equal(hash_TV, expected_TV) and (expected_TV < 0).any() and (expected_TV > 0).any()
    assert torch.equal(uniform_TV, hash.uniform(expected_TV)) and torch.equal(same_TV, uniform_TV)


SEEDS = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1]


def canvases(count):
    """Return seeds, canvases and steps, as integers and as the tensors of a captured graph."""
    seeds = random.sample([*SEEDS, *(random.getrandbits(64) for _ in SEEDS)], count)
    indices = [random.choice([0, 1, 7 + (1 << 24), 2**31 + 3]) for _ in range(count)]
    steps = [random.randrange(1, 500) for _ in range(count)]
    seed_B = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds], device=DEVICE)
    step_B = torch.tensor(steps, dtype=torch.float64, device=DEVICE)
    return list(zip(seeds, indices, steps, strict=True)), (seed_B, torch.tensor(indices, device=DEVICE), step_B)


# One position; more than one program's, exactly one program's, and less.
@pytest.mark.parametrize("count, length", [(1, 1), (1, 300), (2, 256), (3, 100)])
def test_position_hash_kernel_matches_each_canvas_alone(count, length):
    random.seed(100 * count + length)
    for stream in (0, 1, 2):
        numbers, tensors = canvases(count)
        keys = [hash.position_keys(*each, stream, length, DEVICE) for each in numbers]
        assert torch.equal(hash_kernel.position_keys(*tensors, stream, length), torch.stack(keys))
        for limit in (50, 262144, 2**31 - 1):
            tokens = [hash.position_tokens(*each, stream, length, limit, DEVICE) for each in numbers]
            assert torch.equal(hash_kernel.position_tokens(*tensors, stream, length, limit), torch.stack(tokens))

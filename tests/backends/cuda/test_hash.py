"""Hash kernels against the plain hashes, to the bit: in Triton's interpreter, or on a GPU.

T rows of keys, V tokens.
"""

import torch
import triton
import triton.language as tl

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

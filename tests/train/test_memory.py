"""The message when training runs out of GPU memory."""

import pytest
import torch

from gesso.errors import GessoError
from gesso.train.memory import explained

TORCH = "CUDA out of memory. Tried to allocate 1.48 GiB. GPU 0 has 139.81 GiB, 0.30 GiB is free. Process 7 has more."


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (TORCH, r"GPU memory \(Tried to allocate 1\.48 GiB; GPU 0 has 139\.81 GiB, 0\.30 GiB is free\)\. Quantize"),
        ("CUDA out of memory", r"GPU memory\. Quantize"),
    ],
)
def test_message_has_the_size_that_failed_and_advice(reason, shown):
    with pytest.raises(GessoError, match=shown), explained():
        raise torch.OutOfMemoryError(reason)

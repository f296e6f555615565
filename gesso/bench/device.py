"""Wait for asynchronous GPU work before reading a clock."""

import torch


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""What a GPU does behind the host's back has to be waited for before a clock is read."""

import torch


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

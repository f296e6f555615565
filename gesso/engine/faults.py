"""Errors of a pass: which of them end the process, and predictions that are not finite."""

import traceback

import torch

from gesso.diffusion.canvas import Canvas


def is_fatal(error: Exception) -> bool:
    """Whether an error leaves the accelerator unusable for this process, as an illegal memory access does.

    Out of memory is not among them: torch raises OutOfMemoryError for it, which is no AcceleratorError. A kernel
    launched by Triton reports the same errors as a RuntimeError.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    accelerator: type[Exception] | None = getattr(torch, "AcceleratorError", None)  # torch may be older than the class
    if accelerator is not None and isinstance(error, accelerator):
        return True
    return "Triton Error [CUDA]" in str(error) and "out of memory" not in str(error)


def drop_frames(error: BaseException | None) -> None:
    """Replace the traceback of an error by a note: its frames, and those that called them, hold tensors of the pass.

    `traceback.clear_frames` would leave those of functions that still run, and they are kept when they return.
    """
    while error is not None:
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
            error.__traceback__ = None
        error = error.__context__ or error.__cause__


def check_finite(canvas: Canvas) -> None:
    """Raise RuntimeError if the prediction that ended a canvas has NaN or infinity in it.

    Only then, and not at every step, because the host waits for the device here: at its end a canvas is read anyway.
    """
    last = canvas.history[-1]
    finite_C = torch.isfinite(last.entropy_C) & torch.isfinite(last.confidence_C)
    if not finite_C.all():
        position = int((~finite_C).nonzero()[0])
        raise RuntimeError(
            f"non-finite prediction: canvas {canvas.index}, step {canvas.step}, position {position} has an entropy of "
            f"{last.entropy_C[position].item()} and a confidence of {last.confidence_C[position].item()}; "
            "the weights or the activations overflow in this dtype"
        )

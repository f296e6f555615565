"""Errors of a pass: which of them end the process, and predictions that are not finite."""

import traceback

import torch

from gesso.diffusion.canvas import Canvas


def is_fatal(error: Exception) -> bool:
    """Return whether an error leaves the accelerator unusable for this process, as an illegal memory access does.

    Out of memory is not fatal: torch raises OutOfMemoryError, which is not an AcceleratorError. Kernels launched by
    Triton report the same errors as RuntimeError.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    # older versions of torch lack the class
    accelerator: type[Exception] | None = getattr(torch, "AcceleratorError", None)
    if accelerator is not None and isinstance(error, accelerator):
        return True
    return "Triton Error [CUDA]" in str(error) and "out of memory" not in str(error)


def drop_frames(error: BaseException | None) -> None:
    """Replace the traceback of an error with a note. Its frames, and their callers, keep tensors of the pass alive.

    `traceback.clear_frames` would skip functions that are still running, whose frames survive their return.
    """
    while error is not None:
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
            error.__traceback__ = None
        error = error.__context__ or error.__cause__


def check_finite(canvas: Canvas) -> None:
    """Raise RuntimeError if the prediction that ended a canvas contains NaN or infinity.

    This makes the host wait for the device, so it is not done at every step. A finished canvas is read anyway.
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

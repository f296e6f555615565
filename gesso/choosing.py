"""The checkpoint that an alias stands for on a device."""

from gesso.checkpoint.aliases import CheckpointChoice


def choose_here(device: str | None, memory: float | str, quantize: str | None) -> CheckpointChoice:
    """Return the checkpoint for a device, found by torch in this process."""
    from gesso.loading import choose_checkpoint, find_device

    return choose_checkpoint(find_device(device), memory, quantize)


def choose_apart(device: str | None, memory: float | str, quantize: str | None) -> CheckpointChoice:
    """Return the same from a process that then ends.

    To ask a GPU for its memory, a process takes some of it. A server does not need it in its own process.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(choose_here, device, memory, quantize).result()

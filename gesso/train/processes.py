"""The processes of a run, and how work is spread over them: those of torchrun, and the workers that prepare batches."""

import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from gesso.train.batch import Batch
from gesso.train.objective import Objective

Prepared = tuple[int, Batch]  # number of the batch in the run


def join_processes() -> torch.device:
    """The device of this process; under torchrun, after it has met the others."""
    if "RANK" not in os.environ:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def shard(objective: Objective) -> None:
    """FSDP2: every process keeps its part of each layer, and has a layer whole only while it runs."""
    from torch.distributed.fsdp import fully_shard

    for layer in objective.model.decoder.layers:
        fully_shard(layer)
    fully_shard(objective)


class Feed(IterableDataset[Prepared]):
    """Batches from a number on; each worker of a loader makes its share of them."""

    def __init__(self, make: Callable[[int, int], Iterator[Prepared]], first: int) -> None:
        self.make, self.first = make, first

    def __iter__(self) -> Iterator[Prepared]:
        worker = get_worker_info()
        return self.make(self.first, 1) if worker is None else self.make(self.first + worker.id, worker.num_workers)

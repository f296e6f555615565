"""The processes of a run: those of torchrun, and the workers that prepare batches."""

import os
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info

from gesso.train.batch import Batch

Prepared = tuple[int, Batch]  # number of the batch in the run, and the batch


def join_processes() -> torch.device:
    """Return the device of this process. Under torchrun, join its process group first."""
    if "RANK" not in os.environ:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def shard(module: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Shard the weights with FSDP2: a process keeps its part of each layer and gathers a layer only while it runs."""
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    fully_shard(module)


def in_any_process(condition: bool, device: torch.device) -> bool:
    """Return whether the condition holds in at least one process."""
    if not dist.is_initialized():
        return condition
    flag = torch.tensor(int(condition), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


class BatchStream(IterableDataset[Prepared]):
    """Batches from number `first` on; each worker of a DataLoader makes its share of them."""

    def __init__(self, make: Callable[[int, int], Iterator[Prepared]], first: int) -> None:
        self.make, self.first = make, first

    def __iter__(self) -> Iterator[Prepared]:
        worker = get_worker_info()
        return self.make(self.first, 1) if worker is None else self.make(self.first + worker.id, worker.num_workers)

"""Training in processes that are forked from one that has imported torch, once for all tests of a file."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from gesso.checkpoint import write
from gesso.train import state
from gesso.train.recipe import load
from gesso.train.run import train

MODULES = {"state": state, "write": write}


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process of one of the functions below.

    It is not forked from pytest: where torch finds a GPU, autograd does not survive that.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def train_and_die(recipe: Path, module: str, name: str, calls: int) -> None:
    """Train a recipe, and kill this process after a number of calls of a function that writes."""
    _prepare()
    function = getattr(MODULES[module], name)
    left = calls

    def write_and_die(*arguments: Any, **options: Any) -> None:
        nonlocal left
        function(*arguments, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(MODULES[module], name, write_and_die)
    train(load(recipe), report=lambda _: None)


def train_in_group(rank: int, runs: Sequence[tuple[Path, int]]) -> None:
    """Train recipes as one of two processes. Each run has the port of its process group."""
    _prepare()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for recipe, port in runs:
        os.environ["MASTER_PORT"] = str(port)
        train(load(recipe), report=lambda _: None)


def _prepare() -> None:
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # as in conftest.py

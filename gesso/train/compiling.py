"""Announce compilations: `run.compile` compiles for each batch shape, for up to minutes in which nothing is printed."""

import logging
from typing import Any

import torch
from torch import nn

from gesso.train.layout import Layout

logger = logging.getLogger("gesso")


def announce_compilations(objective: nn.Module) -> None:
    """Log a line before the first batch of each shape, to train on or to evaluate."""
    seen: set[tuple[bool, int, int, int]] = set()

    def announce(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        layout: Layout = arguments[0].layout
        learns = torch.is_grad_enabled()
        shape = learns, layout.text, len(layout.at_K), layout.canvas_length
        if shape in seen:
            return
        lengthened = any(text != layout.text for _, text, *_ in seen)
        advice = "; a larger data.pad_to gives fewer lengths" if lengthened else ""
        logger.warning("compiling to %s %s%s", "train on" if learns else "evaluate", _described(layout), advice)
        seen.add(shape)

    objective.register_forward_pre_hook(announce)


def _described(layout: Layout) -> str:
    widths = set(layout.width_B.tolist())
    rows = f"{_counted(len(layout.width_B), 'row', 'rows')} of {max(widths):,} tokens"
    if len(widths) > 1:
        rows = f"{layout.text:,} tokens of packed rows"
    return f"{rows} and {_counted(len(layout.at_K), 'canvas', 'canvases')} of {layout.canvas_length}"


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"

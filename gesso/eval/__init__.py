"""Evaluation tasks: items, prompt format and scorer of each."""

from collections.abc import Callable
from typing import Any

from gesso.errors import InputError
from gesso.eval.decide import Decide
from gesso.eval.own_data import OwnData
from gesso.eval.python_infill import PythonInfill
from gesso.eval.structured.task import Structured
from gesso.eval.sudoku.task import Sudoku
from gesso.eval.task import Item, Task

__all__ = ["TASKS", "Decide", "Item", "OwnData", "PythonInfill", "Structured", "Sudoku", "Task", "task"]

TASKS: dict[str, Callable[..., Task]] = {
    "sudoku": Sudoku,
    "python_infill": PythonInfill,
    "structured": Structured,
    "decide": Decide,
}


def task(name: str, **options: Any) -> Task:
    """Return a task by name. Options are the fields of its class."""
    if name not in TASKS:
        raise InputError(f"unknown task {name!r}; expected {', '.join(TASKS)}")
    try:
        return TASKS[name](**options)
    except TypeError as error:
        raise InputError(f"task {name}: {error}") from None

"""Tasks: data, prompt format and scorer of each, used by training and evaluation."""

from collections.abc import Callable
from typing import Any

from gesso.errors import InputError
from gesso.eval.python_infill import PythonInfill
from gesso.eval.structured import Structured
from gesso.eval.sudoku import Sudoku
from gesso.eval.task import Item, Task

__all__ = ["TASKS", "Item", "PythonInfill", "Structured", "Sudoku", "Task", "task"]

TASKS: dict[str, Callable[..., Task]] = {"sudoku": Sudoku, "python_infill": PythonInfill, "structured": Structured}


def task(name: str, **options: Any) -> Task:
    """A task by name; its options are the fields of its class."""
    if name not in TASKS:
        raise InputError(f"unknown task {name!r}; known are {', '.join(TASKS)}")
    try:
        return TASKS[name](**options)
    except TypeError as error:
        raise InputError(f"task {name}: {error}") from None

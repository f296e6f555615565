"""Evaluation tasks: items, prompt format and scorer of each.

A task of your own is a class like `gesso.eval.task.Task`. `evaluate` runs tasks, `estimate` and `paired` give
intervals, and `plot` draws.
"""

from collections.abc import Callable
from typing import Any

from gesso.errors import InputError
from gesso.eval.decide import Decide
from gesso.eval.own_data import OwnData
from gesso.eval.python_infill import PythonInfill
from gesso.eval.structured.task import Structured
from gesso.eval.sudoku.task import Sudoku
from gesso.eval.task import Item, Task
from gesso.own_code import load_own

__all__ = ["TASKS", "Decide", "Item", "OwnData", "PythonInfill", "Structured", "Sudoku", "Task", "task"]

TASKS: dict[str, Callable[..., Task]] = {
    "sudoku": Sudoku,
    "python_infill": PythonInfill,
    "structured": Structured,
    "decide": Decide,
}


def find_class(name: str) -> Callable[..., Task]:
    """Return the class of a task by its name, or of one of your own by `module:class`."""
    if name in TASKS:
        return TASKS[name]
    if ":" not in name:
        raise InputError(f"unknown task {name!r}; expected {', '.join(TASKS)}, or module:class for one of your own")
    task_class: Callable[..., Task] = load_own(name, "a task of your own", "examples.graphs.task:Graphs")
    return task_class


def task(name: str, **options: Any) -> Task:
    """Return a task by its name, or one of your own by `module:class`. Options are the fields of its class."""
    try:
        return find_class(name)(**options)
    except TypeError as error:
        raise InputError(f"task {name}: {error}") from None

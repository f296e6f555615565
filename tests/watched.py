"""Functions of a test around operations of an object that the test gives to the code."""

from collections.abc import Callable
from functools import partial
from typing import Any


class Watched:
    """An object, such as a backend or an engine, with functions of a test around some of its operations.

    Each function has the name of its operation, and takes the operation as its first argument. It may record the
    arguments, change the result or raise an error.
    """

    def __init__(self, watched: Any, **around: Callable[..., Any]) -> None:
        self._watched = watched
        self._around = around

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._watched, name)
        return partial(self._around[name], operation) if name in self._around else operation

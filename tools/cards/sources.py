"""Hashes of kernels: of what they compute, not of comments and docstrings."""

import ast
import hashlib
import inspect
import textwrap
from typing import Any


def source_hash(function: Any) -> str:
    """Return a hash of the syntax tree of a kernel, and of all functions and constants of ours that it uses."""
    parts: dict[str, str] = {}
    _collect(function, parts)
    text = "\n".join(f"{name}: {part}" for name, part in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _collect(function: Any, parts: dict[str, str]) -> None:
    """Add a function and all that it uses to `parts`."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    name = f"{plain.__module__}.{plain.__qualname__}"
    if name in parts:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(plain)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    if ast.get_docstring(definition, clean=False) is not None:
        del definition.body[0]
    parts[name] = ast.dump(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in plain.__globals__:
            _collect_used(f"{plain.__module__}.{node.id}", plain.__globals__[node.id], parts)


def _collect_used(name: str, used: Any, parts: dict[str, str]) -> None:
    function = getattr(used, "fn", used)
    if inspect.isfunction(function):
        if not function.__module__.startswith(("triton.", "torch")):
            _collect(used, parts)
    elif not inspect.ismodule(used):
        text = repr(getattr(used, "value", used))
        parts[name] = type(used).__name__ if " at 0x" in text else text

"""The tiny model with engines that tests configure."""

from collections.abc import Callable
from typing import Any

from gesso.api import Gesso
from gesso.backends.torch import TorchBackend
from gesso.engine.driver import Driver
from gesso.engine.engine import Engine
from tests.backends.passes import CapturesPlainly
from tests.watched import Watched


def with_engine(g: Gesso, **options: Any) -> Gesso:
    """Return the model with another engine, which has these options."""
    other = Gesso(g.model, g.tokenizer, g.defaults, g.directory, max_batch=4, max_length=None)
    other.engine = Engine(g.model, g.decode, **{"max_batch": 4} | options)
    other.driver = Driver(other.engine)
    return other


def with_graphs(g: Gesso, options: dict[str, Any] | None = None, **around: Callable[..., Any]) -> Gesso:
    """Return the model with an engine that captures passes, and these functions around operations of its backend."""
    return with_engine(g, backend=Watched(CapturesPlainly(g.model), **around), **options or {})


def watched_engine(g: Gesso, options: dict[str, Any] | None = None, **around: Callable[..., Any]) -> Engine:
    """Return an engine of plain passes, with these functions around operations of its backend."""
    return Engine(g.model, g.decode, backend=Watched(TorchBackend(g.model), **around), **options or {})


def has_captured(g: Gesso) -> bool:
    """Return whether the engine has captured passes."""
    graphs = g.engine.runner.backend.graphs  # type: ignore[attr-defined]
    return bool(graphs.packed or graphs.token_passes)

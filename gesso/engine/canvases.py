"""The canvases of a request, one after another."""

from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.verified import begin
from gesso.engine.request import Request
from gesso.engine.running import Running
from gesso.model.config import Config


def first_canvas(request: Request, process: Process, config: Config, attempt: int = 0) -> Canvas:
    """Return the first canvas of a request. `attempt` is 1 if it is drawn again."""
    if request.diffusion.verified:
        return begin(process, 0, request.canvas_length(config), request.prompt[-1])
    return _blank(request, process, config, 0, 0, attempt)


def next_canvas(running: Running, tokens: list[int], config: Config) -> Canvas:
    """Return the canvas after these tokens of the last one have been committed."""
    done = len(running.tokens)
    if running.request.diffusion.verified:
        return begin(running.process, done, running.canvas_length, tokens[-1], running.canvas.draft)
    return _blank(running.request, running.process, config, running.canvas.index + 1, done)


def _blank(request: Request, process: Process, config: Config, index: int, done: int, attempt: int = 0) -> Canvas:
    """Return a canvas of noise that begins after `done` new tokens."""
    length = request.length_after(done, config)
    pins = {at - done: token for at, token in request.pins.items() if done <= at < done + length}
    return process.blank(index, length, pins, attempt)

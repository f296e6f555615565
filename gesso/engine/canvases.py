"""The canvases of a request, one after another."""

from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.sliding import slide
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
    """Return the canvas after these tokens of the last one have been committed: all of them, or a settled prefix."""
    request, process, canvas, done = running.request, running.process, running.canvas, len(running.tokens)
    if request.diffusion.verified:
        return begin(process, done, running.canvas_length, tokens[-1], canvas.draft)
    if len(tokens) == len(canvas.tokens_C):
        return _blank(request, process, config, canvas.index + 1, done)
    length = request.length_after(done, config)
    return slide(process, canvas, len(tokens), length, _pins(request, done, length))


def _blank(request: Request, process: Process, config: Config, index: int, done: int, attempt: int = 0) -> Canvas:
    """Return a canvas of noise that begins after `done` new tokens."""
    length = request.length_after(done, config)
    return process.blank(index, length, _pins(request, done, length), attempt)


def _pins(request: Request, done: int, length: int) -> dict[int, int]:
    """Return the pins of the `length` positions after `done` new tokens."""
    return {at - done: token for at, token in request.pins.items() if done <= at < done + length}

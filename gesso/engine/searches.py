"""Searches of constrained requests that wait for a pass of the other requests to run beside.

A search takes the host milliseconds, in which the device would be idle. If other requests are ready, their next pass is
launched first, and the searches run while the device works. The constrained requests sit out that pass. When it is
over, the search that is running pauses until the next one, so nobody waits for it.

Steps that need no search are not delayed. Without other requests a search runs at once, and pauses only to let new
requests in.

A search that needs a slow row of its automaton waits for the thread that makes it, and others do not wait.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from gesso.constraints.budget import pausing
from gesso.diffusion.canvas import Canvas
from gesso.engine.runner import CanvasOutcome, Search

Take = Callable[[], Canvas]


class Searches:
    """The searches that wait, in their order, and the steps that can be taken after one."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[CanvasOutcome, Search]] = {}  # by request
        self.awaited: dict[int, Future[None]] = {}  # the work of another thread that a search needs to go on
        self.done: list[tuple[CanvasOutcome, Take]] = []

    def add(self, outcome: CanvasOutcome, search: Search) -> None:
        self.waiting[outcome.running.id] = outcome, search

    def holds(self, request_id: int) -> bool:
        """Return whether a request cannot be part of a pass yet."""
        return request_id in self.waiting or any(outcome.running.id == request_id for outcome, _ in self.done)

    def drop(self, request_id: int) -> None:
        self.waiting.pop(request_id, None)
        self.awaited.pop(request_id, None)
        self.done = [each for each in self.done if each[0].running.id != request_id]

    def run(self, is_over: Callable[[], bool]) -> None:
        """Search for one request after the other until `is_over`, and at least one part of a search.

        Return earlier if all that are left need the work of another thread.
        """
        with pausing(is_over):
            while (request_id := next(filter(self._can_go_on, self.waiting), None)) is not None:
                self._next_part(request_id)
                if is_over():
                    if request_id in self.waiting:  # the others come first now
                        self.waiting[request_id] = self.waiting.pop(request_id)
                    return

    def wait(self, seconds: float) -> None:
        """Wait until a search can go on, but not longer."""
        if self.awaited and not any(map(self._can_go_on, self.waiting)):
            wait(self.awaited.values(), seconds, FIRST_COMPLETED)

    def taken(self) -> list[tuple[CanvasOutcome, Take]]:
        """Return the steps that can be taken, once."""
        done, self.done = self.done, []
        return done

    def _can_go_on(self, request_id: int) -> bool:
        awaited = self.awaited.get(request_id)
        return awaited is None or awaited.done()

    def _next_part(self, request_id: int) -> None:
        """Search until the next pause. At the end, note the function that takes the step; an error is raised by it, so
        that the request fails and not the pass.
        """
        outcome, search = self.waiting[request_id]
        self.awaited.pop(request_id, None)
        try:
            if (awaited := next(search)) is not None:
                self.awaited[request_id] = awaited
            return
        except StopIteration as end:
            take: Take = end.value
        except Exception as error:
            take = partial(_fail, error)
        del self.waiting[request_id]
        self.done.append((outcome, take))


def _fail(error: Exception) -> Canvas:
    raise error

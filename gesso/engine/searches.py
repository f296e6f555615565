"""Searches of constrained requests that wait for a pass of the other requests to run beside.

A search takes the host milliseconds, in which the device would be idle. If other requests are ready, their next pass is
launched first, and the searches run while the device works. The constrained requests sit out that pass. When it is
over, the search that is running pauses until the next one, so nobody waits for it.

Steps that need no search are not delayed. Without other requests a search runs at once, and pauses only to let new
requests in.
"""

from collections.abc import Callable

from gesso.constraints.budget import pausing
from gesso.diffusion.canvas import Canvas
from gesso.engine.runner import Outcome, Search

Take = Callable[[], Canvas]


class Searches:
    """The searches that wait, in their order, and the steps that can be taken after one."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Outcome, Search]] = {}  # by request
        self.done: list[tuple[Outcome, Take]] = []

    def add(self, outcome: Outcome, search: Search) -> None:
        self.waiting[outcome.running.id] = outcome, search

    def holds(self, request_id: int) -> bool:
        """Return whether a request cannot be part of a pass yet."""
        return request_id in self.waiting or any(outcome.running.id == request_id for outcome, _ in self.done)

    def drop(self, request_id: int) -> None:
        self.waiting.pop(request_id, None)
        self.done = [each for each in self.done if each[0].running.id != request_id]

    def run(self, is_over: Callable[[], bool]) -> None:
        """Search for one request after the other until `is_over`, and at least one part of a search."""
        with pausing(is_over):
            while self.waiting:
                request_id = next(iter(self.waiting))
                outcome, search = self.waiting[request_id]
                if (take := _next_part(search)) is not None:
                    del self.waiting[request_id]
                    self.done.append((outcome, take))
                if is_over():
                    if take is None:  # the others come first now
                        self.waiting[request_id] = self.waiting.pop(request_id)
                    return

    def taken(self) -> list[tuple[Outcome, Take]]:
        """Return the steps that can be taken, once."""
        done, self.done = self.done, []
        return done


def _next_part(search: Search) -> Take | None:
    """Search until the next pause. At the end return the function that takes the step; an error is raised by it, so
    that the request fails and not the pass.
    """
    try:
        next(search)
    except StopIteration as end:
        take: Take = end.value
        return take
    except Exception as error:
        failure = error
    else:
        return None

    def fail() -> Canvas:
        raise failure

    return fail

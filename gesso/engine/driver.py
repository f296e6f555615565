"""Run plans on one engine: the Python API, the server's engine process and evaluation all use this driver."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, cast

from gesso.chat.answer import Decode
from gesso.engine.engine import Engine
from gesso.engine.events import Done, Event, Failed, Scored
from gesso.engine.plan import AnswerToCheck, Output, Plan, Round, T


@dataclass(frozen=True)
class _End:
    """Stands for the next round of a plan that has returned."""

    result: Any


NextRound = Callable[[], Round | _End]
# Runs the first function in another thread. Then calls the second one in the engine's thread, with a function that
# returns the result of the first or raises its error.
Background = Callable[[NextRound, Callable[[NextRound], None]], "Future[Round | _End]"]


@dataclass(eq=False)
class PlanRun(Generic[T]):
    """A plan that a driver runs. Read `outcome()` once it has `ended`."""

    plan: Plan[T]
    at_once: int | None = None
    on_event: Callable[[Event], None] | None = None
    on_end: "Callable[[PlanRun[T]], None] | None" = None
    background: Background | None = None
    ids: list[int] = field(default_factory=list)  # of all requests so far, in the order of submission
    ended: bool = False
    error: Exception | None = None
    _result: Any = None
    _work: "Future[Round | _End] | None" = None  # the next round, while another thread works it out
    _unsent: deque[Any] = field(default_factory=deque)  # requests of the round that wait for `at_once`
    _round: list[int] = field(default_factory=list)
    _outputs: dict[int, Output] = field(default_factory=dict)

    def outcome(self) -> T:
        """Return the plan's result, or raise the error that ended it."""
        if self.error is not None:
            raise self.error
        return cast(T, self._result)

    def _next_round(self, outputs: Sequence[Output] | None) -> Round | _End:
        try:
            return next(self.plan) if outputs is None else self.plan.send(outputs)
        except StopIteration as stop:
            return _End(stop.value)


# Checks answers, and at the end calls `Driver.take_problems` with the run.
CheckAnswers = Callable[[PlanRun[Any], Sequence[AnswerToCheck]], None]


class Driver:
    """Owns the requests of all plans on one engine. All methods must be called from the engine's thread."""

    def __init__(self, engine: Engine, check_answers: CheckAnswers | None = None) -> None:
        """`check_answers`: by default, answers are checked at once."""
        self.engine = engine
        self.check_answers = check_answers or self._check_at_once
        self.runs: dict[int, PlanRun[Any]] = {}  # by request id
        self._events: deque[Event] = deque()  # of the last step, not yet routed

    def submit(
        self,
        plan: Plan[T],
        *,
        at_once: int | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_end: Callable[[PlanRun[T]], None] | None = None,
        background: Background | None = None,
    ) -> PlanRun[T]:
        """Begin a plan.

        At most `at_once` requests of a round are in the engine at a time. `on_event` receives every event of the
        requests except failures, and may cancel the run. `on_end` is called when the plan has returned or failed, also
        before `submit` returns, but not after `cancel`. With `background`, the plan's own code runs in another thread.
        """
        run = PlanRun(plan, at_once, on_event, on_end, background)
        try:
            self._advance(run, None)
        except BaseException:  # Ctrl-C
            self.cancel(run)
            raise
        return run

    def run(self, plan: Plan[T]) -> T:
        """Step the engine until a plan has ended, and return its result."""
        run = self.submit(plan)
        try:
            while not run.ended:
                self.step()
        finally:
            self.cancel(run)
        return run.outcome()

    def cancel(self, run: PlanRun[Any]) -> None:
        """End a run and its requests. A run that has ended is left alone."""
        if run.ended:
            return
        run.ended = True
        if run._work is None or run._work.cancel():  # otherwise `_begin` closes it: a thread may be executing it
            run.plan.close()
        for request_id in run.ids:
            self.engine.cancel(request_id)
            del self.runs[request_id]

    def step(self) -> None:
        """Step the engine once and route its events.

        Events of requests that belong to no run, or to a cancelled one, are ignored.
        """
        self._events.extend(self.engine.step())
        while self._events:  # an interrupt leaves the rest for the next step
            event = self._events.popleft()
            if (run := self.runs.get(event.request_id)) is not None:
                self._take(run, event)

    def _take(self, run: PlanRun[Any], event: Event) -> None:
        """Take an event of a run. The last output of a round starts the next round."""
        if isinstance(event, Failed):
            self._end(run, event.error)
            return
        if run.on_event is not None:
            run.on_event(event)
        if run.ended or not isinstance(event, Done | Scored):
            return
        run._outputs[event.request_id] = event.result if isinstance(event, Done) else event
        self._fill(run)
        if not run.ended and len(run._outputs) == len(run._round):
            outputs = [run._outputs[request_id] for request_id in run._round]
            run._round, run._outputs = [], {}
            self._advance(run, outputs)

    def _advance(self, run: PlanRun[Any], outputs: Sequence[Output] | None) -> None:
        work = partial(run._next_round, outputs)
        if run.background is None:
            self._begin(run, work)
        else:
            run._work = run.background(work, partial(self._begin, run))

    def _begin(self, run: PlanRun[Any], next_round: NextRound) -> None:
        """Begin the next round of a plan, or end the run."""
        run._work = None
        if run.ended:  # cancelled while another thread was working
            run.plan.close()
            return
        try:
            requests_or_end = next_round()
        except Exception as error:
            self._end(run, error)
            return
        if isinstance(requests_or_end, _End):
            run._result = requests_or_end.result
            self._end(run)
            return
        answers = [answer for answer in requests_or_end if isinstance(answer, AnswerToCheck)]
        if answers:
            self.check_answers(run, answers)
        else:
            run._unsent.extend(requests_or_end)
            self._fill(run)

    def _check_at_once(self, run: PlanRun[Any], answers: Sequence[AnswerToCheck]) -> None:
        decode = cast(Decode, self.engine.decode)
        try:
            problems = [answer.check.problem(answer.result.tokens, answer.result.text, decode) for answer in answers]
        except Exception as error:
            self._end(run, error)
            return
        self.take_problems(run, problems)

    def take_problems(self, run: PlanRun[Any], problems: Sequence[str | None]) -> None:
        """Continue a plan that waits for the checks of answers, with what is wrong with each of them."""
        self._advance(run, problems)

    def _fill(self, run: PlanRun[Any]) -> None:
        """Submit requests of the round, as many as `at_once` allows."""
        try:
            while run._unsent and (run.at_once is None or len(run._round) - len(run._outputs) < run.at_once):
                request_id = self.engine.submit(run._unsent.popleft())
                self.runs[request_id] = run
                run.ids.append(request_id)
                run._round.append(request_id)
        except Exception as error:
            self._end(run, error)

    def _end(self, run: PlanRun[Any], error: Exception | None = None) -> None:
        run.error = error
        self.cancel(run)
        if run.on_end is not None:
            run.on_end(run)

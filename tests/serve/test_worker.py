"""The loop of the engine process, in this process: failing requests, side threads, and its messages."""

import queue
import re
import threading
import time
from collections import deque
from dataclasses import replace

import pytest

from gesso.api import Gesso
from gesso.backends.torch import TorchBackend
from gesso.constraints import budget
from gesso.constraints.regex import regex_term
from gesso.constraints.stored import to_bytes
from gesso.engine.driver import Driver
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.serve.protocol import (
    FRAME_BYTES,
    SIZES,
    Cancel,
    Constraint,
    Ended,
    Failed,
    FrameTooLarge,
    Submit,
    decode,
    encode,
    frame,
    sizes,
    submit_frame,
    submit_payload,
)
from gesso.serve.worker import Worker
from tests.backends.passes import CapturesPlainly
from tests.serving import QUICK
from tests.waiting import PATIENCE, wait_until

TOO_LARGE = 222  # a token


class Empty(Exception):
    pass


class Inbox(deque):
    """An inbox with all messages at once. Waiting for another one raises Empty."""

    def empty(self):
        return not self

    def get(self):
        if not self:
            raise Empty
        return self.popleft(), b""


class Failing(TorchBackend):
    """A backend whose passes fail if they read a certain token."""

    def run(self, pieces, cache):
        if any(TOO_LARGE in piece.ids_S for piece in pieces):
            raise MemoryError("no room")
        return super().run(pieces, cache)


def model_with(tiny, backend):
    """Return the tiny model with an engine of its own, which uses this kind of backend."""
    model = Gesso(tiny.model, tiny.tokenizer, tiny.defaults, tiny.directory, max_batch=2, max_length=None)
    model.engine = Engine(tiny.model, tiny.decode, backend=backend(tiny.model))
    model.driver = Driver(model.engine)
    return model


def test_request_that_fails_every_pass_fails_alone(tiny):
    model, options = model_with(tiny, Failing), {**QUICK, "max_new_tokens": 16, "settle": 1}
    prompts = {10: [2, 200, 210], 11: [2, TOO_LARGE, 210], 12: [2, 200, 211]}
    asked = [Submit(id, prompt, options | {"seed": id}) for id, prompt in prompts.items()]
    sent = []
    with pytest.raises(Empty):
        Worker(model, sent.append).run(Inbox(asked))
    assert {message.id for message in sent if isinstance(message, Ended)} == {10, 12}
    assert [(m.id, m.by_input, m.message) for m in sent if isinstance(m, Failed)] == [
        (11, False, "MemoryError: no room")
    ]
    assert not model.engine.busy


def test_side_thread_work_delays_no_other_request_and_cancelled_work_never_runs(tiny):
    release, sent, inbox = threading.Event(), [], queue.SimpleQueue()

    class Slow(Worker):
        def request(self, submitted, blob=b""):
            assert submitted.constraint is None or release.wait(PATIENCE)
            return super().request(submitted, blob)

    worker = Slow(tiny, sent.append)
    options = {**QUICK, "max_new_tokens": 16, "settle": 1, "seed": 1}
    compiled = to_bytes(regex_term("[ab]{3}"))
    held, gone = (Submit(id, [2, 200, 210], options, constraint=Constraint("key", tools=False)) for id in (1, 2))
    for message in (held, gone, Cancel(2), Submit(3, [2, 200, 210], options)):
        inbox.put((message, compiled))

    def ended():
        return [message for message in sent if isinstance(message, Ended)]

    def wait_for(count):
        wait_until(lambda: len(ended()) >= count)

    threading.Thread(target=worker.run, args=(inbox,), daemon=True).start()  # it waits forever, until this process ends
    wait_for(1)
    assert [message.id for message in ended()] == [3]
    release.set()
    wait_for(2)
    assert ended()[1].id == 1 and re.fullmatch("[ab]{3}", ended()[1].text)
    worker.side.shutdown()
    time.sleep(0.2)
    assert not any(getattr(message, "id", None) == 2 for message in sent)
    assert not worker.jobs and not tiny.engine.busy


@pytest.mark.parametrize("constrained", [False, True])
def test_the_engine_process_checks_a_request_once(tiny, monkeypatch, constrained):
    """A check takes long with a large constraint. Nothing but its calls shows how often it runs."""
    checked, check = [], Request.check
    monkeypatch.setattr(Request, "check", lambda self, *limits: (checked.append(self), check(self, *limits)))
    options = {**QUICK, "max_new_tokens": 16, "seed": 1}
    asked = Submit(1, [2, 200, 210], options, constraint=Constraint("once", tools=False) if constrained else None)
    inbox, sent = queue.SimpleQueue(), []
    worker = Worker(tiny, sent.append)
    inbox.put((asked, to_bytes(regex_term("[ab]{3}"))))
    threading.Thread(target=worker.run, args=(inbox,), daemon=True).start()  # it waits forever, until this process ends
    wait_until(lambda: any(isinstance(message, Ended) for message in sent))
    assert len(checked) == 1


def test_usage_is_measured_once_per_second_and_when_idle(tiny):
    class Watched(Worker):
        """A worker that notes when the step begins that it reports, and when usage was last measured."""

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.began, self.measurements = [], set()

        def report(self, **options):
            super().report(**options)
            self.measurements.add(self.measured)

        def announce(self):
            self.began.append(self.status.step_seconds)
            super().announce()

    worker, start = Watched(tiny, lambda message: None), time.monotonic()
    with pytest.raises(Empty):
        worker.run(Inbox([Submit(1, [2, 200, 210], {**QUICK, "max_new_tokens": 64, "seed": 1})]))
    seconds, began = time.monotonic() - start, worker.began
    assert len(began) > 4 and start < began[0] and began == sorted(set(began)), "each step has its own start time"
    most = 2 + seconds
    assert len(worker.measurements) <= most, "at the first report, when idle at the end, and once per second between"
    assert worker.status.step_seconds == 0 and worker.status.memory_bytes > 0


class Taking(Worker):
    """A worker that notes a value when it takes a message, instead of acting on it."""

    def __init__(self, model, noted):
        super().__init__(model, lambda message: None)
        self.noted, self.during = noted, []

    def take(self, message):
        self.during.append(self.noted(self))


class Watched(Inbox):
    """An inbox that notes a value when a message is awaited."""

    def __init__(self, messages, noted):
        super().__init__(messages)
        self.noted, self.waiting = noted, []

    def get(self):
        self.waiting.append(self.noted())
        return super().get()


def test_a_message_that_takes_long_is_timed_like_a_step(tiny):
    """Attaching an adapter may hang. Waiting for a message is not timed."""
    worker = Taking(tiny, lambda worker: worker.status.step_seconds)
    inbox, start = Watched([Cancel(1), Cancel(2)], lambda: worker.status.step_seconds), time.monotonic()
    with pytest.raises(Empty):
        worker.run(inbox)
    assert len(worker.during) == 2 and start < worker.during[0] < worker.during[1]
    assert inbox.waiting == [0, 0, 0]


def test_side_threads_give_way_while_a_message_is_taken_and_not_while_one_is_awaited(tiny):
    worker = Taking(model_with(tiny, CapturesPlainly), lambda worker: budget._going_first)
    inbox = Watched([Cancel(1)], lambda: budget._going_first)
    with pytest.raises(Empty):
        worker.run(inbox)
    assert (worker.during, inbox.waiting) == ([1], [0, 0])


def test_messages_survive_encoding():
    constrained = Submit(1, [2, 3], {"seed": 1, "stop": ["é"]}, "odd", stream=True, constraint=Constraint("key", False))
    for message in (constrained, Failed(4, "why", by_input=True)):
        data = encode(message, b"blob")
        head, blob = sizes(data[: SIZES.size])
        assert decode(data[SIZES.size : SIZES.size + head]) == message and data[-blob:] == b"blob"
    payload = submit_payload(constrained)
    data = submit_frame(7, payload)
    assert decode(data[SIZES.size :]) == replace(constrained, id=7)


def test_frames_over_the_limit_are_rejected_on_both_sides():
    with pytest.raises(FrameTooLarge):
        frame(b"", bytes(FRAME_BYTES + 1))
    for parts in ((FRAME_BYTES + 1, 0), (0, FRAME_BYTES + 1)):
        with pytest.raises(FrameTooLarge):
            sizes(SIZES.pack(*parts))

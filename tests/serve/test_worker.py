"""The loop of the engine process, in this process: failing requests, side threads, and its messages."""

import queue
import re
import threading
import time
from collections import deque
from dataclasses import replace

import pytest

from gesso.constraints import budget
from gesso.constraints.regex import regex_term
from gesso.constraints.stored import to_bytes
from gesso.engine.request import Request
from gesso.serve import protocol
from gesso.serve.protocol import (
    SIZES,
    Cancel,
    Constraint,
    Ended,
    Failed,
    Submit,
    decode,
    encode,
    sizes,
    submit_frame,
    submit_payload,
)
from gesso.serve.worker import Worker
from tests.serving import QUICK
from tests.waiting import PATIENCE, wait_until


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


def test_request_that_fails_every_pass_fails_alone(tiny, monkeypatch):
    run = tiny.engine.runner.run

    def fail(work, cache, launched):
        if any(item.running.request.seed == 2 for item in work):
            raise MemoryError("no room")
        return run(work, cache, launched)

    monkeypatch.setattr(tiny.engine.runner, "run", fail)
    options = {**QUICK, "max_new_tokens": 16, "settle": 1}
    asked = [Submit(id, [2, 200, 210], options | {"seed": seed}) for id, seed in ((10, 1), (11, 2), (12, 3))]
    sent = []
    with pytest.raises(Empty):
        Worker(tiny, sent.append).run(Inbox(asked))
    assert {message.id for message in sent if isinstance(message, Ended)} == {10, 12}
    assert [(m.id, m.by_input, m.message) for m in sent if isinstance(m, Failed)] == [
        (11, False, "MemoryError: no room")
    ]
    assert not tiny.engine.busy


def test_side_thread_work_delays_no_other_request_and_cancelled_work_never_runs(tiny, monkeypatch):
    release, sent, inbox = threading.Event(), [], queue.SimpleQueue()
    worker = Worker(tiny, sent.append)
    request = worker.request

    def slowly(asked, compiled=b""):
        assert asked.constraint is None or release.wait(PATIENCE)
        return request(asked, compiled)

    monkeypatch.setattr(worker, "request", slowly)
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


def test_usage_is_measured_once_per_second_and_when_idle(tiny, monkeypatch):
    measured, began = [], []
    worker = Worker(tiny, lambda message: None)

    def resident_bytes():
        if threading.current_thread() is threading.main_thread():  # workers of other tests may collect garbage
            measured.append(True)
        return len(measured), 0

    monkeypatch.setattr("gesso.serve.worker.resident_bytes", resident_bytes)
    step = tiny.engine.step
    monkeypatch.setattr(tiny.engine, "step", lambda: (began.append(worker.status.step_seconds), step())[1])
    start = time.monotonic()
    with pytest.raises(Empty):
        worker.run(Inbox([Submit(1, [2, 200, 210], {**QUICK, "max_new_tokens": 64, "seed": 1})]))
    seconds = time.monotonic() - start
    assert len(began) > 4 and start < began[0] and began == sorted(set(began)), "each step has its own start time"
    assert len(measured) <= 2 + seconds, "at the first report, when idle at the end, and once per second between"
    assert worker.status.step_seconds == 0 and worker.status.memory_bytes == len(measured)


def test_a_message_that_takes_long_is_timed_like_a_step(tiny, monkeypatch):
    """Attaching an adapter may hang. Waiting for a message is not timed."""
    during, waiting = [], []
    worker = Worker(tiny, lambda message: None)
    monkeypatch.setattr(worker, "take", lambda message: during.append(worker.status.step_seconds))

    class Watched(Inbox):
        def get(self):
            waiting.append(worker.status.step_seconds)
            return super().get()

    start = time.monotonic()
    with pytest.raises(Empty):
        worker.run(Watched([Cancel(1), Cancel(2)]))
    assert len(during) == 2 and start < during[0] < during[1]
    assert waiting == [0, 0, 0]


def test_side_threads_give_way_while_a_message_is_taken_and_not_while_one_is_awaited(tiny, monkeypatch):
    during, waiting = [], []
    monkeypatch.setattr(tiny.engine.runner, "captures", True)
    worker = Worker(tiny, lambda message: None)
    monkeypatch.setattr(worker, "take", lambda message: during.append(budget._going_first))

    class Watched(Inbox):
        def get(self):
            waiting.append(budget._going_first)
            return super().get()

    with pytest.raises(Empty):
        worker.run(Watched([Cancel(1)]))
    assert (during, waiting) == ([1], [0, 0])


def test_messages_survive_encoding():
    constrained = Submit(1, [2, 3], {"seed": 1, "stop": ["é"]}, "odd", stream=True, constraint=Constraint("key", False))
    for message in (constrained, Failed(4, "why", by_input=True)):
        data = encode(message, b"blob")
        head, blob = sizes(data[: SIZES.size])
        assert decode(data[SIZES.size : SIZES.size + head]) == message and data[-blob:] == b"blob"
    payload = submit_payload(constrained)
    data = submit_frame(7, payload)
    assert decode(data[SIZES.size :]) == replace(constrained, id=7)


def test_frames_over_the_limit_are_rejected_on_both_sides(monkeypatch):
    data = encode(Failed(4, "x" * 1000, by_input=True))
    monkeypatch.setattr(protocol, "FRAME_BYTES", 500)
    with pytest.raises(protocol.FrameTooLarge):
        encode(Failed(4, "x" * 1000, by_input=True))
    with pytest.raises(protocol.FrameTooLarge):
        sizes(data[: SIZES.size])

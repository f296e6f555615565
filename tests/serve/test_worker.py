"""The loop of the engine process, in this process: failing requests, side threads, and its messages."""

import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque

import pytest
from msgspec.structs import replace

from gesso.api import Gesso
from gesso.backends.torch import TorchBackend
from gesso.constraints import budget
from gesso.constraints.reach import Reach
from gesso.engine.driver import Driver
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.serve.wire import (
    FRAME_BYTES,
    SIZE,
    Cancel,
    Ended,
    FrameTooLarge,
    RequestFailed,
    frame,
    from_engine,
    size_of,
    to_engine,
    work_of,
)
from gesso.serve.worker import Worker
from tests.backends.passes import CapturesPlainly
from tests.serve.submitting import submit
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
        return self.popleft()


class Failing(TorchBackend):
    """A backend whose passes fail if they read a certain token."""

    def run(self, pieces, cache):
        if any(TOO_LARGE in piece.ids_S for piece in pieces):
            raise MemoryError("no room for \udcff")
        return super().run(pieces, cache)


def model_with(tiny, backend):
    """Return the tiny model with an engine of its own, which uses this kind of backend."""
    model = Gesso(tiny.model, tiny.tokenizer, tiny.defaults, tiny.directory, max_batch=2, max_length=None)
    model.engine = Engine(tiny.model, tiny.decode, backend=backend(tiny.model))
    model.driver = Driver(model.engine)
    return model


def test_request_that_fails_every_pass_fails_alone(tiny):
    """Half a surrogate pair in the message, such as one of a file's name, has no place in UTF-8."""
    model, options = model_with(tiny, Failing), {**QUICK, "settle": 1}
    prompts = {10: [2, 200, 210], 11: [2, TOO_LARGE, 210], 12: [2, 200, 211]}
    asked = [submit(tiny, id, prompt, seed=id, **options) for id, prompt in prompts.items()]
    sent = []
    with pytest.raises(Empty):
        Worker(model, sent.append).run(Inbox(asked))
    assert {message.id for message in sent if isinstance(message, Ended)} == {10, 12}
    assert [(m.id, m.by_input, m.message) for m in sent if isinstance(m, RequestFailed)] == [
        (11, False, "MemoryError: no room for ?")
    ]
    assert not model.engine.busy


def test_side_thread_work_delays_no_other_request_and_cancelled_work_never_runs(tiny):
    release, sent, inbox = threading.Event(), [], queue.SimpleQueue()

    class Slow(Worker):
        def request(self, submitted, work):
            assert work.guide is None or release.wait(PATIENCE)
            return super().request(submitted, work)

    worker = Slow(tiny, sent.append)
    options = {**QUICK, "settle": 1}
    held, gone = (submit(tiny, id, [2, 200, 210], regex="[ab]{3}", **options) for id in (1, 2))
    for message in (held, gone, Cancel(2), submit(tiny, 3, [2, 200, 210], **options)):
        inbox.put(message)

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
def test_the_engine_process_checks_only_the_constraint_of_a_request(tiny, monkeypatch, constrained):
    """All else was checked when the request was built. Nothing but the calls shows what is checked."""
    asked = submit(tiny, 1, [2, 200, 210], regex="[ab]{3}" if constrained else None, **QUICK)
    checked, whole, reach = [], Request.check, Reach.check
    monkeypatch.setattr(Request, "check", lambda self, *limits: (checked.append("whole"), whole(self, *limits)))
    monkeypatch.setattr(Reach, "check", lambda self: (checked.append("reach"), reach(self)))
    inbox, sent = queue.SimpleQueue(), []
    worker = Worker(tiny, sent.append)
    inbox.put(asked)
    threading.Thread(target=worker.run, args=(inbox,), daemon=True).start()  # it waits forever, until this process ends
    wait_until(lambda: any(isinstance(message, Ended) for message in sent))
    assert checked == (["reach"] if constrained else [])


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
        worker.run(Inbox([submit(tiny, 1, [2, 200, 210], max_new_tokens=64, **QUICK)]))
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


def test_messages_survive_encoding(tiny):
    constrained = submit(tiny, 1, [2, 3], regex="a", stability=3)
    decoded = to_engine.decode(frame(constrained)[SIZE.size :])
    assert decoded == constrained and work_of(decoded.work).guide.key == "a"
    assert work_of(decoded.work).request.request(tiny.info, 1, ()).diffusion.stability == 3
    failed = RequestFailed(id=4, message="why é", by_input=True)
    assert from_engine.decode(frame(failed)[SIZE.size :]) == failed


def test_work_that_cannot_be_decoded_fails_only_its_request(tiny):
    broken, whole = (submit(tiny, id, [2, 200, 210], **QUICK) for id in (1, 2))
    sent = []
    with pytest.raises(Empty):
        Worker(tiny, sent.append).run(Inbox([replace(broken, work=b"\xc1"), whole]))
    assert [message.id for message in sent if isinstance(message, RequestFailed)] == [1]
    assert [message.id for message in sent if isinstance(message, Ended)] == [2]


@pytest.mark.parametrize(
    "message, status",
    [(b"", 0), (SIZE.pack(9) + b"half", 0), (b"\0", 0), (SIZE.pack(1) + b"\xc1", 3)],
)
def test_the_engine_process_ends_with_its_messages(message, status):
    """Also if the server was killed while it wrote one: no engine outlives its server."""
    program = "import queue, sys\nfrom gesso.serve.pipe import read\nread(sys.stdin.buffer, queue.SimpleQueue())"
    done = subprocess.run([sys.executable, "-c", program], input=message, stderr=subprocess.DEVNULL, timeout=PATIENCE)
    assert done.returncode == status


def test_a_model_whose_path_is_not_utf_8_is_reported_with_the_reason(tmp_path):
    model = tmp_path / "empty\udcff"
    model.mkdir()
    arguments = [sys.executable, "-m", "gesso.serve.worker", json.dumps({"model": str(model)})]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        reason = None
        while reason is None:  # heartbeats have none
            size = size_of(engine.stdout.read(SIZE.size))
            reason = getattr(from_engine.decode(engine.stdout.read(size)), "message", None)
        engine.stdin.close()
    assert "/empty?" in reason


def test_the_engine_process_does_not_load_the_library_of_http_fields():
    program = "import sys, gesso.serve.worker\nprint('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "False\n"


def test_frames_over_the_limit_are_rejected_on_both_sides(tiny):
    with pytest.raises(FrameTooLarge):
        frame(replace(submit(tiny, 1, [2, 3]), work=bytes(FRAME_BYTES)))
    with pytest.raises(FrameTooLarge):
        size_of(SIZE.pack(FRAME_BYTES + 1))

"""The prepare process: `python -m gesso.serve.prepare.process SETTINGS`, with a socket as stdin.

It loads the tokenizers once and forks one child per request. The kernel limits the child's CPU time and memory, and the
server kills it when its client leaves. So no request can block another, and none outlives its client.

The server sends one end of a socket pair per request over stdin. The child writes its process id to it, reads a task
and a body, and writes the outcome. Before that, it may ask for the stored conversation that a response continues. If no
child can be started, the process id is 0. Every second this process writes a byte to stdin, as a heartbeat. When stdin
closes, this process and all its children end.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from gesso.constraints import validate
from gesso.constraints.schema import formats
from gesso.errors import CheckpointError
from gesso.serve.entry import ModelEntry
from gesso.serve.errors import ApiError
from gesso.serve.prepare import endpoints, images
from gesso.serve.settings import ServerSettings
from gesso.serve.wire import SIZE, FromChild, NeedsItems, RequestRejected, frame, size_of, to_child, to_items

BEAT_SECONDS = 1.0
NICE = 5  # engine and event loop have priority when processors are scarce


def main() -> None:
    control = socket.socket(fileno=0)
    settings = [ServerSettings.from_json(fields) for fields in json.loads(sys.argv[1])]
    entries = [ModelEntry(each) for each in settings]
    for entry in entries:
        entry.info.guides.warm_up()
        _ = entry.tokenizer.longest_piece
        warm_up_template(entry)
    formats.warm_up()
    validate.warm_up()
    if any(entry.may_see for entry in entries):
        images.warm_up()
    os.nice(NICE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the children
    gc.freeze()  # keeps the objects that exist now shared with the children
    pause = min(BEAT_SECONDS, settings[0].limits.heartbeat / 8)
    control.settimeout(pause)
    beat_at = time.monotonic()
    while True:
        try:
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + pause
                control.send(b"r")
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        except ConnectionError:
            descriptors = []
        if not descriptors:
            os.killpg(0, signal.SIGKILL)  # the server has ended
        with socket.socket(fileno=descriptors[0]) as channel:
            try:
                child = os.fork()
            except OSError as error:  # no process or memory left: closing the channel fails only this request
                print(f"the prepare process cannot start a child: {error}", file=sys.stderr, flush=True)
                channel.sendall(SIZE.pack(0))
                continue
            if child == 0:
                control.close()
                run_child(channel, entries)


def warm_up_template(entry: ModelEntry) -> None:
    """Compile the chat template once for all children. Compiling has a budget, so a hostile template cannot hang this.

    If it fails, chats are rejected with the reason, and other requests are not affected.
    """
    try:
        entry.tokenizer.warm_up()
    except CheckpointError as error:
        print(f"chats with {entry.name} will be rejected: {error}", file=sys.stderr, flush=True)


def run_child(channel: socket.socket, entries: list[ModelEntry]) -> None:
    """Run one task and end this process."""
    try:
        channel.sendall(SIZE.pack(os.getpid()))
        task = to_child.decode(receive(channel))
        limit_resources(task.seconds, task.memory)
        channel.sendall(encoded(endpoints.run(task.work, entries, partial(fetch, channel))))
    except OSError:  # the server has closed its end because the client left
        pass
    except BaseException:  # a bug: the client gets a 500, and the log the traceback
        traceback.print_exc()
        message = "internal error while preparing the request; see the server's log"
        channel.sendall(frame(RequestRejected.of(ApiError(500, message))))
    finally:
        os._exit(0)  # skip the exit handlers inherited from the parent


def encoded(answer: FromChild) -> bytearray:
    """Encode an answer, or the error of a request whose values have no place in a message."""
    try:
        return frame(answer)
    except (UnicodeEncodeError, OverflowError):
        message = "the request has half a surrogate pair, or a number of more than 64 bits; leave it out"
        return frame(RequestRejected.of(ApiError(400, message, code="invalid_value")))


def fetch(channel: socket.socket, previous: str | None, others: list[str]) -> list[Any]:
    """Return stored lists of items: input and output of the previous response, and the outputs of others."""
    channel.sendall(frame(NeedsItems(previous, others)))
    return [json.loads(line) for line in to_items.decode(receive(channel)).lines.split(b"\n")]


def limit_resources(seconds: int, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        present = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: time is limited, memory is not
        return
    resource.setrlimit(resource.RLIMIT_AS, (present + memory, present + memory))


def receive(channel: socket.socket) -> bytes:
    return receive_exactly(channel, size_of(receive_exactly(channel, SIZE.size)))


def receive_exactly(channel: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        if (count := channel.recv_into(view)) == 0:
            os._exit(0)  # the client has left
        view = view[count:]
    return bytes(buffer)


if __name__ == "__main__":
    main()

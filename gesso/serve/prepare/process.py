"""The process in which requests are read: `python -m gesso.serve.prepare.process SETTINGS`, with a socket as stdin.

It loads the tokenizers once and then forks a child for every request. The kernel limits the child's CPU time and
memory, and the server kills it when its client leaves. So no request, whatever is in it, can hold up another, and none
goes on after its client has gone.

The server sends one end of a socket pair per request over stdin. On it the child writes its process id, reads a task
and a body, and writes the outcome. If no child can be started, the socket is closed without a process id. When stdin
ends, so do this process and all its children.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from gesso.serve.prepare import endpoints
from gesso.serve.prepare.frontend import ModelFrontend
from gesso.serve.protocol import SIZES, frame, sizes
from gesso.serve.settings import ServerSettings

NICE = 5  # engine and event loop go first where processors are scarce


def main() -> None:
    control = socket.socket(fileno=0)
    settings = [ServerSettings.from_json(fields) for fields in json.loads(sys.argv[1])]
    frontends = [ModelFrontend(each) for each in settings]
    for frontend in frontends:
        frontend.guides.warm_up()
        _ = frontend.tokenizer.longest_piece
    os.nice(NICE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    gc.freeze()  # what exists by now stays shared with the children
    control.sendall(b"r")
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            os.killpg(0, signal.SIGKILL)  # the server is gone
        with socket.socket(fileno=descriptors[0]) as channel:
            try:
                child = os.fork()
            except OSError as error:  # no process or memory left: only this request fails, as its channel is closed
                print(f"the request reader cannot start a child: {error}", file=sys.stderr, flush=True)
                continue
            if child == 0:
                control.close()
                serve_one(channel, frontends)


def serve_one(channel: socket.socket, frontends: list[ModelFrontend]) -> None:
    """Carry out one task in this process, which ends with it."""
    try:
        channel.sendall(SIZES.pack(os.getpid(), 0))
        head, body = receive(channel)
        task: dict[str, Any] = json.loads(head)
        limit(task["seconds"], task["memory"])
        channel.sendall(frame(*endpoints.run(task, body, frontends)))
    except OSError:  # the server has closed its end: the client has left
        pass
    except BaseException:  # a defect of ours: the client gets a 500, the log the reason
        traceback.print_exc()
        refusal = {
            "status": 500,
            "message": "internal error while reading the request; see the server's log",
        }
        channel.sendall(frame(json.dumps({"error": refusal}).encode()))
    finally:
        os._exit(0)  # without the exit handlers of the process this one was forked from


def limit(seconds: int, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        present = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: no limit on memory, the one on time holds
        return
    resource.setrlimit(resource.RLIMIT_AS, (present + memory, present + memory))


def receive(channel: socket.socket) -> tuple[bytes, bytes]:
    head, body = sizes(exactly(channel, SIZES.size))
    return exactly(channel, head), exactly(channel, body)


def exactly(channel: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        if (count := channel.recv_into(view)) == 0:
            os._exit(0)  # the client has gone
        view = view[count:]
    return bytes(buffer)


if __name__ == "__main__":
    main()

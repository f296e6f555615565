"""Trace one request through all processes of a server: the functions that it calls, from the socket to its first text.

    python -m tools.request_trace                  # the server of this checkout
    python -m tools.request_trace --tree DIR       # of another checkout
    python -m tools.request_trace --list           # every function, in the order of its first call

The request is a POST to /v1/chat/completions with a JSON schema, streamed. Each Python process of the server records
the calls of the package's functions with `sys.setprofile`, also in its threads and forked children.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BODY = {
    "messages": [{"role": "user", "content": "Book a table in Rome."}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}},
    "seed": 1,
    "stream": True,
}
# Python runs `sitecustomize.py` at the start of each process. The file `on` has one byte, which all processes map.
RECORDER = """\
import mmap, os, sys, threading, time
package = {package!r}
on = mmap.mmap(os.open({on!r}, os.O_RDWR), 1)
calls = os.open({calls!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def record(frame, event, argument):
    if event == "call" and on[0] == 1:
        code = frame.f_code
        if code.co_filename.startswith(package):
            name = code.co_filename[len(package):]
            os.write(calls, f"{{time.monotonic()}} {{os.getpid()}} {{name}} {{code.co_qualname}}\\n".encode())

threading.setprofile(record)
sys.setprofile(record)
"""


@dataclass(frozen=True)
class Call:
    """A call of a function of the package."""

    seconds: float
    process: int
    file: str  # in the package
    function: str

    @property
    def is_named(self) -> bool:
        return "<" not in self.function.rpartition(".")[2]


def trace(tree: Path) -> list[Call]:
    """Start the server of a tree, send the request, and return the calls up to the first event with text."""
    with tempfile.TemporaryDirectory(prefix="gesso-trace-") as scratch:
        on = Path(scratch, "on")
        on.write_bytes(b"\0")
        calls = Path(scratch, "calls")
        package = str(tree / "gesso") + os.sep
        recorder = RECORDER.format(package=package, on=str(on), calls=str(calls))
        Path(scratch, "sitecustomize.py").write_text(recorder, encoding="utf-8")
        path = os.pathsep.join([scratch, str(tree), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "gesso", "serve", "--port", "0", "--device", "cpu"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=tree, env=os.environ | {"PYTHONPATH": path}
        )
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().split("http://127.0.0.1:")[1].split()[0])
            wait_ready(port)
            first_text(port)  # loads what only the first request needs
            on.write_bytes(b"\1")
            ended = first_text(port)
            on.write_bytes(b"\0")
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
        lines = calls.read_text(encoding="utf-8").splitlines()
    recorded = [Call(float(at), int(pid), file, name) for at, pid, file, name in (line.split(" ", 3) for line in lines)]
    return sorted((call for call in recorded if call.seconds <= ended), key=lambda call: call.seconds)


def wait_ready(port: int) -> None:
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("GET", "/ready")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.2)


def first_text(port: int) -> float:
    """Send the request, and return the time of its first event with text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"Content-Type": "application/json"})
    response = connection.getresponse()
    seconds = 0.0
    for line in response:
        data = line.decode().removeprefix("data: ")
        if not seconds and data.startswith("{") and json.loads(data)["choices"][0]["delta"].get("content"):
            seconds = time.monotonic()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Trace one request through all processes of a server.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose server is started")
    parser.add_argument("--list", action="store_true", help="print every function, in the order of its first call")
    options = parser.parse_args()
    calls = trace(options.tree.resolve())
    named = list(dict.fromkeys((call.file, call.function) for call in calls if call.is_named))
    if options.list:
        for file, function in named:
            print(f"{file}:{function}")
    files = {file for file, _ in named}
    processes = {call.process for call in calls}
    print(f"{len(calls):,} calls of {len(named)} named functions in {len(files)} files, {len(processes)} processes")


if __name__ == "__main__":
    main()

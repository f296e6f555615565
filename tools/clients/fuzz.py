"""Send requests of Schemathesis to every endpoint of a server with a tiny random model, and fail at a server error.

    python -m tools.clients.fuzz --count 50

The requests are made from the OpenAPI description, in accord with it and against it. `--count` is the most random ones
per endpoint; systematic ones come in addition. Absent endpoints answer with 501 and are not part of the description.

Every answer takes seconds: the model has few denoising steps, and those of a request are lowered before it is sent.
The API accepts 1,000 steps and canvases of one token, and such an answer takes ten minutes and more on a CPU.

The answers are counted by endpoint and status. It also fails if an endpoint that generates text never did.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from gesso.bench.server import running_server

CONTEXT = 200
ANSWER = 32  # tokens of a canvas, and of an answer without a limit: most requests have none
STEPS = 2  # of a canvas; the second one depends on the first
MOST_STEPS = 1000  # that the API accepts
HOOKS = "tools.clients.fuzz_hooks"
SECONDS = 300  # for one answer, on a machine that does other work
OPTIONS = (
    *("--checks", "not_a_server_error"),
    *("--suppress-health-check", "all"),
    *("--request-timeout", str(SECONDS)),
    *("--workers", "2"),
    "--continue-on-failure",
    "--generation-deterministic",
    "--no-color",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="random requests per endpoint")
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="one endpoint; may be repeated")
    options = parser.parse_args()
    from tests.tiny import make

    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        model = make(Path(directory) / "model", sees=True)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "canvas_length": ANSWER}))
        defaults = {"max_new_tokens": ANSWER, "max_denoising_steps": STEPS}
        (model / "generation_config.json").write_text(json.dumps(defaults))
        arguments = ["--device", "cpu", "--model", str(model), "--max-length", str(CONTEXT)]
        arguments += ["--adapter-dir", directory]  # without adapters, but requests to load some are read
        with running_server(*arguments) as server:
            server.wait_ready()
            description = httpx.get(f"{server.url}/openapi.json").json()
            program = Path(sys.executable).with_name("schemathesis")
            command = [program, "run", f"{server.url}/openapi.json", *OPTIONS, "--max-examples", str(options.count)]
            for path in options.only:
                command += ["--include-path", path]
            environment = {**os.environ, "PYTHONPATH": os.getcwd(), "SCHEMATHESIS_HOOKS": HOOKS}
            status = subprocess.run(command, cwd=directory, env=environment).returncode
            answers = count_answers(description, server.log.read_text().splitlines())
    print(table(answers))
    tested = options.only or description["paths"]
    without_text = [path for path in generating(description) if path in tested and not answers[path][200]]
    if without_text:
        print(f"never answered: {', '.join(without_text)}", file=sys.stderr)
    sys.exit(status or bool(without_text))


def lower_steps(body: Any) -> None:
    """Lower the denoising steps of a request in place. A value that the API rejects stays as it is."""
    if not isinstance(body, dict):
        return
    # Ollama's API has the settings in its options.
    for fields in (body, body.get("options")):
        diffusion = fields.get("diffusion") if isinstance(fields, dict) else None
        steps = diffusion.get("steps") if isinstance(diffusion, dict) else None
        if type(steps) is int and STEPS < steps <= MOST_STEPS:
            diffusion["steps"] = STEPS


def generating(description: Mapping[str, Any]) -> list[str]:
    """Return the paths of the endpoints that generate text."""
    paths: Mapping[str, Any] = description["paths"]
    return [path for path, methods in paths.items() if "text" in methods.get("post", {}).get("tags", ())]


def count_answers(description: Mapping[str, Any], log: Iterable[str]) -> dict[str, Counter[int]]:
    """Return how often each endpoint gave each status, from the log of a server."""
    answers: dict[str, Counter[int]] = {path: Counter() for path in description["paths"]}
    patterns = {path: re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)) for path in answers}
    for line in log:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if event["event"] != "request":
            continue
        for path, pattern in patterns.items():
            if pattern.fullmatch(event["path"]):
                answers[path][event["status"]] += 1
                break
    return answers


def table(answers: Mapping[str, Counter[int]]) -> str:
    lines = [f"{'endpoint':32}{'answers':>8}{'200':>6}  others"]
    for path, counts in answers.items():
        others = ", ".join(f"{count} x {status}" for status, count in sorted(counts.items()) if status != 200)
        lines.append(f"{path:32}{counts.total():8}{counts[200]:6}  {others}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

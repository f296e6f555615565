"""Run the compliance cases of Open Responses, from a copy of their repository.

Cases over a WebSocket and of compaction are left out: this server has neither. `docs/guides/openai.md` says so.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from gesso.bench.server import running_server
from tools.clients.environments import NodeClient

RUNNER = NodeClient("open_responses", ("esbuild", "zod"))
MODEL = "gesso-mini"
OUT_OF_SCOPE = ("websocket", "compact")
IMAGES = "image-input"
LIMIT = 300
# Tokens after which the random model ends: a sixth of its vocabulary, so that every answer ends before its limit, as
# the case with an image expects.
ENDS = [1, 106, 50, *range(128, 192)]


def run(repository: Path) -> dict[str, str]:
    """Return the error of each case."""
    from tests.tiny import make

    RUNNER.install()
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        program = _bundle(repository, Path(directory))
        names = _cases(program)
        model = make(Path(directory) / "model", sees=True)
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))
        with running_server("--device", "cpu", "--name", MODEL) as server:
            server.wait_ready()
            results = _run(program, server.url, [name for name in names if name != IMAGES])
        with running_server("--device", "cpu", "--name", MODEL, "-m", str(model)) as server:
            server.wait_ready()
            results |= _run(program, server.url, [IMAGES])
    return results


def _bundle(repository: Path, directory: Path) -> Path:
    """Compile the command line of the cases into one file, with the packages of the environment."""
    modules = RUNNER.environment / "node_modules"
    program = directory / "cases.mjs"
    source = repository.absolute() / "bin" / "compliance-test.ts"
    options = ["--bundle", "--platform=node", "--format=esm", "--log-level=error", f"--outfile={program}"]
    subprocess.run([modules / ".bin" / "esbuild", source, *options], env={"NODE_PATH": str(modules)}, check=True)
    return program


def _cases(program: Path) -> list[str]:
    """Return the names of the cases, which the program lists if it is asked for another one."""
    done = subprocess.run(_command(program, "http://localhost", ["none"]), capture_output=True, text=True)
    names = done.stderr.partition("Available test IDs: ")[2].split(", ")
    return [name.strip() for name in names if not any(kind in name for kind in OUT_OF_SCOPE)]


def _run(program: Path, url: str, names: list[str]) -> dict[str, str]:
    done = subprocess.run(_command(program, url, names), capture_output=True, text=True, timeout=LIMIT)
    results = json.loads(done.stdout)["results"]
    return {case["id"]: "; ".join(case.get("errors") or []) for case in results if case["status"] != "running"}


def _command(program: Path, url: str, names: list[str]) -> list[str | Path]:
    options = ["--base-url", f"{url}/v1", "--api-key", "none", "--model", MODEL, "--json"]
    return ["node", program, *options, "--filter", ",".join(names)]

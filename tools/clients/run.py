"""`make test-clients`: run real clients against `gesso serve`, and print a table.

One server has the bundled model, and another one a small random model that sees images.

Each Python client is installed into a virtual environment of its own, because their dependencies conflict. The
JavaScript clients need `node` and `npm`. `--only NAME` runs some of the clients, `--url URL` uses a running server and
shows it no images.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from gesso.bench.server import running_server
from tools.clients.checks import MODEL, SEEING_MODEL

HERE = Path(__file__).parent
ENVIRONMENTS = Path(".clients")
LIMIT = 900  # seconds per client
# The requirements of each client's script; the table shows the version of the first.
PYTHON = {
    "openai_python": ["openai"],
    "anthropic_python": ["anthropic"],
    "ollama_python": ["ollama"],
    "langchain_python": ["langchain-openai"],
    "litellm_python": ["litellm", "mcp"],
    "instructor_python": ["instructor"],
    "pydantic_ai_python": ["pydantic-ai-slim[openai,anthropic]"],
    "llm_python": ["llm"],
    "lm_eval_python": ["lm_eval[api]", "torch>=2.11,<2.14", "transformers"],
    "guidellm_python": ["guidellm", "torch>=2.11,<2.14"],
    "inspect_python": ["inspect-ai", "openai"],
}
NODE = {
    "openai_node": ["openai"],
    "ai_sdk_node": ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*PYTHON, *NODE], help="may be repeated")
    parser.add_argument("--url", help="a running server; default: a new one")
    asked = parser.parse_args()
    names = asked.only or [*PYTHON, *NODE]
    for name in names:
        install(name)
    if asked.url:
        sys.exit(not check([asked.url], names))
    with (
        tempfile.TemporaryDirectory(prefix="gesso-") as directory,
        running_server("--device", "cpu", "--name", MODEL) as server,
        running_server("--device", "cpu", "--name", SEEING_MODEL, "-m", str(seeing_model(directory))) as seeing,
    ):
        for each in (server, seeing):
            each.wait_ready()
        sys.exit(not check([server.url, seeing.url], names))


def seeing_model(directory: str) -> Path:
    from tests.tiny import make

    return make(Path(directory) / "model", sees=True)


def install(name: str) -> None:
    """Install a client, unless that was done before."""
    if name in NODE:
        if not (HERE / "node_modules").exists():
            subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=HERE, check=True)
    elif not (ENVIRONMENTS / name / "installed").exists():
        print(f"installing {name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENTS / name], check=True)
        subprocess.run([interpreter(name), "-m", "pip", "install", "--quiet", *PYTHON[name]], check=True)
        (ENVIRONMENTS / name / "installed").touch()


def interpreter(name: str) -> str:
    return str(ENVIRONMENTS / name / "bin" / "python")


def check(urls: list[str], names: list[str]) -> bool:
    """Run the clients and print the table. Return whether all checks passed."""
    print("| client | version | checks |\n|---|---|---|")
    outcomes = [report(name, run(urls, name)) for name in names]
    return all(outcomes)


def run(urls: list[str], name: str) -> list[dict[str, str]]:
    script = ["node", str(HERE / f"{name}.mjs")] if name in NODE else [interpreter(name), str(HERE / f"{name}.py")]
    try:
        done = subprocess.run([*script, *urls], capture_output=True, text=True, timeout=LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [{"check": "start", "error": str(error)}]
    sys.stderr.write(done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    return found or [{"check": "start", "error": (done.stderr.strip().splitlines() or ["no output"])[-1]}]


def report(name: str, found: list[dict[str, str]]) -> bool:
    failed = [f"{one['check']} FAILED ({one['error']})" for one in found if one["error"]]
    passed = [one["check"] for one in found if not one["error"]]
    print(f"| {name} | {', '.join(versions(name))} | {', '.join(passed + failed)} |", flush=True)
    return not failed


def versions(name: str) -> list[str]:
    """Return the installed version of a client, or of each of its packages."""
    if name in NODE:
        packages = [HERE / "node_modules" / package / "package.json" for package in NODE[name]]
        return [f"{path.parent.name} {json.loads(path.read_text())['version']}" for path in packages]
    package = PYTHON[name][0].partition("[")[0]
    program = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([interpreter(name), "-c", program], capture_output=True, text=True)
    return [f"{package} {found.stdout.strip()}"]


if __name__ == "__main__":
    main()

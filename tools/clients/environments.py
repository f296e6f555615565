"""The clients, what each needs, and an environment for each."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = Path(".clients")
SHARED = "checks.mjs"  # imported by every JavaScript client
LIMIT = 900  # seconds per command that installs
ERROR_PREFIXES = ("ERROR: ", "npm error ")  # of pip's and npm's lines that say what went wrong


class NotInstalled(Exception):
    """Packages that cannot be installed, with the reason in one line."""


@dataclass(frozen=True)
class Client:
    """A script of this directory, and the packages in its environment."""

    name: str
    packages: tuple[str, ...]  # the first ones are named with their versions
    shown: int = 1

    @property
    def environment(self) -> Path:
        return (ENVIRONMENTS / self.name).absolute()

    def install(self) -> None:
        """Install the client, unless that was done before.

        Raises NotInstalled if that fails.
        """
        if (self.environment / "installed").exists():
            return
        print(f"installing {self.name}", file=sys.stderr)
        self.environment.mkdir(parents=True, exist_ok=True)
        self.install_packages()
        (self.environment / "installed").touch()

    def install_packages(self) -> None:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def version(self, package: str) -> str:
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        """Return the names of the packages that the page shows."""
        return [_bare(package) for package in self.packages[: self.shown]]

    def versions(self) -> list[str]:
        return [f"{package} {self.version(package)}" for package in self.names]


class PythonClient(Client):
    @property
    def interpreter(self) -> str:
        return str(self.environment / "bin" / "python")

    def install_packages(self) -> None:
        _run([sys.executable, "-m", "venv", str(self.environment)])
        _run([self.interpreter, "-m", "pip", "install", "--quiet", *self.packages])

    def command(self) -> list[str]:
        return [self.interpreter, str(HERE / f"{self.name}.py")]

    def version(self, package: str) -> str:
        program = f"from importlib.metadata import version; print(version({package!r}))"
        return subprocess.run([self.interpreter, "-c", program], capture_output=True, text=True).stdout.strip()


class NodeClient(Client):
    def install_packages(self) -> None:
        (self.environment / "package.json").write_text('{"private": true, "type": "module"}\n')
        options = ["--no-audit", "--no-fund", "--no-package-lock"]
        _run(["npm", "install", *options, *self.packages], directory=self.environment)

    def command(self) -> list[str]:
        """Return the command, with the script next to its packages: node looks for them there."""
        for file in (SHARED, f"{self.name}.mjs"):
            shutil.copy(HERE / file, self.environment)
        return ["node", str(self.environment / f"{self.name}.mjs")]

    def version(self, package: str) -> str:
        description = self.environment / "node_modules" / package / "package.json"
        return str(json.loads(description.read_text())["version"])


def _run(command: list[str], directory: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=directory, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        raise NotInstalled(reason(done.stderr))


def reason(stderr: str) -> str:
    """Return the line of pip's or npm's output that says why it failed: the first error, except npm's error code."""
    lines = stderr.strip().splitlines()
    for line in lines:
        for prefix in ERROR_PREFIXES:
            message = line.removeprefix(prefix)
            if message != line and not message.startswith("code "):
                return message
    return lines[-1] if lines else "no output"


def _bare(requirement: str) -> str:
    """Return the name of a package without extras and version. npm's names may begin with an @."""
    name = requirement.partition("[")[0]
    return name[:1] + name[1:].partition("@")[0]


TORCH = "torch>=2.11,<2.14"
_LANGCHAIN = ("langchain-openai", "langchain-anthropic", "langchain-ollama", "langgraph", "langchain")
# The newest langgraph needs a version of @langchain/core that npm does not have (2026-11).
_LANGGRAPH_JS = "@langchain/langgraph@1.4.13"
_LANGCHAIN_JS = ("langchain", "@langchain/openai", "@langchain/anthropic", "@langchain/ollama", _LANGGRAPH_JS, "zod")
_AI_SDK = ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic")
CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (
        PythonClient("openai_python", ("openai",)),
        NodeClient("openai_node", ("openai",)),
        PythonClient("anthropic_python", ("anthropic",)),
        NodeClient("anthropic_node", ("@anthropic-ai/sdk", "zod")),
        PythonClient("ollama_python", ("ollama",)),
        NodeClient("ollama_node", ("ollama",)),
        PythonClient("langchain_python", _LANGCHAIN, shown=4),
        NodeClient("langchain_node", _LANGCHAIN_JS, shown=5),
        PythonClient(
            "llama_index_python",
            ("llama-index-llms-openai-like", "llama-index-llms-ollama", "llama-index-core"),
            shown=3,
        ),
        PythonClient("litellm_python", ("litellm", "mcp")),
        PythonClient("aider_python", ("aider-chat",)),
        PythonClient("outlines_python", ("outlines", "openai")),
        PythonClient("instructor_python", ("instructor",)),
        PythonClient("pydantic_ai_python", ("pydantic-ai-slim[openai,anthropic]",)),
        PythonClient("llm_python", ("llm",)),
        NodeClient("ai_sdk_node", _AI_SDK, shown=4),
        PythonClient("lm_eval_python", ("lm_eval[api]", TORCH, "transformers")),
        PythonClient("guidellm_python", ("guidellm", TORCH)),
        PythonClient("inspect_python", ("inspect-ai", "openai")),
    )
}

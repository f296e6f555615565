"""aider with one message about a file, over the OpenAI and the Ollama API.

gesso-mini writes no edits in aider's formats, so this checks that aider got an answer, not that it changed the file.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import KEY, MODEL, run

OPTIONS = (
    "--no-git", "--yes-always", "--no-stream", "--no-check-update", "--no-show-model-warnings", "--analytics-disable",
    "--no-show-release-notes", "--no-gitignore", "--no-auto-lint", "--no-detect-urls", "--no-pretty",
    "--map-tokens", "0", "--edit-format", "ask",
)  # fmt: skip


def ask(model, environment):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "add.py").write_text("def add(a, b):\n    return a - b\n")
        done = subprocess.run(
            [sys.executable, "-m", "aider", *OPTIONS, "--model", model, "--message", "Who are you?", "add.py"],
            cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "Tokens:" in output and "litellm." not in output, output[-1500:]


def openai(url):
    ask(f"openai/{MODEL}", {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": KEY})


def ollama_chat(url):
    ask(f"ollama_chat/{MODEL}", {"OLLAMA_API_BASE": url})


run(openai, ollama_chat)

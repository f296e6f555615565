"""The `llm` command line, with the server as an extra OpenAI model."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, PERSON, QUESTION, is_person, is_text, run


def ask(url, *arguments):
    with tempfile.TemporaryDirectory() as directory:
        model = f"- model_id: gesso\n  model_name: {MODEL}\n  api_base: {url}/v1\n  supports_schema: true\n"
        (Path(directory) / "extra-openai-models.yaml").write_text(model)
        command = [sys.executable, "-m", "llm", "-m", "gesso", "--no-log", "--key", "none", *arguments]
        done = subprocess.run(
            command, env=os.environ | {"LLM_USER_PATH": directory}, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def prompt(url):
    is_text(ask(url, QUESTION))


def without_stream(url):
    is_text(ask(url, "--no-stream", "-o", "temperature", "0.5", "-o", "top_p", "0.9", QUESTION))


def schema(url):
    is_person(ask(url, "--schema", json.dumps(PERSON), "Ada Lovelace is 36 years old."))


run(prompt, without_stream, schema)

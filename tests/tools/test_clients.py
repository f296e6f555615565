"""The run of other projects' clients."""

import json
import sys

import pytest

from tools.clients import environments, fuzz, page, run
from tools.clients.environments import NotInstalled, PythonClient

NPM = """npm error code ERESOLVE
npm error ERESOLVE unable to resolve dependency tree
npm error A complete log of this run can be found in: debug.log
"""
PIP = """WARNING: pip is old
ERROR: Cannot install a and b because these package versions have conflicting dependencies.
ERROR: ResolutionImpossible: for help visit a page
"""


class Absent(PythonClient):
    """A client whose installer prints an error of pip."""

    def install_packages(self):
        program = f"import sys; sys.stderr.write({PIP!r}); sys.exit(1)"
        environments._run([sys.executable, "-c", program])


def test_a_client_that_cannot_be_installed_is_a_failed_row_and_the_others_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    page.PAGE.parent.mkdir(parents=True)
    absent = Absent("absent_python", ("absent[extra]", "other"))
    present = PythonClient("present_python", ("present",))
    present.environment.mkdir(parents=True)
    (present.environment / "installed").touch()
    installed, (row,) = run.install([absent, present])
    assert installed == [present]
    assert row.failed and "| absent (Python) | absent |" in row.line()
    assert "cannot be installed: Cannot install a and b because" in page.PAGE.read_text()


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (NPM, "ERESOLVE unable to resolve dependency tree"),
        (PIP, "Cannot install a and b because these package versions have conflicting dependencies."),
        ("a\nlast\n", "last"),
        ("", "no output"),
    ],
)
def test_the_reason_is_the_first_error_of_the_installer(stderr, reason):
    assert environments.reason(stderr) == reason


def test_the_page_names_packages_without_extras_and_pinned_versions():
    packages = ("pydantic-ai-slim[openai,anthropic]", "@langchain/langgraph@1.4.13", "zod@3", "ai")
    names = PythonClient("client_python", packages, shown=4).names
    assert names == ["pydantic-ai-slim", "@langchain/langgraph", "zod", "ai"]


def test_an_installer_that_is_absent_is_a_reason(tmp_path):
    with pytest.raises(NotInstalled, match="absent"):
        environments._run([str(tmp_path / "absent")])


def test_the_fuzzer_counts_answers_by_endpoint_and_knows_which_generate_text():
    text, models = {"post": {"tags": ["text"]}}, {"get": {"tags": ["models"]}}
    description = {"paths": {"/chat": text, "/models/{model}": models, "/models": models}}
    answered = [("/chat", 200), ("/models/a", 404), ("/chat", 400), ("/chat", 200), ("/nowhere", 404)]
    lines = [json.dumps({"event": "request", "path": path, "status": status}) for path, status in answered]
    answers = fuzz.count_answers(description, ["starting", *lines, json.dumps({"event": "ready"})])
    assert answers == {"/chat": {200: 2, 400: 1}, "/models/{model}": {404: 1}, "/models": {}}
    assert fuzz.generating(description) == ["/chat"]
    assert fuzz.table(answers).splitlines()[1].split() == ["/chat", "3", "2", "1", "x", "400"]


@pytest.mark.parametrize(
    ("generated", "sent"),
    [(1000, 2), (3, 2), (2, 2), (1, 1), (0, 0), (1001, 1001), (True, True), ("9", "9"), (9.0, 9.0)],
)
def test_the_fuzzer_lowers_valid_steps_only(generated, sent):
    """Invalid values must reach the server."""
    for body in ({"diffusion": {"steps": generated}, "n": 3}, {"options": {"diffusion": {"steps": generated}}}):
        fuzz.lower_steps(body)
        diffusion = body.get("options", body)["diffusion"]
        assert diffusion["steps"] == sent and type(diffusion["steps"]) is type(sent)
    for body in (None, [], "x", {"diffusion": 1}, {"options": []}):
        fuzz.lower_steps(body)

"""Workflows, issue forms and pre-commit hooks: valid under their schemas, and what they run exists."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.docs.test_commands import options

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_report.yml")) + [ROOT / ".github/ISSUE_TEMPLATE/bug.yml"]
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
}


def jobs(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job.get("steps", ())]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_github_are_valid_under_their_schemas(schema):
    check = pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema").main
    assert SCHEMAS[schema]
    done = CliRunner().invoke(check, ["--builtin-schema", schema, *map(str, SCHEMAS[schema])])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_have_a_version_and_jobs_only_the_permissions_that_they_need(path):
    for step in steps(path):
        assert "uses" not in step or re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", step["uses"]), step
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in jobs(path).items() if "permissions" in job}
    assert granted in ({}, {"publish": {"id-token": "write"}})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_and_scripts_that_workflows_run_exist(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in [step["run"] for step in steps(path) if "run" in step]:
        program, *words = line.split()
        if program == "make":
            assert set(words) <= targets, line
        elif program == "apt-get":
            assert words[0] == "update", line
        elif program == "docker":
            assert words[0] == "build" or options()[words[-1]], line
        else:
            assert (ROOT / program).exists(), line


def test_every_supported_python_is_checked():
    ci, release = WORKFLOWS
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert jobs(ci)["check"]["strategy"]["matrix"]["python"] == re.findall(r"Python :: (3\.\d+)", project)
    assert jobs(release)["publish"]["needs"] == ["ci", "build"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_commands_that_an_issue_form_asks_for_exist(path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for span in re.findall(r"`([^`]+)`", path.read_text(encoding="utf-8")):
        program, word, *rest = span.split()
        if program == "gesso" and word != "--version":
            assert word in options(), span
            assert {name for name in rest if name.startswith("--")} <= options()[word], span
        elif program == "make":
            assert word in targets, span


def test_hooks_run_the_tools_of_make_lint():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    tools = {hook["entry"].split()[0] for hook in local["hooks"]}
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    assert tools == {f".venv/bin/{tool}" for tool in re.findall(r"\$\(BIN\)/(\w+)", lint)}

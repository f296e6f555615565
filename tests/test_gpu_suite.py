"""Checks of the GPU suite that need no GPU: its imports, its groups, and the report of its runner."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import run

ROOT = Path(__file__).parent.parent
# Packages that `make test` needs and that a GPU machine may lack.
ABSENT = ("openai", "schemathesis", "httpx", "playwright", "hypothesis", "jsonschema",
          "jsonschema_rs", "peft", "zstandard", "tensorboard", "PIL", "xdist", "fastapi", "uvicorn", "pydantic",
          "prometheus_client")  # fmt: skip
COLLECT = f"""
import sys
sys.modules |= dict.fromkeys({ABSENT!r})  # an import of these now fails
import pytest
pytest.Config._ensure_unconfigure = lambda config: None  # as if the process were interrupted at its end
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_gpu_tests_are_collected_without_the_packages_of_other_tests():
    targets = [target for group in run.GROUPS for target in group.targets]
    options = ["--collect-only", "-m", "gpu or not gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, *targets, *options],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/gpu/test_serve.py::test_sixteen_mixed_clients_get_correct_answers" in done.stdout
    # Triton is imported. Libraries with bindings in C++ report the objects that are left when the interpreter exits.
    assert done.stderr == "" and " tests collected in " in done.stdout.splitlines()[-1]


def test_every_gpu_test_belongs_to_a_group():
    targets = {target.partition("::")[0] for group in run.GROUPS for target in group.targets}
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.gpu\b", path.read_text())]
    assert {str(path.relative_to(ROOT)) for path in marked} - {"tests/test_gpu_suite.py"} <= targets
    assert all(
        target in targets for target in map(str, (p.relative_to(ROOT) for p in (ROOT / "tests/gpu").glob("test_*")))
    )


def test_groups_share_the_card_as_far_as_its_memory_allows():
    group, other = (run.Group(name, (), memory=60, limit=1) for name in "ab")
    under_way = [run.Running(group, None, Path(), Path())]
    assert run.fits(group, [], 10), "one group runs whatever it needs"
    assert run.fits(other, under_way, 120) and not run.fits(other, under_way, 100)


@pytest.fixture
def runner(tmp_path):
    """Run groups of the given test files and return exit status and report."""

    def go(**files):
        groups = []
        for name, text in files.items():
            path = tmp_path / f"test_{name}.py"
            path.write_text(text)
            groups.append(run.Group(name, (str(path),), memory=1, limit=1 if name == "slow" else 300))
        machine = {"device": "none", "torch": "2", "triton": "3", "memory": 9}
        out = tmp_path / "report.json"
        return run.main(["--tree", "abc", "--out", str(out)], tuple(groups), machine), json.loads(out.read_text())

    return go


def test_a_report_lists_passed_tests_with_their_figures(runner):
    status, report = runner(good="def test_it(record_property):\n    record_property('error', 0.5)\n")
    assert status == 0 and report["passed"] and report["tree"] == "abc" and report["counts"] == {"passed": 1}
    (test,) = report["tests"]
    assert test["id"].endswith("test_good.py::test_it") and test["figures"] == {"error": "0.5"}


def test_failed_skipped_and_hanging_tests_do_not_count_as_passed(runner):
    status, report = runner(
        bad="import pytest\ndef test_it():\n    assert 1 == 2, 'words'\ndef test_no():\n    pytest.skip('no')\n",
        slow="import time\ndef test_it():\n    time.sleep(600)\n",
        broken="import nothing_of_this_name\n",
    )
    assert status == 1 and not report["passed"]
    assert report["counts"] == {"failed": 1, "skipped": 1, "timeout": 1, "error": 1}
    (failed,) = [test for test in report["tests"] if test["outcome"] == "failed"]
    assert "words" in failed["message"]


def test_a_run_without_a_tree_is_rejected(capsys):
    with pytest.raises(SystemExit):
        run.main(["--tree", " "])
    assert "TREE=" in capsys.readouterr().err

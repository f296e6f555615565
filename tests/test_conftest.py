"""Check how a run of the tests ends, which is what somebody who runs them for the first time reads."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_a_run_ends_with_its_result_even_if_triton_was_imported():
    """Libraries with bindings in C++ report their objects that are left when the interpreter exits."""
    arguments = ["--collect-only", str(TESTS / "backends/cuda/test_widen.py")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=TESTS.parent, capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    assert " tests collected in " in run.stdout.splitlines()[-1]

"""Importing torch without the garbage collector, and without the packages that few commands need."""

import json
import subprocess
import sys

import pytest

CODE = """
import gc, json, sys
from gesso.cli.importing import import_torch
import_torch()
found = {"enabled": gc.isenabled(), "frozen": gc.get_freeze_count()}
found["collections"] = sum(each["collections"] for each in gc.get_stats())
import gesso.api, gesso.backends
print(json.dumps(found | {"modules": list(sys.modules)}))
"""


@pytest.fixture(scope="module")
def process():
    """Facts about a process that has imported torch and the package. It takes seconds, so tests share one."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_torch_is_imported_without_the_garbage_collector_which_runs_again_after_it(process):
    assert process["enabled"] and process["frozen"] > 100_000
    assert process["collections"] < 50


@pytest.mark.parametrize("package", ["triton", "jsonschema_rs", "numba", "PIL"])
def test_importing_the_package_does_not_import_a_slow_one(process, package):
    assert package not in process["modules"]

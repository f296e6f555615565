"""Importing torch without the garbage collector."""

import subprocess
import sys

CODE = """
import gc
from gesso.cli.importing import import_torch
import_torch()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert sum(each["collections"] for each in gc.get_stats()) < 50
"""


def test_torch_is_imported_without_the_garbage_collector_which_runs_again_after_it():
    subprocess.run([sys.executable, "-c", CODE], check=True)

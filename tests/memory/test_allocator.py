"""The configuration of the CUDA allocator, and the commands that set it."""

import os
import subprocess
import sys

import pytest

from gesso.memory.allocator import EXPANDABLE, allocator_settings

# Prints the configuration when torch is imported, and stops there.
WATCH = """
import os, sys
class Watch:
    def find_spec(self, name, *more):
        if name == "torch":
            print(os.environ.get("PYTORCH_ALLOC_CONF"), os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
            sys.stdout.flush()
            os._exit(0)
sys.meta_path.insert(0, Watch())
import runpy
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
COMMANDS = (["gesso", "train", "recipe.toml"], ["benchmarks.train"])
USERS = ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})


def at_import(command, environment):
    """Return the values of both variables when a command imports torch."""
    clean = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *command], env=clean | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_segments_are_expandable_before_training_imports_torch(command):
    assert at_import(command, {}) == [EXPANDABLE, "None"]


def test_the_configuration_of_the_user_stays():
    assert [allocator_settings(environment) for environment in USERS] == [{}, {}]
    assert at_import(COMMANDS[0], USERS[1]) == ["None", "max_split_size_mb:64"]

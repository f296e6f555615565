"""Virtual environments without a network: they have the packages of this one, Gesso aside."""

import os
import sysconfig
import venv
from pathlib import Path


def create(directory: Path) -> Path:
    """Create an environment and return the directory of its commands."""
    packages = directory / "packages"
    packages.mkdir(parents=True)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith("gesso"):
            (packages / path.name).symlink_to(path)
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    commands = directory / "bin"
    # Not a pip of its own: it would come with setuptools, in place of the newer one that torch requires.
    (commands / "pip").write_text(f'#!/bin/sh\nexec {commands}/python -m pip "$@"\n', encoding="utf-8")
    (commands / "pip").chmod(0o755)
    return commands


def variables(commands: Path) -> dict[str, str]:
    """Return the environment variables of a process that runs there: nothing of the repository, no network for pip."""
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return inherited | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "false",  # pip reads this variable inverted: build with the installed hatchling
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

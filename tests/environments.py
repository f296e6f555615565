"""Virtual environments without a network: they have the packages of this one, Gesso aside."""

import os
import sysconfig
import venv
from pathlib import Path


def create(directory: Path, *, with_pip: bool = False) -> Path:
    """Create an environment and return the directory of its commands."""
    packages = directory / "packages"
    packages.mkdir(parents=True)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith("gesso"):
            (packages / path.name).symlink_to(path)
    venv.create(directory, symlinks=True, with_pip=with_pip)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    return directory / "bin"


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

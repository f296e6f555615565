"""Code outside the package that a recipe or a command names: `module:name`."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from gesso.errors import InputError


def load_own(name: str, field: str, example: str) -> Any:
    """Return the class or function that `module:name` names. Errors begin with `field` and show `example`.

    The module must be a file below the current directory, like the data files of a recipe: a recipe cannot run code
    that is not there.
    """
    match = re.fullmatch(r"(\w+(?:\.\w+)*):(\w+)", name)
    path = Path(match[1].replace(".", "/")).with_suffix(".py") if match else None
    if match is None or path is None or not path.is_file():
        file = example.partition(":")[0].replace(".", "/") + ".py"
        raise InputError(
            f"{field} must name a class or function in a Python file below the current directory, such as {example} "
            f"for {file}; got {name!r}"
        )
    here = str(Path.cwd())
    if sys.path[0] != here:  # the console script does not search the current directory
        sys.path.insert(0, here)
    try:
        return getattr(import_module(match[1]), match[2])
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot load {field} {name!r} from {path}: {error}") from error

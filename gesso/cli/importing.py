"""Import torch in less time."""

import gc
import importlib


def import_torch() -> None:
    """Import torch and the modules that load models.

    The garbage collector would run hundreds of times meanwhile, and again over all modules later: it takes a tenth of
    the time of the import. Modules live as long as the process, so it does not have to look at them.
    """
    gc.disable()
    try:
        importlib.import_module("gesso.loading")
        gc.freeze()
    finally:
        gc.enable()

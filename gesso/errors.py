"""What can go wrong, by whose fault: the caller's input, or the files of a checkpoint."""


class GessoError(Exception):
    """Base of every error gesso raises on purpose; its message says what was wrong and what to do."""


class InputError(GessoError, ValueError):
    """An argument, prompt, pin or setting that cannot be used."""


class CheckpointError(GessoError):
    """A checkpoint directory whose configuration, tensors or tokenizer cannot be loaded."""


class DoesNotFitError(GessoError):
    """A model that needs more memory than may be used. `fits` is a quantization that would fit, if there is one."""

    def __init__(self, message: str, fits: str | None = None) -> None:
        super().__init__(message)
        self.fits = fits

"""What can go wrong, by whose fault: the caller's input, or the files of a checkpoint."""


class GessoError(Exception):
    """Base of every error gesso raises on purpose; its message says what was wrong and what to do."""


class InputError(GessoError, ValueError):
    """An argument, prompt, pin or setting that cannot be used."""


class CheckpointError(GessoError):
    """A checkpoint directory whose configuration, tensors or tokenizer cannot be loaded."""

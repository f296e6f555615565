"""What can go wrong, by whose fault: the caller's input, the files of a checkpoint, or the model's answer."""


class GessoError(Exception):
    """Base of every error gesso raises on purpose; its message says what was wrong and what to do."""


class InputError(GessoError, ValueError):
    """An argument, prompt, pin or setting that cannot be used."""


class CheckpointError(GessoError):
    """A checkpoint directory whose configuration, tensors or tokenizer cannot be loaded."""


class ConstraintError(GessoError):
    """An answer that is not valid under its schema, and that other attempts did not correct. It is not returned."""

    def __init__(self, problem: str, attempts: int) -> None:
        """`problem` has the place in the answer, as a JSON path, and the reason."""
        tried = f"in {attempts} attempts" if attempts > 1 else "in a stream, whose text cannot be written again"
        super().__init__(
            f"no valid answer {tried}: {problem}; the constraint cannot keep this part of the schema by itself, so ask "
            "for it in the prompt, simplify the schema, or use another seed"
        )
        self.problem = problem


class DoesNotFitError(GessoError):
    """A model that needs more memory than may be used. `fits` is a quantization that would fit, if there is one."""

    def __init__(self, message: str, fits: str | None = None) -> None:
        super().__init__(message)
        self.fits = fits


class ContextOverflow(InputError):
    """A prompt and its answer exceed the context."""

    def __init__(self, prompt_tokens: int, new_tokens: int, limit: int) -> None:
        super().__init__(
            f"context overflow: a prompt of {prompt_tokens} tokens and {new_tokens} new ones "
            f"exceed the context of {limit}; shorten the prompt or lower max_new_tokens"
        )
        self.prompt_tokens = prompt_tokens
        self.new_tokens = new_tokens
        self.limit = limit


class TextOverflow(InputError):
    """A text that cannot fit the context by its length. It has not been tokenized."""

    def __init__(self, characters: int, least: int, limit: int) -> None:
        super().__init__(f"{characters} characters have at least {least} tokens, and the context has {limit}")
        self.characters = characters
        self.least = least
        self.limit = limit

"""A served model without its weights: configuration, tokenizer, defaults and names."""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from gesso.bundled import BASE, DIRECTORIES, SOLVER
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.source import locate
from gesso.constraints.constraint import Guides
from gesso.serve.errors import ApiError
from gesso.serve.settings import ServerSettings


class ModelFrontend:
    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.adapters: Collection[str] = settings.engine.adapters  # names; they change while the server runs
        source = locate(settings.engine.model)
        self.config = source.config
        self.defaults = GenerationDefaults.from_directory(source.directory, self.config)
        self.tokenizer = Tokenizer.from_directory(source.directory)
        eos = frozenset(self.defaults.eos_token_ids)
        self.guides = Guides(self.tokenizer, self.config.vocab_size, eos)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def models(self) -> list[str]:
        return [self.name, *self.adapters]

    @property
    def bundled_name(self) -> str | None:
        """The name of the bundled model that is served, under whatever name."""
        model = self.settings.engine.model
        if model is None:
            return BASE
        return model if model in DIRECTORIES else None

    @property
    def chats(self) -> bool:
        """Whether the model is made for conversations: gesso-sudoku only solves Sudokus."""
        return self.bundled_name != SOLVER

    @property
    def longest(self) -> int:
        """The longest context that a server may choose."""
        longest = self.config.max_position_embeddings
        return min(self.settings.engine.max_length or longest, longest)

    @cached_property
    def may_see(self) -> bool:
        """Whether the model can see images if its checkpoint has a vision tower, which only the engine knows."""
        config, marks = self.config, self.tokenizer.image_ids
        same = marks == (config.image_token_id, config.boi_token_id, config.eoi_token_id)
        return self.settings.images and config.has_image_tokens and same

    def served_name(self, model: str) -> str | None:
        """Return the name of the model or adapter that a request means by `model`, or None if it is not served here.

        Ollama's clients add the tag `:latest`. A bundled model also has its own name.
        """
        for name in (model, model.removesuffix(":latest")):
            if name in self.models:
                return name
            if name == self.bundled_name:
                return self.name
        return None

    def adapter(self, model: str | None) -> str | None:
        """Return the adapter that a request names, or None for the base model."""
        name = None if model is None else self.served_name(model)
        return None if name == self.name else name

    def check_size(self, characters: int, context: int, field: str) -> None:
        """Reject the text of a field that cannot fit the context by its length, without tokenizing it."""
        least = characters // self.tokenizer.longest_piece
        if least > context:
            raise ApiError(
                400,
                f"{field}: {characters} characters have at least {least} tokens. "
                f"This model's maximum context length is {context} tokens; shorten {field}",
                param=field,
                code="context_length_exceeded",
            )


def frontend_of(frontends: Sequence[ModelFrontend], model: str | None) -> ModelFrontend:
    """Return the frontend of a model name. The first frontend is the default."""
    if model is None:
        return frontends[0]
    for frontend in frontends:
        if frontend.served_name(model) is not None:
            return frontend
    known = ", ".join(name for frontend in frontends for name in frontend.models)
    raise ApiError(404, f"there is no model {model[:100]!r}; available: {known}", param="model", code="model_not_found")


def characters(value: Any) -> int:
    """Count the characters of all strings in a JSON value."""
    total, pending = 0, [value]
    while pending:
        match pending.pop():
            case str() as text:
                total += len(text)
            case dict() as fields:
                pending += fields.values()
                total += sum(map(len, fields))
            case list() as items:
                pending += items
    return total

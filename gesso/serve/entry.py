"""A served model without its weights: its names, its settings, and what its requests depend on."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

from gesso.bundled import BASE, DIRECTORIES, SOLVER
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.source import locate
from gesso.constraints.constraint import Guides
from gesso.engine.ways import Writing
from gesso.request.info import ClientLimits, ModelInfo, never_first_of
from gesso.serve.errors import ApiError
from gesso.serve.settings import ServerSettings
from gesso.serve.wire import Readiness


class ModelEntry:
    """One model of a server, as the server and its request reader know it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.adapters: Collection[str] = settings.engine.adapters  # names; they change while the server runs
        source = locate(settings.engine.model)
        tokenizer = Tokenizer.from_directory(source.directory)
        defaults = GenerationDefaults.from_directory(source.directory, source.config)
        longest = source.config.max_position_embeddings
        # Of a model whose engine is not ready.
        self.info = ModelInfo(
            tokenizer=tokenizer,
            config=source.config,
            defaults=defaults,
            guides=Guides(tokenizer, source.config.vocab_size, frozenset(defaults.eos_token_ids)),
            never_first=never_first_of(tokenizer, defaults),
            limits=ClientLimits(request_tokens=settings.limits.request_tokens),
            max_length=min(settings.engine.max_length or longest, longest),
            writing=Writing(write=settings.engine.write or defaults.diffusion.write),
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self.info.tokenizer

    @property
    def guess(self) -> Readiness:
        """What is assumed of the engine until it is ready: the most that it can be."""
        return Readiness(
            max_length=self.info.max_length,
            write=self.info.writing.write,
            canvas_length=None,
            vision=self.may_see,
        )

    def info_at(self, readiness: Readiness) -> ModelInfo:
        """Return what requests depend on when the engine is ready."""
        writing = Writing(write=readiness.write, canvas_length=readiness.canvas_length)
        return replace(self.info, max_length=readiness.max_length, writing=writing)

    # --- names --------------------------------------------------------------------------------------------------------

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

    @cached_property
    def may_see(self) -> bool:
        """Whether the model can see images if its checkpoint has a vision tower, which only the engine knows."""
        config, marks = self.info.config, self.tokenizer.image_ids
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


def entry_of(entries: Sequence[ModelEntry], model: str | None) -> ModelEntry:
    """Return the entry of a model name. The first entry is the default."""
    if model is None:
        return entries[0]
    for entry in entries:
        if entry.served_name(model) is not None:
            return entry
    known = ", ".join(name for entry in entries for name in entry.models)
    raise ApiError(404, f"there is no model {model[:100]!r}; available: {known}", param="model", code="model_not_found")

"""What requests depend on of a model, without its weights: the server resolves requests that another process runs."""

from dataclasses import dataclass

from gesso.chat.healing import Healer
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.generation import GenerationDefaults
from gesso.constraints.constraint import Guides
from gesso.engine.ways import Writing
from gesso.errors import TextOverflow
from gesso.model.config import Config

# Special tokens that may begin an answer. With any other, the answer would be empty.
OPENINGS = ("<|channel>", "<|tool_call>")


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """Limits of a server on the requests of its clients, where a longer answer is lowered to what fits."""

    request_tokens: int | None = None  # of prompt and answer; None: the context


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model as its requests depend on it. A server knows the last three only when its engine is ready."""

    tokenizer: Tokenizer
    config: Config
    defaults: GenerationDefaults
    guides: Guides
    never_first: frozenset[int]  # tokens with which no text begins
    limits: ClientLimits | None = None  # None: none but the model's own
    max_length: int  # upper limit of the tokens of prompt and new text
    writing: Writing  # of requests that leave it open
    adapter: str | None = None  # of requests that name none

    @property
    def eos_token_id(self) -> int:
        """The token that ends a text; the first one if the checkpoint has several."""
        return self.defaults.eos_token_ids[0]

    @property
    def healer(self) -> Healer:
        return self.tokenizer.healer

    @property
    def room(self) -> int:
        """The most tokens of a prompt and its answer."""
        limit = None if self.limits is None else self.limits.request_tokens
        return self.max_length if limit is None else min(self.max_length, limit)

    def length_after(self, prompt_tokens: int, given: int | None) -> int:
        """Return the most new tokens after a prompt. Only a server lowers a given number to what fits."""
        if given is not None and self.limits is None:
            return given
        usual = self.defaults.max_new_tokens if given is None else given
        return max(1, min(usual, self.room - prompt_tokens))

    def check_size(self, characters: int) -> None:
        """Reject a text of a server's client that cannot fit the context by its length, without tokenizing it."""
        least = characters // self.tokenizer.longest_piece
        if self.limits is not None and least > self.max_length:
            raise TextOverflow(characters, least, self.max_length)


def never_first_of(tokenizer: Tokenizer, defaults: GenerationDefaults) -> frozenset[int]:
    """Return the tokens with which no text begins."""
    openings = {tokenizer.id_of(piece) for piece in OPENINGS}
    return frozenset((tokenizer.special_ids | set(defaults.eos_token_ids)) - openings)

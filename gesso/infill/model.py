"""The parts of a loaded model that the plans for infill and edit use."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.constraint import Guides
from gesso.engine.request import Request
from gesso.infill.boundary import Healer
from gesso.model.config import Config


class InfillModel(Protocol):
    """Implemented by `gesso.Gesso`. None of it runs the network, so a process without weights can implement it too."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def config(self) -> Config: ...

    @property
    def eos_token_id(self) -> int:
        """The token that ends a text."""

    @property
    def guides(self) -> Guides: ...

    @property
    def healer(self) -> Healer: ...

    @property
    def max_length(self) -> int:
        """Upper limit of the tokens of prompt and new text."""

    @property
    def request(self) -> Callable[..., Request]:
        """Builds a request from a prompt and the options of `Gesso.generate`."""

    def decode(self, tokens: Sequence[int]) -> str: ...

"""Results of infill and edit."""

from dataclasses import dataclass

from gesso.engine.events import Result


@dataclass(frozen=True)
class HoleCandidate:
    """A text that was tried for a hole."""

    length: int  # tokens in the hole
    text: str
    log_likelihood: float  # of this text and the text after it, given the text before, in nats


@dataclass(frozen=True)
class InfillResult(Result):
    """`text` fills the hole. `tokens` are the generated ones and may start with the end of the prefix: see `Healer`."""

    method: str = "prompt"
    candidates: tuple[HoleCandidate, ...] = ()  # if several were tried: the best of each length, or one per seed


@dataclass(frozen=True)
class HolesResult:
    """`text` is the whole text, `middles` are the texts in its holes."""

    text: str
    middles: tuple[InfillResult, ...]


@dataclass(frozen=True)
class EditResult(Result):
    """`text` is the whole text, `replacement` the new text of the span."""

    replacement: str = ""
    method: str = "prompt"

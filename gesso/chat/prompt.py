"""A conversation as the model reads it: token ids, with the soft tokens of images in their places."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gesso.images.image import Image
from gesso.images.tokens import image_tokens


@dataclass(frozen=True)
class Prompt:
    """A conversation to continue, from `Gesso.prompt`. `Gesso.generate` takes it in place of a text."""

    tokens: list[int]  # soft tokens of `images` included: see `gesso.images.tokens`
    images: tuple[Image, ...] = ()

    def __add__(self, text: Sequence[int]) -> "Prompt":
        """Return the prompt with more text after it."""
        return Prompt([*self.tokens, *text], self.images)


def with_soft_tokens(ids: Sequence[int], images: Sequence[Image], mark: int, begin: int, end: int) -> list[int]:
    """Return token ids in which every `mark` is replaced by an image: `begin`, its soft tokens, `end`.

    There are as many marks as images, in the same order.
    """
    remaining: Iterator[Image] = iter(images)
    placed: list[int] = []
    for token in ids:
        if token == mark:
            image = next(remaining)
            placed += (begin, *image_tokens(image.digest, image.tokens), end)
        else:
            placed.append(token)
    return placed

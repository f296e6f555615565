"""The soft tokens of images in a prompt.

A prompt is a sequence of token ids. Each soft token of an image is a negative number that names the image and the place
in it, so that two prompts are equal only if their images are. These numbers never reach the network: its input at these
positions is the features of the image.
"""

from collections.abc import Sequence

PLACE_BITS = 11  # an image has fewer than 2,048 soft tokens


def image_tokens(digest: int, count: int) -> tuple[int, ...]:
    """Return the soft tokens of an image."""
    return tuple(-1 - (digest << PLACE_BITS | place) for place in range(count))


def is_image(token: int) -> bool:
    return token < 0


def image_of(token: int) -> tuple[int, int]:
    """Return the digest of the image that a soft token belongs to, and the place in it."""
    return (-1 - token) >> PLACE_BITS, (-1 - token) & ((1 << PLACE_BITS) - 1)


def blocks(prompt: Sequence[int]) -> list[range]:
    """Return the positions of each image of a prompt: the longest ranges of successive soft tokens of one image."""
    ranges: list[range] = []
    at = 0
    while at < len(prompt):
        start = at
        at += 1
        if is_image(prompt[start]):
            while at < len(prompt) and prompt[at] == prompt[at - 1] - 1 and image_of(prompt[at])[1]:
                at += 1
            ranges.append(range(start, at))
    return ranges

"""Images in rows of training data: read from files relative to the data or `data:` URLs, and placed in the text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso.chat.image_parts import images_of, read_images
from gesso.chat.messages import check_messages
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.vision import has_vision
from gesso.errors import CheckpointError, InputError
from gesso.images.image import Image
from gesso.images.sources import read_source
from gesso.model.vision_config import VisionConfig
from gesso.train.files import is_local

if TYPE_CHECKING:
    from gesso.checkpoint.source import CheckpointSource

Span = tuple[int, int]
DATA_URL = re.compile("data:", re.IGNORECASE)


@dataclass(frozen=True)
class RowImageReader:
    """The sizes and tokens of images in the prompts of one model."""

    vision: VisionConfig
    ids: tuple[int, int, int]  # the token of an image, and those before and after it

    @classmethod
    def of(cls, source: "CheckpointSource", tokenizer: Tokenizer) -> "RowImageReader | None":
        """Return the reader for a checkpoint; None if it has no vision tower."""
        if not has_vision(source):
            return None
        config = source.config
        ids = config.image_token_id, config.boi_token_id, config.eoi_token_id
        if tokenizer.image_ids != ids:
            raise CheckpointError(
                f"config.json of {source.path} names the tokens {ids} for images, and the tokenizer "
                f"{tokenizer.image_ids}; use the files of one checkpoint"
            )
        return cls(config.vision, ids)

    def read(self, source: Any, where: str, budget: int | None, file: str) -> Image:
        """Return an image of a row. A path is relative to the data file. Errors begin with `where`."""
        if isinstance(source, str) and not DATA_URL.match(source) and "://" not in source:
            if not is_local(file):
                raise InputError(
                    f"{where}: the pictures of hub datasets are not downloaded; embed them as data: URLs, or download "
                    "the dataset and name its data file"
                )
            source = Path(file).parent / Path(source).expanduser()
        return read_source(
            source,
            where,
            budget,
            patch=self.vision.patch_size,
            pool=self.vision.pooling_kernel_size,
            positions=self.vision.position_embedding_size,
        )


def read_row_images(
    row: dict[str, Any], reader: RowImageReader | None, file: str
) -> tuple[dict[str, Any], tuple[Image, ...]]:
    """Return a row with messages in which every image is read, and these images in order."""

    def read(source: Any, where: str, budget: int | None) -> Image:
        if reader is None:
            raise InputError(
                f"{where}: this model does not accept images: its checkpoint has no vision tower; choose one that has, "
                "or leave the image out"
            )
        return reader.read(source, where, budget, file)

    if "messages" not in row:
        return row, ()
    messages = read_images(row["messages"], read)
    return {**row, "messages": messages}, images_of(check_messages(messages))


def place_images(
    tokens: Sequence[int], spans: Sequence[Span], images: Sequence[Image], ids: tuple[int, int, int]
) -> tuple[list[int], list[Span], list[int]]:
    """Return tokens in which each image has its begin, soft and end tokens, the moved spans, and where images start.

    Soft tokens are repetitions of the image token. The given tokens have one for each image, before the responses that
    the spans name or between them.
    """
    mark, begin, end = ids
    marks = [place for place, token in enumerate(tokens) if token == mark]
    if len(marks) != len(images):
        raise InputError(f"the text has {len(marks)} image tokens for {len(images)} images; expected one for each")
    placed: list[int] = []
    starts: list[int] = []
    done = 0
    for at, image in zip(marks, images, strict=True):
        placed += [*tokens[done:at], begin]
        starts.append(len(placed))
        placed += [*[mark] * image.tokens, end]
        done = at + 1
    placed += tokens[done:]
    added = [image.tokens + 1 for image in images]  # an image token becomes two more and its soft tokens

    def moved(place: int) -> int:
        return place + sum(more for at, more in zip(marks, added, strict=True) if at < place)

    return placed, [(moved(start), moved(end)) for start, end in spans], starts

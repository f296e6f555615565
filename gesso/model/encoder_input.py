"""Split text for the encoder into segments.

A segment is what the encoder reads in one pass: a run of text, or the tokens of one image. In the ids, an image is a
run of image tokens, which only reserve its positions: the vision tower has already computed its embeddings.

B batch, S tokens of a row or of a segment, H hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from gesso.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EncoderSegment:
    ids_S: Tensor
    image_SH: Tensor | None = None  # the embeddings of the image, if the segment is one


def split_batch(
    ids_BS: Tensor, is_text_BS: Tensor, images: Sequence[Tensor], image_token: int | None
) -> list[list[EncoderSegment]]:
    """Return the segments of each row, without padding.

    There is one image for each run of image tokens, row by row. Without images, image tokens are text.
    """
    rows = [ids_S[is_text_S] for ids_S, is_text_S in zip(ids_BS, is_text_BS, strict=True)]
    if not images:
        return [[EncoderSegment(ids_S=ids_S)] if len(ids_S) else [] for ids_S in rows]

    token = -1 if image_token is None else image_token  # no id is negative
    runs_by_row = [list(_runs(ids_S, token)) for ids_S in rows]
    _check_images(images, [run_S for runs in runs_by_row for run_S, is_image in runs if is_image])
    next_image = iter(images)
    segments_by_row = []
    for runs in runs_by_row:
        segments = []
        for run_S, is_image in runs:
            segments.append(EncoderSegment(ids_S=run_S, image_SH=next(next_image) if is_image else None))
        segments_by_row.append(segments)
    return segments_by_row


def _runs(ids_S: Tensor, image_token: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield the runs of image tokens and the text between them, and whether each is an image."""
    is_image_S = ids_S == image_token
    borders = (is_image_S[1:] != is_image_S[:-1]).nonzero().flatten() + 1
    for run_S in ids_S.tensor_split(borders.cpu()):
        if len(run_S):
            yield run_S, bool(run_S[0] == image_token)


def _check_images(images: Sequence[Tensor], runs: Sequence[Tensor]) -> None:
    """Check that there is one image for each run of image tokens, of the same length."""
    if [len(image) for image in images] != [len(run) for run in runs]:
        raise InputError(
            f"the ids have runs of {[len(run) for run in runs]} image tokens, but the images have "
            f"{[len(image) for image in images]} soft tokens; give one image for each run, in order"
        )

"""The grid that a model reads in a picture.

The vision tower of gesso-sudoku turns a picture into one soft token per cell, near the embedding of the cell's digit.
The digit that was read is the nearest one.

S soft tokens, D digits, H hidden size of the text.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gesso.chat.prompt import Prompt
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.images.tokens import image_tokens
from gesso.model.transformer import DiffusionGemma

if TYPE_CHECKING:
    from gesso.api import Gesso

CELLS = 81


def digit_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens of the digits 0 to 9: at the beginning of a grid, and after a space."""
    first = [tokenizer.encode(digit, bos=False) for digit in "0123456789"]
    rest = [tokenizer.encode(f"0 {digit}", bos=False)[1:] for digit in "0123456789"]
    if any(len(tokens) != 1 for tokens in (*first, *rest)):
        raise InputError("this model's tokenizer has no token for a digit with its space; use gesso-sudoku")
    return [token for (token,) in first], [token for (token,) in rest]


def digit_embeddings(model: DiffusionGemma, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return the embeddings [D, H] of the digits at the beginning of a grid, and those of digits after a space."""
    with torch.no_grad():
        first_DH, rest_DH = (
            model.embed(torch.tensor(tokens, device=model.device), model.encoder).float()
            for tokens in digit_tokens(tokenizer)
        )
    return first_DH, rest_DH


def nearest_digits(soft_SH: Tensor, first_DH: Tensor, rest_DH: Tensor) -> Tensor:
    """Return the digit [S] that is nearest to each soft token."""
    far_SD = torch.cdist(soft_SH, rest_DH)
    far_SD[0] = torch.cdist(soft_SH[:1], first_DH)[0]
    return far_SD.argmin(-1)


def check_cells(image: Image, where: str) -> None:
    """Reject an image that is not one soft token per cell. Errors begin with `where`."""
    if image.tokens != CELLS or image.rows != image.columns:
        raise InputError(
            f"{where}: expected a picture of a Sudoku in one soft token per cell, got {image.tokens} tokens; crop the "
            "picture to the grid, and use the model gesso-sudoku"
        )


def read_grid(g: "Gesso", image: Image, where: str = "image") -> str:
    """Return the grid in a picture: 81 digits, with 0 for an empty cell."""
    check_cells(image, where)
    first_DH, rest_DH = digit_embeddings(g.model, g.tokenizer)
    soft_SH = g.engine.runner.seen.features(image).float()
    return "".join(map(str, nearest_digits(soft_SH, first_DH, rest_DH).tolist()))


def puzzle_prompt(g: "Gesso", image: Image, where: str = "image") -> Prompt:
    """Return a prompt with a picture in place of a typed puzzle.

    There are no tokens around the image, as chats have them: the model was trained on prompts of a bos and 81 cells.
    """
    check_cells(image, where)
    begin = [] if g.tokenizer.bos_id is None else [g.tokenizer.bos_id]
    return Prompt([*begin, *image_tokens(image.digest, image.tokens)], (image,))

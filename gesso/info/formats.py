"""How the parameters of a checkpoint are stored, what they become on a GPU, and the error of that."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.stored import FLOATS, ParameterRecipe

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    from gesso.checkpoint.quantize.packed import Packed

# The kinds of parameters, each with a part of the names that belong to it. The first that matches counts.
KINDS = (
    ("experts, gate and up", "experts.gate_up_proj"),
    ("experts, down", "experts.down_proj"),
    ("attention", "self_attn."),
    ("dense MLP", ".mlp."),
    ("self-conditioning", ".self_conditioning."),
    ("embeddings", "embed_tokens"),
    ("head", "lm_head"),
    ("router", ".router."),
)
MOST_VALUES = 2**22  # of a matrix that is measured


@dataclass(frozen=True, kw_only=True)
class StoredAs:
    """Matrices of one kind that are stored in one format. `error` is relative, by root mean square."""

    kind: str
    matrices: int
    values: int
    stored: str
    on_gpu: str
    error: float  # of `on_gpu` against `stored`; 0 if it is exact


def stored_formats(source: CheckpointSource) -> tuple[StoredAs, ...]:
    """Return the formats of all matrices. Vectors are few and always stored in full."""
    matrices = [(name, recipe) for name, recipe in source.recipes.items() if len(recipe.shape) > 1]

    def key(named: tuple[str, ParameterRecipe]) -> tuple[int, str, str]:
        return _place(named[0]), named[1].format, named[1].native

    rows = []
    for (place, stored, native), group in groupby(sorted(matrices, key=key), key):
        recipes = [recipe for _, recipe in group]
        rows.append(
            StoredAs(
                kind=KINDS[place][0] if place < len(KINDS) else "other",
                matrices=len(recipes),
                values=sum(math.prod(recipe.shape) for recipe in recipes),
                stored=stored,
                on_gpu="bf16" if native in FLOATS else native,
                error=_error(min(recipes, key=lambda recipe: recipe.nbytes)),
            )
        )
    return tuple(rows)


def _place(name: str) -> int:
    return next((place for place, (_, part) in enumerate(KINDS) if part in name), len(KINDS))


def _error(recipe: ParameterRecipe) -> float:
    """Return the error of repacking, measured on the first expert or on the whole matrix."""
    if recipe.repack is None:
        return 0.0
    import torch

    from gesso.checkpoint.quantize.packed import Packed
    from gesso.checkpoint.transfer import DirectReader

    with DirectReader() as reader:
        packed = recipe.build(reader.begin(recipe.parts)())
    assert isinstance(packed, Packed)
    sample = _sample(packed)
    exact = sample.dense(torch.float32)
    converted = recipe.repack(sample)
    values = converted.dense(torch.float32) if isinstance(converted, Packed) else converted.float()
    total = exact.square().sum().item()
    return math.sqrt((values - exact).square().sum().item() / total) if total else 0.0


def _sample(packed: "Packed") -> "Packed":
    """Return the first expert as a stack of one, or the first rows of a matrix."""
    from gesso.checkpoint.quantize.packed import Packed

    shape = packed.shape
    count = 1 if len(shape) == 3 else max(1, min(shape[0], MOST_VALUES // shape[1]))
    tensors = {key: tensor[:count] for key, tensor in packed.tensors.items()}
    return Packed(packed.format, (count, *shape[1:]), tensors, packed.unpack, packed.dtype)


def rounded(rows: Iterable[StoredAs]) -> bool:
    """Return whether anything is rounded on the way to a GPU."""
    return any(row.error for row in rows)

"""Models on a CPU: which matrices have four and eight bits, random codes, and tensors mapped from a file."""

import math
from pathlib import Path

import pytest
import torch

import gesso
from gesso.checkpoint import random_weights, transfer
from gesso.checkpoint.load import load
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.source import CheckpointSource, open_source
from gesso.checkpoint.stored import Stored
from gesso.errors import CheckpointError, InputError
from gesso.memory.budget import Budget
from gesso.model.transformer import DiffusionGemma

CPU = torch.device("cpu")
EIGHT = ("self_attn", "embed_tokens")


def formats(model: DiffusionGemma) -> dict[str, str]:
    return {name: module.format for name, module in model.named_modules() if isinstance(module, Packed)}


@pytest.mark.parametrize("quantize", ["int4", "int4-int8"])
def test_every_matrix_but_the_router_is_packed_on_a_cpu(tiny_directory: Path, quantize: str) -> None:
    model = gesso.load(tiny_directory, device="cpu", quantize=quantize).model
    found = formats(model)
    assert len(found) == 2 * 8 + 1 + 3 + 1, "layers, value projection of the sliding one, conditioning, embeddings"
    for name, format in found.items():
        eight = quantize == "int4-int8" and any(part in name.split(".") for part in EIGHT)
        assert format == ("int8" if eight else "int4"), name
    left = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    assert left and all(".router." in name for name in left)


@pytest.mark.parametrize("quantize", ["int4", "int4-int8"])
def test_memory_is_counted_as_it_is_used(tiny_directory: Path, quantize: str) -> None:
    model = gesso.load(tiny_directory, device="cpu", quantize=quantize).model
    kept = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    source = open_source(tiny_directory)
    assert Budget(source.config, 0, 4, 256, on_cpu=True).weights(quantize) == kept


def test_a_model_packed_for_a_cpu_generates_and_cannot_be_saved(tiny_directory: Path, tmp_path: Path) -> None:
    for quantize in ("int4", "int4-int8"):
        g = gesso.load(tiny_directory, device="cpu", quantize=quantize)
        assert g.generate("def", max_new_tokens=4, steps=2, seed=1).usage.completion_tokens
        with pytest.raises(InputError, match="cannot save"):
            g.save(tmp_path / "again")


@pytest.mark.parametrize(("name", "largest"), [("int4", 7), ("int8", 127)])
@pytest.mark.parametrize("shape", [(64, 512), (2, 32, 512)])
def test_drawn_codes_have_the_layout_and_the_deviation_of_random_weights(
    name: str, largest: int, shape: tuple[int, ...]
) -> None:
    format = FORMATS[name]
    assert format.draw is not None
    tensors = format.draw(shape, torch.Generator().manual_seed(1))
    assert {key: (tuple(t.shape), t.dtype) for key, t in tensors.items()} == format.layout(shape)
    values = format.unpack(tensors)
    assert values.std().item() == pytest.approx(512**-0.5, rel=0.02)
    assert abs(values.mean().item()) < 0.02 * 512**-0.5
    codes = (values / tensors["weight_scale"][..., :1].float()).round()
    assert codes.min() == -largest and codes.max() == largest
    again = format.draw(shape, torch.Generator().manual_seed(1))
    assert all(torch.equal(tensors[key], again[key]) for key in tensors)


def test_random_weights_are_drawn_packed_on_a_cpu() -> None:
    config = random_weights.config_of("mini")
    model = load(CheckpointSource(None, Path(), config), CPU, torch.float32, "int4", on_cpu=True)
    found = formats(model)
    assert {format for name, format in found.items() if not name.endswith("experts.down_proj")} == {"int4"}
    assert found["decoder.layers.0.experts.down_proj"] == "fp8", "88 inputs are not a multiple of 32"
    with torch.no_grad():
        cache = model.new_cache(1, 32)
        logits = model.logits(model.encode(torch.arange(8)[None], cache))
    assert logits.isfinite().all() and logits.std() > 0.1, "neither vanishing nor saturated"
    spread = (logits - logits.mean((0, 1))).std() / logits.std()
    assert spread > 0.5, "positions differ"


# --- mapped files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stored") / "int4"
    convert.quantize(tiny_directory, target, "int4")
    return target


def logits(model: DiffusionGemma) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.encode(torch.arange(3, 40)[None], model.new_cache(1, 64)))


@pytest.fixture
def map_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map tensors of any size, as if all were larger than a megabyte."""
    monkeypatch.setattr(transfer, "LEAST_MAPPED", 1)  # models of tests have no tensor of a megabyte


@pytest.mark.usefixtures("map_small")
def test_packed_tensors_of_a_file_are_mapped_and_give_the_same_numbers(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(stored)
    expected = logits(load(source, CPU, torch.float32))
    read: list[str] = []
    read_into = transfer.read_into

    def recorded(memory: memoryview, part: Stored, offset: int) -> None:
        read.append(part.name)
        read_into(memory, part, offset)

    monkeypatch.setattr(transfer, "read_into", recorded)  # a mapped tensor has the same values as one that was read
    model = load(source, CPU, torch.float32, on_cpu=True)
    packed = {name for name, recipe in source.recipes.items() if recipe.format in FORMATS}
    assert packed and not any(name.startswith(tuple(packed)) for name in read)
    assert torch.equal(logits(model), expected)


def test_packed_matrices_can_be_converted_one_by_one_while_they_load(stored: Path) -> None:
    def convert(packed: Packed) -> Packed:
        return FORMATS["int8"].quantize("w", packed.dense()) if packed.format == "fp8" else packed

    model = load(open_source(stored), CPU, torch.float32, on_cpu=True, convert=convert)
    assert set(formats(model).values()) == {"int4", "int8"}
    plain = load(open_source(stored), CPU, torch.float32)
    tables = (each.decoder.embed_tokens.weight for each in (model, plain))
    mine, theirs = (table.dense() for table in tables if isinstance(table, Packed))
    assert 0 < (mine - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.usefixtures("map_small")
def test_writing_to_a_mapped_tensor_does_not_change_the_file(stored: Path) -> None:
    before = [file.read_bytes() for file in open_source(stored).files]
    model = load(open_source(stored), CPU, torch.float32, on_cpu=True)
    for tensor in model.buffers():
        tensor.view(torch.uint8).zero_()
    del model
    assert [file.read_bytes() for file in open_source(stored).files] == before


def test_a_file_that_ends_too_early_is_not_mapped(stored: Path, tmp_path: Path) -> None:
    part = max(open_source(stored).headers[0].values(), key=lambda part: part.nbytes)
    short = tmp_path / "short.safetensors"
    short.write_bytes(b"0" * math.floor(part.nbytes / 2))
    broken = Stored(part.name, short, 0, max(part.nbytes, transfer.LEAST_MAPPED), "U8", (part.nbytes,))
    with pytest.raises(CheckpointError, match="short.safetensors cannot be mapped"):
        transfer.MappedReader().begin([broken])()

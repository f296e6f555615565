"""GGUF files that gesso writes: read by the `gguf` package with the converter's names, types and metadata."""

import json
from collections import Counter
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from gesso import bundled
from gesso.checkpoint.gguf import metadata, tokenizer
from gesso.checkpoint.gguf.choose import choose
from gesso.checkpoint.gguf.companions import companions
from gesso.checkpoint.gguf.convert import quantize
from gesso.checkpoint.gguf.file import read
from gesso.checkpoint.gguf.names import names
from gesso.checkpoint.gguf.recipes import recipes
from gesso.checkpoint.gguf.types import TYPES, row_bytes
from gesso.checkpoint.gguf.write import write
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.random_weights import config_of
from gesso.checkpoint.stored import Inventory
from gesso.errors import CheckpointError, InputError
from gesso.model.config import Config
from tests import tiny
from tests.checkpoint.gguf import making

SIZES = {"hidden_size": making.HIDDEN, "intermediate_size": making.WIDTH, "moe_intermediate_size": making.EXPERT}
SINGLE = "model.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A tiny checkpoint of the shape of `making`, with distinct norms and scales, and generation settings."""
    directory = tiny.make(tmp_path_factory.mktemp("source") / "tiny", num_experts=making.EXPERTS, **SIZES)
    tensors = load_file(directory / SINGLE)
    generator = torch.Generator().manual_seed(3)
    tensors |= {name: 1 + torch.randn(t.shape, generator=generator) / 10 for name, t in tensors.items() if t.ndim == 1}
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    settings = {"max_denoising_steps": 24, "t_min": 0.4, "sampler_config": {"entropy_bound": 0.1}}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


@pytest.fixture(scope="module", params=["bf16", "q8_0", "q4_0", "q4_k_m"])
def written(request, source, tmp_path_factory):
    target = tmp_path_factory.mktemp("written") / "new" / "model.gguf"
    return request.param, target, quantize(source, target, request.param)


def contents(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def expected_type(to, name):
    if len(making.SHAPES[name]) == 1 or "gate_inp" in name:
        return "F32"
    if to in ("bf16", "q8_0"):
        return to.upper()
    if name == "token_embd.weight":
        return "Q6_K"
    if to == "q4_0":
        return "Q4_0"
    # With two layers, the second gets more bits, and so does the only matrix of values.
    wide = making.SHAPES[name][-1] % 256 == 0
    more = name.startswith("blk.1.ffn_down") or "attn_v" in name
    return ("Q6_K" if wide else "Q8_0") if more else ("Q4_K" if wide else "Q5_0")


# --- the file -----------------------------------------------------------------------------------------------------


def test_the_package_reads_the_names_shapes_and_types_of_the_converter(written):
    to, path, _ = written
    tensors = gguf.GGUFReader(path).tensors
    assert {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in tensors} == making.SHAPES
    assert {t.name: t.tensor_type.name for t in tensors} == {name: expected_type(to, name) for name in making.SHAPES}
    assert path.stat().st_size % 32 == 0


def test_the_package_reads_the_metadata_of_the_converter(written):
    to, path, _ = written
    found = contents(path)
    for key, (_, value) in making.METADATA.items():
        assert found[key] == pytest.approx(value) if isinstance(value, float) else found[key] == value, key
    assert found["general.architecture"] == "diffusion-gemma"
    assert found["general.file_type"] == {"bf16": 32, "q8_0": 7, "q4_0": 2, "q4_k_m": 15}[to]
    experts = sum(np.prod(shape) for name, shape in making.SHAPES.items() if "exps.weight" in name)
    shared = sum(np.prod(shape) for shape in making.SHAPES.values()) - experts
    assert found["general.size_label"] == gguf.size_label(0, shared, experts // making.EXPERTS, making.EXPERTS)
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    assert len(found["tokenizer.ggml.tokens"]) == len(found["tokenizer.ggml.token_type"]) == making.VOCABULARY
    assert found["tokenizer.ggml.token_type"][105:107] == [3, 3] and found["tokenizer.ggml.token_type"][200] == 6


def test_written_files_are_read_back_with_the_configuration_the_weights_and_the_tokenizer(source, written):
    to, path, report = written
    config, original = making.config(metadata.config(read(path), {106: "<turn|>"})), Config.from_directory(source)
    assert replace(config, raw={}, eos_token_ids=()) == replace(original, raw={}, eos_token_ids=())
    files = companions(path)
    assert files["tokenizer.json"] == (source / "tokenizer.json").read_text(encoding="utf-8")
    inventory = Inventory(read(path).tensors)
    weights = making.weights(recipes(config, inventory))
    assert inventory.report() == [] and weights.keys() == parameters(config).keys()
    exact = load_file(source / SINGLE)
    for name, weight in weights.items():
        dense = weight.dense(torch.float32) if isinstance(weight, Packed) else weight.float()
        if dense.ndim == 1 or ".router." in name:
            assert torch.equal(dense, exact[name]), name
        error = ((dense - exact[name]).square().sum() / exact[name].square().sum()).sqrt().item()
        assert report.errors.get(name, error) == pytest.approx(error, rel=1e-3)
        assert error < {"bf16": 0.002, "q8_0": 0.006}.get(to, 0.09), name
    assert bool(report.errors) == (to != "bf16") and report.bytes == path.stat().st_size


def test_the_types_of_the_26b_in_q4_k_m_are_those_of_the_published_file():
    config = config_of("26b-a4b")
    shapes = {names(name)[0]: shape for name, shape in parameters(config).items()} | {"rope_freqs.weight": (256,)}
    types = choose(shapes, "q4_k_m")
    assert Counter(types.values()) == {"Q4_K": 194, "Q5_0": 33, "Q6_K": 14, "Q8_0": 28, "F32": 423}
    size = sum(np.prod(shape[:-1]) * row_bytes(TYPES[types[name]], shape[-1]) for name, shape in shapes.items())
    assert 16_780_000_000 < size < 16_806_810_336  # the rest is the header
    assert {types[f"blk.{i}.attn_v.weight"] for i in (0, 1, 2, 6, 28)} == {"Q6_K"}


# --- the tokenizer ------------------------------------------------------------------------------------------------


def test_tokenizers_encode_the_same_from_the_whole_file_and_gemma_also_from_the_keys_of_the_converter(tmp_path):
    config = config_of("mini")
    gemma = making.gemma_tokenizer()
    gemma["added_tokens"].append({**gemma["added_tokens"][0], "id": 60, "content": "<unused60>", "special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(gemma, ensure_ascii=False), encoding="utf-8")
    tensors = [(name, torch.zeros(shape)) for name, shape in parameters(config).items()]
    for directory in (bundled.directory(), tmp_path):
        path = tmp_path / f"{directory.name}.gguf"
        write(path, config, directory, tensors, "q4_0")
        file = read(path)
        stripped = {key: value for key, value in file.metadata.items() if key != tokenizer.WHOLE}
        rebuilt = [file] if directory != tmp_path else [file, replace(file, metadata=stripped)]
        original = Tokenizer.from_file(str(directory / "tokenizer.json"))
        for found in rebuilt:
            core = Tokenizer.from_str(tokenizer.tokenizer_json(found))
            for text in (*making.TEXTS, "a<unused60>b"):
                assert core.encode(text).ids == original.encode(text).ids, text
                assert core.decode(core.encode(text).ids) == original.decode(original.encode(text).ids), text
        path.unlink()


# --- errors -------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_nothing(tmp_path, source):
    config = Config.from_directory(source)

    def broken():
        yield from list(load_file(source / SINGLE).items())[:3]
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        write(tmp_path / "a.gguf", config, source, broken(), "q8_0")
    few = list(load_file(source / SINGLE).items())[:3]
    with pytest.raises(CheckpointError, match="lacks tensor model"):
        write(tmp_path / "a.gguf", config, source, few, "q8_0")
    with pytest.raises(InputError, match="model.decoder.norm.weight cannot be stored as F32"):
        write(tmp_path / "a.gguf", config, source, [("model.decoder.norm.weight", torch.tensor([torch.nan]))], "q8_0")
    assert list(tmp_path.iterdir()) == []


def test_wrong_targets_types_and_sources_are_rejected_before_anything_is_read(tmp_path, source):
    (tmp_path / "old.gguf").write_text("x")
    for target, to, message in (
        ("old.gguf", "q8_0", "exists; choose another name"),
        ("model", "q8_0", "ends in .gguf"),
        ("new.gguf", "q2_k", "unknown type 'q2_k' for a GGUF file; known are bf16, q8_0, q4_0, q4_k_m"),
    ):
        with pytest.raises(InputError, match=message):
            quantize(source, tmp_path / target, to)
    assert [path.name for path in tmp_path.iterdir()] == ["old.gguf"]
    untied = replace(Config.from_directory(source), tie_word_embeddings=False)
    with pytest.raises(InputError, match="weights of their own"):
        write(tmp_path / "new.gguf", untied, source, [], "q8_0")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("generation_config.json", '{"t_min": "low"}', "t_min must be a number"),
        ("generation_config.json", '{"max_denoising_steps": 1.5}', "max_denoising_steps must be an integer"),
        ("generation_config.json", '{"sampler_config": 3}', "sampler_config must be an object"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}, "type": "Unigram"}}', "needs a BPE tokenizer"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 9999}}}', "token 9999 is outside the vocabulary"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [[1]]}}', "pairs of tokens"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}}}', "pairs of tokens"),
    ],
)
def test_companion_files_that_cannot_be_stored_are_rejected_by_name(tmp_path, source, name, text, message):
    (tmp_path / "tokenizer.json").write_text(tiny.tokenizer_json())
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=message) as error:
        write(tmp_path / "new.gguf", Config.from_directory(source), tmp_path, [], "q8_0")
    assert name in str(error.value)


def test_the_command_writes_a_gguf_file_and_reports_errors_as_json(tmp_path, source, main):
    arguments = ["quantize", str(source), str(tmp_path / "a.gguf"), "--to", "q8_0", "--json", "--format"]
    done = main(*arguments, "gguf")
    report = json.loads(done.out)
    assert report["format"] == "q8_0" and report["bytes"] == (tmp_path / "a.gguf").stat().st_size
    done = main(*arguments, "zip")
    assert done.code == 2 and "unknown format 'zip'; known are gesso, compressed-tensors, gguf" in done.err

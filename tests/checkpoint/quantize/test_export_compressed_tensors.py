"""Checkpoints for other programs: `transformers` and compressed-tensors read the values that gesso reads."""

import json
import re
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, disable_quantization
from safetensors.torch import load_file
from transformers import DiffusionGemmaForBlockDiffusion

from gesso.checkpoint import write
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import is_vision
from gesso.checkpoint.quantize import convert, export_compressed_tensors
from gesso.checkpoint.quantize.formats import is_table
from gesso.checkpoint.safetensors import SINGLE
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from tests import tiny
from tests.checkpoint.fixtures.source import config
from tests.checkpoint.reading import dense, linears, logits, model_of, weights

CPU = torch.device("cpu")
EXPERT = "model.decoder.layers.0.experts.1.up_proj."
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "quantization.md"


def make(directory, **changes):
    model = DiffusionGemma(Config.from_dict(config() | changes))
    tiny.randomise(model, 0, std=0.2)
    write.save(model.bfloat16(), directory, files={"tokenizer.json": tiny.tokenizer_json()})
    return directory


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make(tmp_path_factory.mktemp("export") / "source")


@pytest.fixture(scope="module", params=["fp8", "int4", "nvfp4"])
def exported(request, source, tmp_path_factory):
    target = tmp_path_factory.mktemp(request.param) / "exported"
    return request.param, target, export_compressed_tensors.quantize(source, target, request.param)


def test_gesso_loads_what_it_exports(source, exported):
    _, target, report = exported
    found = weights(open_source(target).recipes)
    exact = load_file(source / SINGLE)
    packed = {name for name, weight in found.items() if not isinstance(weight, torch.Tensor)}
    assert report.errors.keys() == packed
    for name, weight in found.items():
        off = (dense(weight) - exact[name].float()).norm() / exact[name].float().norm()
        assert off.item() == pytest.approx(report.errors.get(name, 0), rel=1e-4)
    model = load(open_source(target), CPU, torch.float32)
    assert torch.equal(logits(model), logits(model_of(model.config, {n: dense(w) for n, w in found.items()})))


def test_a_loaded_export_cannot_be_saved_in_the_layout_of_gesso(exported, tmp_path):
    """Its configuration may be one that gesso writes, too, but its formats differ: embeddings and self-conditioning."""
    found = open_source(exported[1])
    assert found.is_foreign
    with pytest.raises(InputError, match="cannot save a model with the formats of"):
        write.save(load(found, CPU, torch.float32), tmp_path / "saved")


def test_only_layers_are_quantized(source, exported):
    """vLLM rejects or misreads quantized embeddings and self-conditioning."""
    name, target, report = exported
    stored = load_file(target / SINGLE)
    for tensor, exact in load_file(source / SINGLE).items():
        if tensor not in report.errors:
            assert torch.equal(stored[tensor], exact)
    kept = [tensor for tensor in stored if is_table(tensor) or is_vision(tensor) or "self_cond" in tensor]
    assert {stored[tensor].dtype for tensor in kept} == {torch.bfloat16}
    keys = {"fp8": {"weight", "weight_scale"}, "int4": {"weight_packed", "weight_scale", "weight_shape"},
            "nvfp4": {"weight_packed", "weight_scale", "weight_global_scale"}}  # fmt: skip
    assert {tensor.removeprefix(EXPERT) for tensor in stored if tensor.startswith(EXPERT)} == keys[name]


def test_the_library_decompresses_every_matrix_to_the_same_values(exported):
    """It computes in the dtype of the scales, bfloat16, or for NVFP4 rounds the result to that."""
    _, target, _ = exported
    raw = json.loads((target / "config.json").read_text())
    settings = QuantizationConfig.model_validate(raw["quantization_config"])
    schemes = {group.targets[0]: group for group in settings.config_groups.values()}
    stored = load_file(target / SINGLE)
    found = {}
    for name, weight in weights(open_source(target).recipes).items():
        found |= {module.removesuffix("weight"): values for module, values in linears(name, dense(weight)).items()}
    checked = 0
    for module, values in found.items():
        state = {tensor.removeprefix(module): t for tensor, t in stored.items() if tensor.startswith(module)}
        if "weight_scale" not in state:
            continue
        scheme = next(iter(schemes.values())) if "experts" in module else schemes["Linear"]
        made = BaseCompressor.get_value_from_registry(scheme.format).decompress(state, scheme)["weight"]
        assert torch.equal(made, values.bfloat16()), module
        checked += 1
    assert checked == 2 * (3 + 2 * 3) + 4 + 3  # the second layer has no value projection


@pytest.fixture
def mapping(monkeypatch):
    """Register the conversion mapping of the documentation for a test. A later save would be affected by it, too."""
    from transformers import conversion_mapping

    monkeypatch.setattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", None)  # filled by earlier tests
    monkeypatch.setattr(conversion_mapping, "USER_REGISTERED_MAPPINGS", set())  # restored afterwards
    (code,) = re.findall(r"```\{code-block\} python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})


# Not nvfp4: transformers 5.22 does not apply the global scales of experts.
@pytest.mark.parametrize("exported", ["fp8", "int4"], indirect=True)
def test_transformers_computes_the_same_logits(exported, mapping):
    name, target, _ = exported
    theirs, report = DiffusionGemmaForBlockDiffusion.from_pretrained(
        target, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    found = {key: dense(weight) for key, weight in weights(open_source(target).recipes).items()}
    if name == "int4":  # it computes the values of experts in the dtype of their scales, and leaves them in that
        found = {key: weight.bfloat16().float() if weight.ndim == 3 else weight for key, weight in found.items()}
        for layer in theirs.model.decoder.layers:
            layer.experts.float()
    ours = model_of(Config.from_directory(target), found)
    generator = torch.Generator().manual_seed(1)
    ids, canvas = (torch.randint(4, 128, (1, n), generator=generator) for n in (7, 5))
    cache = ours.new_cache(1, 16)
    theirs.eval().apply(disable_quantization)  # of activations
    with torch.no_grad():
        ours.encode(ids, cache)
        expected = ours.denoise(canvas, cache)
        assert torch.allclose(theirs(input_ids=ids, decoder_input_ids=canvas).logits, expected, atol=1e-4)
    after = theirs.state_dict()
    for key, weight in found.items():
        assert torch.equal(after[key].float(), weight), key


def test_an_untied_encoder_has_its_own_tensors(tmp_path):
    make(tmp_path / "untied", tie_word_embeddings=False)
    export_compressed_tensors.quantize(tmp_path / "untied", tmp_path / "small", "int4")
    stored = load_file(tmp_path / "small" / SINGLE)
    name = "layers.0.self_attn.q_proj.weight"
    assert not torch.equal(stored[f"model.encoder.language_model.{name}_scale"], stored[f"model.decoder.{name}_scale"])
    found = open_source(tmp_path / "small")
    assert found.problems == []
    assert found.recipes["model.encoder.language_model.layers.1.experts.down_proj"].format == "int4"


def test_gate_and_up_share_a_global_scale(source, tmp_path):
    """vLLM uses that of the gate for both."""
    export_compressed_tensors.quantize(source, tmp_path / "made", "nvfp4")
    stored = load_file(tmp_path / "made" / SINGLE)
    for expert in (0, 1):
        prefix = f"model.decoder.layers.0.experts.{expert}"
        gate, up = (stored[f"{prefix}.{half}_proj.weight_global_scale"] for half in ("gate", "up"))
        assert torch.equal(gate, up)
        assert gate.shape == (1,)


def test_quantization_config_says_what_vllm_needs():
    for to in ("fp8", "int4", "nvfp4"):
        given = export_compressed_tensors.quantization_config(to)
        *_, rest = given["config_groups"].values()
        assert rest["targets"] == ["Linear"]
        assert rest["input_activations"]["strategy"] == "token"
        assert rest["input_activations"]["dynamic"] is True
        for part in ("embed_tokens", "router", "self_conditioning", "vision_tower", "embed_vision"):
            assert f"re:.*{part}.*" in given["ignore"]


def test_quantize_command_writes_the_format(source, tmp_path, main):
    arguments = ("quantize", str(source), str(tmp_path / "out"), "--format", "compressed-tensors", "--to")
    for to in ("fp8-layers", "q4_0"):
        found = main(*arguments, to)
        assert (found.code, "fp8, int4, nvfp4" in found.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert main(*arguments, "int4").code == 0
    assert open_source(tmp_path / "out").problems == []
    with pytest.raises(InputError, match="already"):
        convert.quantize(tmp_path / "out", tmp_path / "again", "fp8")


def test_sizes_that_do_not_fit_the_blocks_are_rejected_by_name(tmp_path):
    text = config()["text_config"] | {"moe_intermediate_size": 24}
    make(tmp_path / "odd", text_config=text)
    with pytest.raises(InputError, match=r"layers\.0\.experts\.down_proj .* blocks of 32"):
        export_compressed_tensors.quantize(tmp_path / "odd", tmp_path / "out", "int4")
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]

"""The report of `gesso info`: published figures, the reference's counts, problems of broken files."""

import json
import subprocess
import sys
from dataclasses import asdict
from io import StringIO
from math import prod
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from gesso.checkpoint.source import open_source
from gesso.checkpoint.vision import vision_bytes
from gesso.errors import CheckpointError
from gesso.info.precisions import CONTEXTS, MEMORY_RULES, PRECISIONS
from gesso.info.render import render_report
from gesso.info.report import ModelReport, describe
from gesso.model.config import Config
from tests.tiny import make

# The fields of google/diffusiongemma-26B-A4B-it that determine its size.
REAL = {
    "model_type": "diffusion_gemma",
    "dtype": "bfloat16",
    "canvas_length": 256,
    "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72, "patch_size": 16, "standardize": True,
        "use_clipped_linears": False,
    },
    "text_config": {
        "vocab_size": 262_144, "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704,
        "num_experts": 128, "top_k_experts": 8, "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
        "sliding_window": 1024, "max_position_embeddings": 262_144,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    },
}  # fmt: skip
TINY = {
    "model_type": "diffusion_gemma",
    "dtype": "float32",
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 2,
        "position_embedding_size": 6, "standardize": True,
    },
    "text_config": {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 8, "num_experts": 4,
        "top_k_experts": 2, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_global_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16, "sliding_window": 8,
        "max_position_embeddings": 32_768,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
}  # fmt: skip


def write(directory: Path, raw: dict) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def add_tokenizer(directory: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    core.save(str(directory / "tokenizer.json"))


def text_of(report: ModelReport, width: int = 80) -> str:
    out = StringIO()
    render_report(report, Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> ModelReport:
    return describe(open_source(write(tmp_path_factory.mktemp("real"), REAL)), "google/diffusiongemma-26B-A4B-it")


@pytest.fixture
def saved(tmp_path) -> Path:
    """A tiny checkpoint as transformers writes it, in several shards, with a tokenizer."""
    transformers = pytest.importorskip("transformers")
    model = transformers.DiffusionGemmaForBlockDiffusion(transformers.DiffusionGemmaConfig.from_dict(TINY))
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    add_tokenizer(tmp_path / "saved")
    return tmp_path / "saved"


# --- numbers ------------------------------------------------------------------------------------------------------


def test_26b_has_the_published_number_of_parameters(real):
    assert real.parameters.total == 25_823_778_864
    assert real.parameters.text + real.parameters.vision == real.parameters.total
    assert real.parameters.active == real.parameters.text - 30 * 120 * 3 * 704 * 2816
    assert round(real.parameters.active / 1e9, 1) == 3.8


def test_26b_cache_is_20480_bytes_per_token_and_a_fixed_ring(real):
    cache = {cell.context: cell.cache_bytes for cell in real.memory}
    # layers, key and value, window - 1 and spare tokens, heads, head dim, bytes
    ring = 25 * 2 * (1024 - 1 + 64) * 8 * 256 * 2
    assert round(ring / 1e9, 1) == 0.2
    assert cache == {context: ring + 20_480 * context for context in (8_192, 32_768, 262_144)}


def test_26b_weights_follow_the_memory_rules_in_every_precision(real):
    hidden = 2816
    matrices = [(262_144, hidden), (2112, hidden), (2112, hidden), (hidden, 2112)]  # embedding, self-conditioning
    other = hidden + hidden + 2 * 30  # their two norms, encoder and decoder scalars
    for layer in range(30):
        dim, kv_heads = (512, 2) if layer % 6 == 5 else (256, 8)
        matrices += [(16 * dim, hidden), (kv_heads * dim, hidden), (hidden, 16 * dim)]
        matrices += [] if layer % 6 == 5 else [(kv_heads * dim, hidden)]  # the value of a global layer is its key
        matrices += [(2112, hidden), (2112, hidden), (hidden, 2112), (128, 1408, hidden), (128, hidden, 704)]
        other += 2 * dim + 7 * hidden + hidden + 128 * hidden + 128  # norms, router
    experts = [shape for shape in matrices if len(shape) == 3]
    single = [shape for shape in matrices if len(shape) == 2]
    values = sum(map(prod, matrices))

    def fp8(shapes):
        return sum(map(prod, shapes)) + 4 * sum(prod(shape[:-1]) for shape in shapes)

    expected = {
        "bf16": 2 * (values + other),
        "fp8": fp8(matrices) + 2 * other,
        # int4 has a scale per 32 values, and the shape of each expert as two integers
        "4-bit": sum(map(prod, experts)) * 9 // 16 + 16 * 128 * len(experts) + fp8(single) + 2 * other,
    }
    tower = vision_bytes(Config.from_dict(REAL), 2)
    expected = {precision: size + tower for precision, size in expected.items()}
    assert {cell.precision: cell.weight_bytes for cell in real.memory} == expected


def test_memory_has_every_precision_and_context(real):
    assert [(c.precision, c.context) for c in real.memory] == [(p, c) for p in PRECISIONS for c in CONTEXTS]
    for cell in real.memory:
        assert not cell.beyond_context
        assert cell.cache_bytes is not None
        assert cell.total_bytes == cell.weight_bytes + cell.cache_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_counts_equal_reference(tied, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    raw = TINY | {"tie_word_embeddings": tied}
    with torch.device("meta"):
        model = transformers.DiffusionGemmaForBlockDiffusion(transformers.DiffusionGemmaConfig.from_dict(raw))
    parameters = describe(open_source(write(tmp_path / "model", raw)), "tiny").parameters
    assert parameters.total == sum(p.numel() for p in model.parameters())
    assert parameters.vision == sum(p.numel() for name, p in model.named_parameters() if "vision" in name)


def test_a_precision_that_cannot_store_a_matrix_is_left_out(tmp_path):
    text = TINY["text_config"] | {"hidden_size": 5, "intermediate_size": 3, "moe_intermediate_size": 1}
    report = describe(open_source(write(tmp_path / "odd", TINY | {"text_config": text})), "odd")
    assert {cell.precision for cell in report.memory} == {"bf16", "fp8"}
    assert {row.quantize for row in report.cpu} == {"none", "fp8", "int4-int8", "int4"}, "a CPU uses fp8 in its place"


def test_architecture_separates_sliding_and_global_layers(real):
    a = real.architecture
    assert (a.layers, a.sliding_layers, a.global_layers, a.hidden_size) == (30, 25, 5, 2816)
    assert {(s.kind, s.layers, s.query_heads, s.kv_heads, s.head_dim) for s in a.attention} == {
        ("sliding", 25, 16, 8, 256),
        ("global", 5, 16, 2, 512),
    }
    assert (a.experts, a.active_experts, a.vocabulary) == (128, 8, 262_144)
    assert (a.window, a.context, a.canvas) == (1024, 262_144, 256)


def test_context_beyond_the_model_is_marked_and_not_computed(tmp_path):
    report = describe(open_source(write(tmp_path / "tiny", TINY)), "tiny")
    for cell in report.memory:
        assert cell.beyond_context == (cell.context > 32_768)
        assert (cell.cache_bytes is None) == (cell.total_bytes is None) == cell.beyond_context
    text = text_of(report).partition("\nMemory")[2].partition("\nFiles")[0]
    precisions = {cell.precision for cell in report.memory}
    assert text.count("beyond") == len(precisions) + 2  # one total each, the cache, and the caption
    assert "32,768 tokens" in text


# --- directory ----------------------------------------------------------------------------------------------------


def test_directory_without_weights_is_reported(tmp_path):
    directory = write(tmp_path / "bare", TINY)
    add_tokenizer(directory)
    report = describe(open_source(directory), "bare")
    assert report.weights.files == 0
    assert report.problems == ()
    assert "No weights here" in text_of(report)
    assert "Would not load" not in text_of(report)
    assert "No problem found" not in text_of(report)


def test_valid_checkpoint_has_no_problems(saved):
    report = describe(open_source(saved), "saved")
    assert report.problems == ()
    assert report.weights.files == len(list(saved.glob("*.safetensors"))) > 1
    assert report.weights.vision
    buffers = 2 * 3 + 2 * 16  # one scalar per layer for encoder and decoder; bias and scale of the tower's output
    assert report.weights.values_by_dtype == {"F32": report.parameters.total + buffers}
    assert "No problem found that would prevent loading" in text_of(report)


def test_checkpoint_without_vision_tower_is_reported(saved):
    from safetensors.torch import load_file, save_file

    tensors = {name: t for shard in saved.glob("*.safetensors") for name, t in load_file(shard).items()}
    for file in saved.glob("model*"):
        file.unlink()
    save_file({name: t for name, t in tensors.items() if "vision" not in name}, saved / "model.safetensors")
    report = describe(open_source(saved), "saved")
    assert report.problems == ()
    assert not report.weights.vision
    assert "without the vision tower" in text_of(report)


def test_every_file_is_listed_with_its_size_and_role(saved):
    (saved / "chat_template.jinja").write_text("{{ messages }}")
    (saved / "notes.txt").write_text("hello")
    (saved / "adapter.safetensors").write_bytes(b"not ours")
    files = {file.name: file for file in describe(open_source(saved), "saved").files}
    assert {name: file.bytes for name, file in files.items()} == {f.name: f.stat().st_size for f in saved.iterdir()}
    roles = {name: file.role for name, file in files.items()}
    assert roles.pop("adapter.safetensors") == "other"
    assert {role for name, role in roles.items() if "safetensors" in name} == {"weights"}
    assert {name: roles[name] for name in ("config.json", "tokenizer.json", "chat_template.jinja", "notes.txt")} == {
        "config.json": "config",
        "tokenizer.json": "tokenizer",
        "chat_template.jinja": "chat template",
        "notes.txt": "other",
    }


def test_missing_tokenizer_is_a_problem(tmp_path):
    (problem,) = describe(open_source(write(tmp_path / "mute", TINY)), "mute").problems
    assert "tokenizer.json" in problem


def test_missing_shard_is_named_and_the_others_are_read(saved):
    shard = sorted(saved.glob("*.safetensors"))[0]
    shard.unlink()
    report = describe(open_source(saved), "saved")
    assert any(shard.name in problem for problem in report.problems)
    assert report.weights.values_by_dtype
    assert shard.name in text_of(report, width=200)


def test_damaged_shard_is_named(saved):
    shard = sorted(saved.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:20])
    assert any(shard.name in problem for problem in describe(open_source(saved), "saved").problems)


def test_unreadable_index_is_a_problem(saved):
    (saved / "model.safetensors.index.json").write_text("{}")
    assert any("weight_map" in problem for problem in describe(open_source(saved), "saved").problems)


def test_weights_of_another_config_are_a_problem(saved):
    raw = json.loads((saved / "config.json").read_text())
    raw["text_config"]["vocab_size"] = 97
    (saved / "config.json").write_text(json.dumps(raw))
    assert any("embed_tokens" in problem for problem in describe(open_source(saved), "saved").problems)


def test_invalid_generation_defaults_are_a_problem(tmp_path):
    directory = write(tmp_path / "model", TINY)
    add_tokenizer(directory)
    (directory / "generation_config.json").write_text('{"max_denoising_steps": 0}')
    (problem,) = describe(open_source(directory), "model").problems
    assert "generation_config.json" in problem


def test_directory_without_config_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="config.json"):
        describe(open_source(tmp_path), "empty")


# --- output -------------------------------------------------------------------------------------------------------


def test_report_as_json(real):
    data = json.loads(json.dumps(asdict(real)))
    assert data["parameters"]["total"] == 25_823_778_864
    assert data["memory_rules"] == list(MEMORY_RULES)
    assert len(data["memory"]) == 9


def test_rendered_report_fits_80_columns_and_is_complete(real):
    text = text_of(real)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for shown in ("25,823,778,864", "3.84 B", "51.65", "57.24", "5.59", "262,144", "No weights here"):
        assert shown in text
    joined = " ".join(text.split())
    assert all(rule in joined for rule in MEMORY_RULES)


def test_brackets_in_names_are_not_markup(tmp_path):
    directory = write(tmp_path / "model", TINY)
    (directory / "[red]notes.txt").touch()
    text = text_of(describe(open_source(directory), "[/owner]"))
    assert "[/owner]" in text
    assert "[red]notes.txt" in text


def test_importing_info_does_not_import_torch():
    subprocess.run(
        [sys.executable, "-c", "import sys, gesso.info.report; assert 'torch' not in sys.modules"], check=True
    )


def test_control_characters_in_names_are_not_printed(tmp_path):
    make(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "evil\x1b]0;pwned\x07": torch.ones(3)}, weights)
    (tmp_path / "model" / "also\x1b[31m").touch()
    screen = StringIO()
    render_report(describe(open_source(tmp_path / "model"), "name\x1b[2J"), Console(file=screen, color_system=None))
    assert "pwned" in screen.getvalue()
    assert not {"\x1b", "\x07"} & set(screen.getvalue())

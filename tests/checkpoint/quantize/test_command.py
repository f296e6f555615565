"""`gesso quantize`: its output, rejected arguments, interrupts, and the memory it takes."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import gesso
from gesso.checkpoint import write
from gesso.checkpoint.quantize import convert
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from tests import tiny
from tests.checkpoint.quantize.test_convert import load
from tests.tiny import randomise


def test_quantize_command_prints_every_layer_and_the_size(source, tmp_path, main):
    shown = main("quantize", str(source), str(tmp_path / "out"), "--to", "nvfp4")
    assert shown.code == 0
    for row in ("layer 0", "layer 1", "conditioning", "MB, from"):
        assert row in shown.out
    data = json.loads(main("quantize", str(source), str(tmp_path / "json"), "--to", "nvfp4", "--json").out)
    assert data["errors"].keys() == convert.quantize(source, tmp_path / "again", "nvfp4").errors.keys()
    assert data["format"] == "nvfp4"


def test_quantize_command_rejects_bad_arguments_before_writing(source, quantized, tmp_path, main):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, word in [
        ((str(source), str(tmp_path / "out"), "--to", "int3"), "int4"),
        ((str(source), str(tmp_path / "full"), "--to", "fp8"), "not empty"),
        ((str(source), str(source), "--to", "fp8"), "not empty"),
        ((str(quantized[1]), str(tmp_path / "out"), "--to", "fp8"), "already"),
    ]:
        found = main("quantize", *arguments)
        assert (found.code, word in found.err) == (2, True), found.err
    assert main("quantize", str(tmp_path / "nowhere"), str(tmp_path / "out"), "--to", "fp8").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_interrupted_quantize_leaves_nothing_behind(source, tmp_path, monkeypatch, error):
    written = []

    def save_some(*arguments, **options):
        if len(written) == 2:
            raise error
        written.append(save_file(*arguments, **options))

    monkeypatch.setattr("safetensors.torch.save_file", save_some)  # an error between two shards
    with pytest.raises(type(error)):
        convert.quantize(source, tmp_path / "out", "fp8", shard_bytes=50_000)
    assert len(written) == 2
    assert list(tmp_path.iterdir()) == []


def test_infinite_weight_is_rejected_by_name(source, tmp_path):
    name = "model.decoder.layers.1.experts.down_proj"
    model = load(source)
    model.decoder.layers[1].experts.down_proj.data[3, 2, 1] = float("inf")
    write.save(model, tmp_path / "bad", source=source)
    for attempt in (
        lambda: convert.quantize(tmp_path / "bad", tmp_path / "out", "int4"),
        lambda: load(tmp_path / "bad", quantize="int4"),
    ):
        with pytest.raises(gesso.GessoError, match=name):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_sizes_that_do_not_fit_the_blocks_are_rejected_by_name(tmp_path):
    text = {**tiny.CONFIG["text_config"], "moe_intermediate_size": 24}
    model = DiffusionGemma(Config.from_dict({**tiny.CONFIG, "text_config": text}))
    randomise(model, 0)
    write.save(model, tmp_path / "odd", files={"tokenizer.json": tiny.tokenizer_json()})
    for attempt in (
        lambda: convert.quantize(tmp_path / "odd", tmp_path / "out", "int4"),
        lambda: load(tmp_path / "odd", quantize="int4"),
    ):
        with pytest.raises(InputError, match=r"layers\.0\.experts\.down_proj .* blocks of 32"):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]
    convert.quantize(tmp_path / "odd", tmp_path / "out", "fp8")


PEAK = """
import sys
from pathlib import Path
import safetensors.torch
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.quantize.formats import Format

def resident(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

convert.quantize(Path(sys.argv[1]), Path(sys.argv[3]), "fp8")  # a small one first, so that all imports are done
before = resident("RssAnon")
peak = before
save = safetensors.torch.save_file
quantize = Format.quantize

def watched(act):
    def run(*arguments, **options):
        global peak
        made = act(*arguments, **options)
        peak = max(peak, resident("RssAnon"))
        return made
    return run

safetensors.torch.save_file, Format.quantize = watched(save), watched(quantize)
convert.quantize(Path(sys.argv[2]), Path(sys.argv[4]), "fp8", shard_bytes=2**22)
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_quantize_memory_is_a_shard_and_a_tensor(source, tmp_path):
    text = {**tiny.CONFIG["text_config"], "hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 32,
            "num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}  # fmt: skip
    model = DiffusionGemma(Config.from_dict({**tiny.CONFIG, "text_config": text})).to(torch.bfloat16)
    randomise(model, 0)
    write.save(model, tmp_path / "large", files={"tokenizer.json": tiny.tokenizer_json()})
    largest = max(p.nbytes for p in model.parameters()) / 2**20
    whole = sum(p.nbytes for p in model.parameters()) / 2**20
    paths = (source, tmp_path / "large", tmp_path / "small out", tmp_path / "large out")
    arguments = [sys.executable, "-c", PEAK, *map(str, paths)]
    grown = float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    # The tensor before is still in memory while the next is read.
    assert grown < 8 + 3 * largest, f"{grown:.0f} MB for a model of {whole:.0f} MB"

"""The checkpoints that `python -m tools.full_size` writes are what other tools would write: readable and plausible."""

import pytest
import torch

from gesso.checkpoint.load import load
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.source import open_source
from gesso.info.formats import stored_formats
from tools.full_size import layouts

EXPERTS = {
    "compressed-tensors": {("fp8", "fp8")},
    "modelopt": {("modelopt-nvfp4", "nvfp4")},
    "mlx": {("mlx-4bit-g64", "uint4")},
    "gguf": {("Q4_K", "uint4"), ("Q5_0", "fp8"), ("Q8_0", "fp8")},
}


@pytest.mark.parametrize("layout", EXPERTS)
def test_a_written_layout_loads_with_the_formats_of_its_tool(tmp_path, layout):
    path = tmp_path / ("model.gguf" if layout == "gguf" else "model")
    layouts.write(layout, path, layouts.shape_config(**layouts.SMALL))
    source = open_source(path)
    assert source.problems == []
    rows = [row for row in stored_formats(source) if row.kind.startswith("experts")]
    assert {(row.stored, row.on_gpu) for row in rows} == EXPERTS[layout]
    for row in rows:
        assert (0.01 < row.error < 0.04) if row.on_gpu == "fp8" and row.stored != "fp8" else row.error < 0.005
    model = load(source, torch.device("cpu"), torch.float32)
    for module in model.modules():
        if isinstance(module, Packed):
            assert 0.3 * layouts.STD < module.dense().std() < 3 * layouts.STD

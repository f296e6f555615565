"""A small checkpoint, and the same in every quantized format."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gesso.checkpoint import write
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import is_vision
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.safetensors import SINGLE
from gesso.checkpoint.source import open_source
from gesso.model.quantization_config import QUANTIZATIONS
from tests import tiny


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A tiny checkpoint in bfloat16, like published ones, with a template and a vision tower that is not zero."""
    made = tmp_path_factory.mktemp("quantize")
    tiny.make(made / "float32")
    write.save(
        load_weights(open_source(made / "float32"), torch.device("cpu"), torch.bfloat16),
        made / "source",
        source=made / "float32",
    )
    tensors = load_file(made / "source" / SINGLE)
    tensors |= {name: torch.randn_like(t) for name, t in tensors.items() if is_vision(name)}
    save_file(tensors, made / "source" / SINGLE, metadata={"format": "pt"})
    (made / "source" / "chat_template.jinja").write_text("{{ messages }}")
    return made / "source"


@pytest.fixture(scope="module", params=list(QUANTIZATIONS))
def quantized(request, source, tmp_path_factory):
    target = tmp_path_factory.mktemp(request.param) / "quantized"
    report = convert.quantize(source, target, request.param)
    return request.param, target, report

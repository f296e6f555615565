"""The model stays a specification: plain PyTorch, without the code that makes it fast."""

import re
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "gesso" / "model"
READERS = ("config.py", "quantization_config.py")  # of config.json, which is not part of the specification
# Words of precision formats, kernels, streams and graphs. pooling_kernel_size is a field of config.json.
FOREIGN = (
    r"fp8|int4|nvfp4|int8|packed|quantiz|(?<!pooling_)kernel|triton|cuda|stream\b|graph|captur|backend|lora|adapter"
)


@pytest.mark.parametrize("path", sorted(path for path in MODEL.glob("*.py") if path.name not in READERS), ids=str)
def test_the_model_mentions_no_precision_kernel_stream_or_graph(path):
    code = path.read_text(encoding="utf-8")
    docstring = code.split('"""')[1] if code.startswith('"""') else ""
    found = re.findall(FOREIGN, code.replace(docstring, ""), flags=re.IGNORECASE)
    assert not found, f"{path.name} mentions {sorted(set(found))}"


def test_the_model_imports_only_itself_and_the_errors():
    for path in MODEL.glob("*.py"):
        names = re.findall(r"^\s*from gesso\.(\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(names) <= {"model", "errors", "checks", "files"}, path

"""The server at the 26B shape, with random weights in fp8."""

import pytest

from tests.gpu.device import BIG, DRY_RUN
from tests.gpu.server import serving

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(DRY_RUN, reason="the shape is cut down in this process only")
def test_a_server_of_the_26b_shape_answers(tmp_path):
    # A context that takes little memory: other groups of the suite may use the GPU meanwhile.
    arguments = ("-m", BIG, "--quantize", "fp8", "--max-batch", "8", "--max-length", "4096")
    body = {"prompt": "def fib(n):", "max_tokens": 32, "seed": 1, "diffusion": {"steps": 4, "canvas_length": 32}}
    with serving(tmp_path / "log", *arguments) as server:
        server.wait_ready(150)
        assert len({server.ask("/v1/completions", body) for _ in range(3)}) == 1
    assert server.process.returncode == 0

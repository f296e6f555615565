"""The benchmark of CPU kernels at small sizes."""

import sys

import pytest

pytest.importorskip("numba")
from benchmarks import cpu_kernels  # noqa: E402
from gesso.backends import cpu as backend  # noqa: E402
from gesso.errors import InputError  # noqa: E402


def test_products_and_layers_are_measured(monkeypatch):
    for name, value in {"INPUTS": 64, "OUTPUTS": 48, "COLD": 10_000, "ROWS": (1, 5), "REPETITIONS": 1}.items():
        monkeypatch.setattr(cpu_kernels, name, value)  # those of the 26B take minutes
    found = cpu_kernels.measure(
        hidden_size=64, intermediate_size=32, moe_intermediate_size=32, head_dim=32, global_head_dim=32,
        num_attention_heads=2, num_key_value_heads=1, num_global_key_value_heads=1, num_experts=6, top_k_experts=2,
    )  # fmt: skip
    assert found["threads"] >= 1 and found["read_gigabytes_per_second"] > 0
    measured = [(row["what"], row["format"], row["rows"]) for row in found["rows"]]
    products = [("64 -> 48", format, rows) for format in ("int4", "int8", "float32") for rows in (1, 5)]
    assert measured == [*products, ("layer", "int4", 1), ("layer", "int4", 5)]
    assert all(row["milliseconds"] > 0 for row in found["rows"])


def test_the_benchmark_of_cpu_kernels_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    backend.is_installed.cache_clear()
    try:
        with pytest.raises(InputError, match=r"pip install 'gesso-lm\[cpu\]'"):
            cpu_kernels.measure()
    finally:
        backend.is_installed.cache_clear()

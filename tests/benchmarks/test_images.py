"""The benchmark of images."""

import io

import pytest
from rich.console import Console

import gesso
from benchmarks import images
from gesso.errors import InputError
from gesso.model.vision_config import VisionConfig
from tests import tiny


def test_vision_passes_and_prompts_with_images_are_measured(tmp_path, monkeypatch):
    g = gesso.load(tiny.make(tmp_path / "model", sees=True), device="cpu")
    seen = []
    # The benchmark shows no passes that it did not take.
    monkeypatch.setattr(
        g.engine.runner.seen, "see", lambda image, see=g.engine.runner.seen.see: seen.append(image) or see(image)
    )
    found = images.measure(g, {1: (1, 1), 4: (2, 2)}, runs=1)
    assert [row["tokens"] for row in found["passes"]] == [1, 4] and [row["patches"] for row in found["passes"]] == [
        9,
        36,
    ]
    assert all(row["ratio"] == pytest.approx(row["ms"] / row["floor_ms"]) for row in found["passes"])
    assert len(seen) == 2 * (images.SEVERAL + 1), "a second question about an image takes no vision pass"
    out = io.StringIO()
    images.render(found, Console(file=out))
    assert "second question" in out.getvalue()


def test_operations_of_the_published_tower_are_those_of_its_matrices_and_scores():
    vision = VisionConfig(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16,
                          num_key_value_heads=16, head_dim=72)  # fmt: skip
    patches = 2520
    matrices = 27 * (4 * 1152 * 1152 + 3 * 1152 * 4304) + 768 * 1152
    expected = 2 * patches * matrices + 2 * (patches // 9) * 1152 * 2816 + 27 * 4 * patches**2 * 1152
    assert images.operations(vision, patches, 2816) == expected


def test_a_model_without_a_tower_is_rejected(tmp_path):
    g = gesso.load(tiny.make(tmp_path / "model"), device="cpu")
    with pytest.raises(InputError, match="no vision tower"):
        images.measure(g, images.SIDES)

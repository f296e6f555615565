"""The shape that `random:26b-a4b` and the offline `gesso info diffusiongemma` stand for."""

from dataclasses import fields
from pathlib import Path

from gesso.checkpoint.random_weights import TOWER, config_of
from gesso.files import read_json
from gesso.model.config import Config

# The fields of the published config.json of google/diffusiongemma-26B-A4B-it.
PUBLISHED = read_json(Path(__file__).parent / "fixtures" / "diffusiongemma-26b-a4b.json")


def test_the_shape_of_the_26b_has_every_published_field():
    published, shape = Config.from_dict(PUBLISHED), config_of("26b-a4b")
    for field in fields(Config):
        if field.compare:
            assert getattr(shape, field.name) == getattr(published, field.name), field.name
    assert {name: PUBLISHED["vision_config"][name] for name in TOWER} == TOWER

"""The settings schema: its bounds, everything that is generated from it, and its error messages."""

import asyncio
import inspect
import json
import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import httpx
import pytest

from gesso import PRESETS, DiffusionOptions, GenerateOptions
from gesso.cli.generate import generate
from gesso.cli.options import OWN_OPTION
from gesso.constraints.spec import ConstraintSpec
from gesso.errors import InputError
from gesso.model.config import SIZES
from gesso.request.spec import RequestSpec
from gesso.serve.fields import DiffusionFields
from gesso.serve.http.app import create_app
from gesso.serve.openai.text_fields import CompletionFields
from gesso.serve.settings import EngineSettings, ServerSettings
from gesso.serve.validation import from_validation
from gesso.settings import OPTIONS, SETTINGS, Diffusion, PresetName, choose, reference

ROOT = Path(__file__).parents[1]
NUMERIC = [name for name, setting in SETTINGS.items() if setting.bounds]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_numeric_settings_have_bounds_that_contain_the_presets():
    assert [name for name, setting in SETTINGS.items() if setting.kind in ("integer", "number")] == NUMERIC
    for preset in PRESETS.values():
        for name in NUMERIC:
            low, high = SETTINGS[name].bounds
            assert (value := getattr(preset, name)) is None or low <= value <= high


@pytest.mark.parametrize("name", NUMERIC)
def test_values_within_the_bounds_are_accepted_and_others_rejected(name):
    low, high = SETTINGS[name].bounds
    least, most = SETTINGS["t_min"].bounds
    other = {"t_max": {"t_min": least}, "t_min": {"t_max": most}}.get(name, {})
    for value in (low, high):
        Diffusion(**{name: value}, **other)
    beyond = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)] if isinstance(low, float) else []
    for value in (*beyond, low - 1, high + 1, 10**400, math.nan, math.inf, -math.inf, 1e308, "1", True, [1]):
        with pytest.raises(InputError, match=rf"diffusion setting {name} must be .* from .* to .*, got"):
            Diffusion(**{name: value}, **other)


def test_canvas_length_has_the_same_bounds_as_in_config_json():
    assert SETTINGS["canvas_length"].bounds == SIZES["canvas_length"]


# --- one declaration --------------------------------------------------------------------------------------------------


def test_settings_import_neither_torch_nor_the_model():
    code = "import sys, gesso.settings; sys.exit(bool({'torch', 'gesso.model', 'pydantic', 'typer'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_typed_options_have_the_names_and_types_of_the_schema():
    assert get_type_hints(DiffusionOptions) == {item.name: item.type for item in fields(Diffusion)}
    assert set(get_args(PresetName)) == set(PRESETS)
    named = {item.name for item in (*fields(RequestSpec), *fields(ConstraintSpec))}
    assert GenerateOptions.__annotations__.keys() == (named | SETTINGS.keys()) - {
        "prompt", "settings", "constraint", "guide", "tools", "tool_choice", "parallel", "thinking"
    }  # fmt: skip


def test_command_line_http_and_studio_offer_exactly_the_settings_of_the_schema(get):
    options = {
        name: parameter.annotation.__metadata__[0]
        for name, parameter in inspect.signature(generate).parameters.items()
        if parameter.annotation.__metadata__[0].rich_help_panel == "Diffusion"
    }
    properties = get("/openapi.json").json()["components"]["schemas"]["DiffusionFields"]["properties"]
    text = get("/studio/schema.js").text
    controls = {one["name"]: one for one in json.loads(text.removeprefix("export const SETTINGS =").rstrip(";\n"))}

    assert list(controls) == list(OPTIONS)
    assert set(options) == {*OPTIONS, "set_values", "temperature"}
    assert {name for name in OPTIONS if not options[name].hidden} == {*OWN_OPTION}
    assert set(properties) - {"pins", "drafts"} == set(OPTIONS)
    for name, setting in OPTIONS.items():
        values = options[name].help + (options[name].metavar or "").replace("|", ", ")
        assert setting.help in values and setting.range in values
        assert properties[name] == setting.json_schema()
        assert controls[name] == {"name": name, "basic": setting.basic, **setting.json_schema()}


def test_reference_table_has_every_setting_and_preset():
    rows = [line.split("|")[1].strip() for line in reference().splitlines() if line.startswith("| `")]
    assert rows == [f"`{name}`" for name in (*SETTINGS, *PRESETS)]
    for setting in SETTINGS.values():
        assert setting.help in reference() and setting.range in reference()


@pytest.fixture(scope="module")
def get(tiny_directory):
    """A server's answer to a path. Its engine is not started."""
    app = create_app(ServerSettings(engine=EngineSettings(model=str(tiny_directory))))

    def get(path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
                return await client.get(path)

        return asyncio.run(ask())

    return get


# --- one message ------------------------------------------------------------------------------------------------------


def http_error(**diffusion) -> dict:
    with pytest.raises(ValueError) as caught:
        CompletionFields.model_validate({"prompt": "abc", "diffusion": diffusion})
    return from_validation(caught.value).body["error"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("steps", "many", "diffusion setting steps must be an integer from 1 to 1,000, got 'many'"),
        ("steps", 0, "diffusion setting steps must be an integer from 1 to 1,000, got 0"),
        ("steps", 2.5, "diffusion setting steps must be an integer from 1 to 1,000, got {}"),
        ("t_max", 1e6, "diffusion setting t_max must be a number from 0.001 to 100, got 1000000.0"),
        ("greed", math.nan, "diffusion setting greed must be a number from 0 to 1, got nan"),
        (
            "stopping",
            "magic",
            "diffusion setting stopping must be one of stable, fixed, got 'magic'",
        ),
        (
            "preset",
            "best",
            "diffusion setting preset must be one of quality, balanced, fast, laptop, got 'best'",
        ),
    ],
)
def test_a_bad_value_gives_the_same_message_from_python_command_line_and_http(tiny, main, name, value, sentence):
    with pytest.raises(InputError) as caught:
        tiny.generate("abc", **{name: value})
    assert str(caught.value) == sentence.format(value)

    error = http_error(**{name: value})
    assert (error["message"], error["param"]) == (sentence.format(value), f"diffusion.{name}")

    done = main("generate", "abc", f"--{name.replace('_', '-')}", str(value))
    # An argument that is not a number of the right type reaches the check as text.
    typed = repr(str(value)) if value == 2.5 else value
    assert (done.code, done.out, done.err) == (2, "", f"gesso: {sentence.format(typed)}\n")


def test_an_unknown_name_gives_the_same_message_from_python_and_http(tiny, main):
    sentence = f"unknown diffusion setting stepz; known are {', '.join(SETTINGS)}"
    with pytest.raises(InputError) as caught:
        choose(PRESETS["balanced"], stepz=3)
    assert str(caught.value) == sentence
    with pytest.raises(InputError) as caught:
        tiny.generate("abc", stepz=3)
    others = "other options are max_new_tokens, seed, temperature, preset, stop, "
    assert str(caught.value).startswith(f"{sentence}; {others}")
    error = http_error(stepz=3)
    assert error["message"] == f"{sentence}; other options are preset, pins, drafts"
    assert (error["param"], error["code"]) == ("diffusion.stepz", "unknown_parameter")
    assert set(DiffusionFields.model_fields) == {*SETTINGS, "preset", "pins", "drafts"}
    done = main("generate", "abc", "--stepz", "3")
    assert done.code == 2 and "--stepz" in done.err

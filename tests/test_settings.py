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

from gesso.cli.generate import generate
from gesso.cli.options import OWN_OPTION
from gesso.errors import InputError
from gesso.model.config import SIZES
from gesso.options import GenerateOptions
from gesso.requests import text_request
from gesso.serve.errors import from_validation
from gesso.serve.fields import DiffusionFields
from gesso.serve.http.app import create_app
from gesso.serve.openai.text_fields import CompletionFields
from gesso.serve.settings import EngineSettings, ServerSettings
from gesso.settings import (
    OPTIONS,
    PRESETS,
    SETTINGS,
    Diffusion,
    DiffusionOptions,
    PresetName,
    choose,
    reference,
)

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
    request = inspect.signature(text_request).parameters
    assert GenerateOptions.__annotations__.keys() == (request.keys() | SETTINGS) - {
        "model", "prompt", "guide", "guide_optional", "validate", "thinking", "diffusion"
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


# --- types ------------------------------------------------------------------------------------------------------------

GOOD = """\
import gesso

g = gesso.load(device="cpu")
settings: gesso.DiffusionOptions = {"steps": 8, "sampler": "entropy-bound"}
result: gesso.Result = g.generate("def f():", max_new_tokens=8, seed=1, preset="fast", regex="[a-z]+", **settings)
for event in g.stream("abc", t_max=1, canvas_length=None, preset=gesso.Diffusion(steps=3), stop=["a", "b"]):
    if isinstance(event, gesso.Commit):
        print(event.text)
print(g.chat([{"role": "user", "content": "Hi"}], thinking=True, tool_choice="none", settle=2).thinking)
print(g.infill("a", "b", method="pinned", lengths=[3], eos_settles=True).candidates)
print(g.infill_holes(["a", "b", "c"], candidates=2).middles, g.edit("abc", (0, 1), level=0.5, steps=4).replacement)
request = g.request([1, 2], pins={0: 5}, top_logprobs=3)
"""
BAD = {
    'g.generate("abc", stepz=8)': 'Unexpected keyword argument "stepz" for "generate"',
    'g.generate("abc", steps="8")': 'Argument "steps" to "generate" of "Gesso" has incompatible type "str"',
    'g.generate("abc", sampler="magic")': 'Argument "sampler" to "generate" of "Gesso" has incompatible type',
    'g.stream("abc", max_tokens=8)': 'Unexpected keyword argument "max_tokens" for "stream"',
    "g.chat([], thinking=1)": 'Argument "thinking" to "chat" of "Gesso" has incompatible type "int"',
    "g.chat_request([], greed=True, tools=3)": 'Argument "tools" to "chat_request"',
    'g.stream_chat([], preset="best")': 'Argument "preset" to "stream_chat"',
    'g.infill("a", "b", pins={0: 1})': 'Unexpected keyword argument "pins" for "infill"',
    'g.infill_holes(["a", "b"], seed="1")': 'Argument "seed" to "infill_holes"',
    'g.edit("abc", (0, 1), levl=0.5)': 'Unexpected keyword argument "levl" for "edit"',
    'g.request("abc", settle=1.5)': 'Argument "settle" to "request"',
    "gesso.Resolt": 'Module has no attribute "Resolt"',
}


def test_mypy_accepts_a_good_user_script_and_names_the_wrong_argument_of_a_bad_one(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    (tmp_path / "bad.py").write_text("\n".join(["import gesso", "g = gesso.load()", *BAD, ""]), encoding="utf-8")
    # The public methods name no type of torch, whose analysis would take most of a minute.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n[mypy-torch.*,numba.*]\nfollow_imports = skip\n")
    options = ["--no-error-summary", "--config-file", config, "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, tmp_path / "good.py", tmp_path / "bad.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == 1 and not done.stderr
    assert len(found) == len(BAD), done.stdout
    for number, (line, (script, message)) in enumerate(zip(found, BAD.items(), strict=True), start=3):
        assert f"bad.py:{number}: error: " in line, (script, line)
        assert message in line

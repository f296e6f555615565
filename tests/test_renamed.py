"""Former names: each still works, on every surface where it was read, with a warning that names the present one."""

import json
import warnings

import pytest

import gesso
from gesso.checkpoint.generation import GenerationDefaults
from gesso.errors import InputError
from gesso.presets import read_preset
from gesso.renamed import RenamedWarning
from gesso.settings import BY_TOKEN, Diffusion, choose

# Former options, the present ones, and what the warning names.
NAMES = (
    ({"decode": "tokens"}, {"write": "tokens"}),
    ({"decode": "canvas"}, {"write": "canvas"}),
    ({"decode": "auto"}, {}),
    ({"sampler": "autoregressive"}, {"write": "tokens"}),
    ({"sampler": "verified"}, {"write": "verified"}),
    ({"preset": "verified"}, {"write": "verified", "preset": "balanced", "greed": 1.0}),
    ({"preset": "verified", "greed": 0.0}, {"write": "verified", "preset": "balanced", "greed": 0.0}),
)


@pytest.mark.parametrize(("former", "present"), NAMES, ids=str)
def test_python_warns_and_builds_the_same_request(tiny, former, present):
    expected = tiny.request("abc", seed=1, **present)
    with pytest.warns(RenamedWarning, match=f"{next(iter(former))}=.* write") as caught:
        assert tiny.request("abc", seed=1, **former) == expected
    assert len(caught) == 1 and "until the next release" in str(caught[0].message)


def test_contradictions_and_unknown_values_are_rejected(tiny):
    for options, words in (
        ({"decode": "tokens", "write": "canvas"}, "decode='tokens' means write='tokens', but write='canvas' was given"),
        ({"decode": "letters"}, "decode must be one of auto, canvas, tokens, got 'letters'"),
        ({"sampler": "verified", "steps": 4}, "steps must be 1 with write=verified"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(InputError, match=words):
                tiny.generate("abc", **options)


def test_load_takes_decode_and_infill_takes_the_former_samplers(tiny_directory):
    with pytest.warns(RenamedWarning, match="decode='tokens' is now write='tokens'"):
        g = gesso.load(tiny_directory, device="cpu", decode="tokens", max_batch=1)
    assert g.writing.write == "tokens"
    options = {"max_new_tokens": 4, "seed": 1}
    with pytest.warns(RenamedWarning, match="sampler='autoregressive'"):
        former = g.infill("abc ", "", sampler="autoregressive", **options)
    assert former == g.infill("abc ", "", write="tokens", **options)


def test_settings_that_name_a_former_sampler_are_those_of_write():
    for sampler, write in (("autoregressive", "tokens"), ("verified", "verified")):
        fixed = {name: BY_TOKEN[write][name] for name in ("steps", "stopping", "canvas_length")}
        with pytest.warns(RenamedWarning, match=f"sampler='{sampler}' is now write='{write}'"):
            assert Diffusion(sampler=sampler, **fixed) == choose(Diffusion(), write=write)


def test_preset_files_and_generation_config_are_read(tmp_path, tiny):
    expected = choose(Diffusion(), write="verified", greed=1.0)
    former = {"sampler": "verified", "steps": 1, "stopping": "fixed", "canvas_length": 16, "greed": 1.0}
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"diffusion": former}))
    with pytest.warns(RenamedWarning, match="sampler='verified'"):
        assert read_preset(path) == expected
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_denoising_steps": 48, "gesso": former}))
    with pytest.warns(RenamedWarning, match="sampler='verified'"):
        assert GenerationDefaults.from_directory(tmp_path, tiny.config).diffusion == expected


@pytest.mark.parametrize(
    ("former", "present"),
    [
        (["--decode", "tokens"], ["--write", "tokens"]),
        (["--sampler", "autoregressive"], ["--write", "tokens"]),
        (["--preset", "verified"], ["--preset", "balanced", "--write", "verified", "--set", "greed=1"]),
    ],
    ids=str,
)
def test_the_command_line_prints_one_note(main, tiny_directory, former, present):
    command = ["generate", "hi", "-m", str(tiny_directory), "--max-new-tokens", "3", "--seed", "1", "--json"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        found, expected = main(*command, *former), main(*command, *present)
    assert json.loads(found.out)["tokens"] == json.loads(expected.out)["tokens"]
    assert found.err.count("is now write=") == 1 and ".py" not in found.err
    assert "is now" not in expected.err


def test_serve_takes_its_former_option(main, servers, tiny_directory):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        served = main("serve", str(tiny_directory), "--port", "0", "--decode", "tokens")
    assert servers[0].engine.write == "tokens" and "decode='tokens' is now write='tokens'" in served.err

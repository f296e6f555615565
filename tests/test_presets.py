"""Preset files: `--preset FILE`, `preset=Path(…)`, and the settings in generation_config.json."""

import json
from pathlib import Path

import pytest

import gesso
from gesso import PRESETS, CheckpointError, Diffusion, InputError
from gesso.checkpoint.generation import GenerationDefaults, check_writable, write_diffusion
from gesso.presets import read_preset, resolved, write_preset
from gesso.serve.openai.text_fields import CompletionFields
from gesso.settings import BY_TOKEN

TUNED = Diffusion(steps=7, entropy_bound=0.3, t_max=0.6, eos_settles=True, greed=0.5)
ALL = [
    *PRESETS.values(),
    TUNED,
    *(Diffusion(write=write, **fixed) for write, fixed in BY_TOKEN.items()),
    Diffusion(canvas_length=32),
    Diffusion(settle=0),
]


@pytest.mark.parametrize("diffusion", ALL)
def test_a_preset_file_gives_back_its_settings(tmp_path, diffusion):
    path = tmp_path / "tuned.json"
    write_preset(path, diffusion, {"task": "sudoku"})
    assert read_preset(path) == resolved(path) == resolved(str(path)) == diffusion


def test_names_and_settings_are_presets_too():
    assert [resolved(one) for one in (None, "fast", TUNED)] == [None, "fast", TUNED]
    with pytest.raises(InputError, match="preset must be one of"):
        resolved("best")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected .*diffusion"),
        ('{"diffusion": {}, "steps": 3}', "unknown key 'steps'"),
        ('{"diffusion": {"stepz": 3}}', "unknown diffusion setting stepz"),
        ('{"diffusion": {"steps": 0}}', "steps must be an integer from 1"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path, text, message):
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_preset(path)
    assert "wrong.json" in str(caught.value)


def test_a_sampler_of_the_callers_own_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="sampler .* cannot be written"):
        write_preset(tmp_path / "a.json", Diffusion(sampler=lambda *_: None), {})


def test_command_line_and_python_read_preset_files_and_http_does_not(main, tiny, tiny_directory, tmp_path):
    path = tmp_path / "tuned.json"
    write_preset(path, Diffusion(steps=3, stopping="fixed"), {})
    asked = ("-m", str(tiny_directory), "--max-new-tokens", "8", "--seed", "3", "--json")
    done = main("generate", "hi", *asked, "--preset", str(path))
    found = json.loads(done.out)
    assert found["usage"]["denoising_steps"] == 3
    assert found["text"] == tiny.generate("hi", max_new_tokens=8, seed=3, preset=path).text
    absent = main("generate", "hi", "--preset", str(tmp_path / "absent.json"))
    assert absent.code == 2 and "absent.json cannot be read" in absent.err
    with pytest.raises(ValueError, match="preset must be one of"):
        CompletionFields.model_validate({"prompt": "abc", "diffusion": {"preset": str(path)}})


# --- generation_config.json -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("diffusion", ALL)
def test_written_defaults_are_read_back_and_other_fields_stay(tmp_path, tiny, diffusion):
    path = tmp_path / "generation_config.json"
    before = {"max_new_tokens": 77, "sampler_config": {"other": 1}, "transformers_version": "5", "eos_token_id": [1, 2]}
    path.write_text(json.dumps({**before, "gesso": {"greed": 1.0}}))
    write_diffusion(tmp_path, diffusion)
    found = GenerationDefaults.from_directory(tmp_path, tiny.config)
    assert (found.diffusion, found.max_new_tokens, found.eos_token_ids) == (diffusion, 77, (1, 2))
    raw = json.loads(path.read_text())
    assert all(raw[key] == before[key] for key in before if key != "sampler_config")
    assert raw["sampler_config"]["other"] == 1 and raw["max_denoising_steps"] == diffusion.steps
    write_diffusion(tmp_path, Diffusion())
    assert "gesso" not in json.loads(path.read_text())  # nothing beyond the reference's own fields


def test_unknown_settings_of_a_checkpoint_are_rejected(tmp_path, tiny):
    (tmp_path / "generation_config.json").write_text('{"gesso": {"stepz": 1}}')
    with pytest.raises(CheckpointError, match=r"generation_config.json: gesso: unknown diffusion setting stepz"):
        GenerationDefaults.from_directory(tmp_path, tiny.config)


def test_files_of_the_package_and_of_the_hub_cache_are_never_written(tmp_path, hub):
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    (tmp_path / "link").symlink_to(snapshot)
    package = Path(gesso.__file__).parent / "bundled" / "gesso-mini"
    before = (package / "generation_config.json").read_bytes()
    for directory, message in ((package, "package"), (snapshot, "hub cache"), (tmp_path / "link", "hub cache"),
                               (tmp_path / "absent", "not a checkpoint")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            write_diffusion(directory, TUNED)
    assert (package / "generation_config.json").read_bytes() == before
    check_writable(tmp_path)

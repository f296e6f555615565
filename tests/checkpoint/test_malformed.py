"""Malformed and hostile checkpoint files are rejected with an error that names the file and the field."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.safetensors import SINGLE
from gesso.checkpoint.source import open_source
from gesso.checkpoint.vision import vision_tensors
from gesso.errors import CheckpointError
from gesso.info.report import describe
from gesso.model.config import Config
from tests.tiny import CONFIG, make
from tests.waiting import bounded

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def directory(tmp_path):
    return make(tmp_path / "model")


def text_config(**changes):
    return {**CONFIG, "text_config": CONFIG["text_config"] | changes}


def rope(**given):
    return text_config(rope_parameters={"full_attention": given})


def quantized(targets):
    from gesso.model.quantization_config import quantization_config

    quantization = quantization_config("fp8")
    quantization["config_groups"]["group_0"]["targets"] = targets
    return {**CONFIG, "quantization_config": quantization}


MALFORMED = {
    # Used to raise TypeError, ValueError, AttributeError or KeyError.
    "rope_theta of text": (rope(rope_theta="hot"), "rope_theta"),
    "rope_theta of a list": (rope(rope_theta=[1.0]), "rope_theta"),
    "rope_theta of null": (rope(rope_theta=None), "rope_theta"),
    "rope_parameters of a list": (text_config(rope_parameters=[1]), "rope_parameters"),
    "rope_parameters of text": (text_config(rope_parameters="default"), "rope_parameters"),
    "rope_parameters of a list per layer": (text_config(rope_parameters={"full_attention": []}), "rope_parameters"),
    "layer_types of a number": (text_config(layer_types=4), "layer_types"),
    "layer_types of objects": (text_config(layer_types=[{}] * 2), "layer_types"),
    "layer_types of text": (text_config(layer_types="full"), "layer_types"),
    "per_layer_config of a list": (text_config(per_layer_config=[1]), "per_layer_config"),
    "per_layer_config of numbers": (text_config(per_layer_config={"0": 3}), "per_layer_config"),
    "per_layer_config beyond the layers": (text_config(per_layer_config={"9": {}}), "per_layer_config"),
    "targets of a number": (quantized(5), "targets"),
    "targets of objects": (quantized([{}]), "targets"),
    # Used to be accepted.
    "NaN rope_theta": (rope(rope_theta=NAN), "rope_theta"),
    "infinite rope_theta": (rope(rope_theta=INF), "rope_theta"),
    "negative rope_theta": (rope(rope_theta=-1.0), "rope_theta"),
    "negative partial_rotary_factor": (
        rope(rope_type="proportional", partial_rotary_factor=-1),
        "partial_rotary_factor",
    ),
    "partial_rotary_factor of 0": (rope(rope_type="proportional", partial_rotary_factor=0), "partial_rotary_factor"),
    "partial_rotary_factor of 2": (rope(rope_type="proportional", partial_rotary_factor=2), "partial_rotary_factor"),
    "partial_rotary_factor of text": (rope(rope_type="proportional", partial_rotary_factor="all"), "partial_rotary"),
    "infinite softcapping": (text_config(final_logit_softcapping=INF), "final_logit_softcapping"),
    "infinite rms_norm_eps": (text_config(rms_norm_eps=INF), "rms_norm_eps"),
    "tie_word_embeddings of text": ({**CONFIG, "tie_word_embeddings": "no"}, "tie_word_embeddings"),
    "pad_token_id of 1e12": (text_config(pad_token_id=10**12), "pad_token_id"),
    "pad_token_id of a float": (text_config(pad_token_id=1e12), "pad_token_id"),
    "pad_token_id beyond the vocabulary": (text_config(pad_token_id=384), "pad_token_id"),
    "negative pad_token_id": (text_config(pad_token_id=-1), "pad_token_id"),
    "eos_token_id beyond the vocabulary": ({**CONFIG, "eos_token_id": [1, 384]}, "eos_token_id"),
    "no eos_token_id in the list": ({**CONFIG, "eos_token_id": []}, "eos_token_id"),
    "canvas_length of 1e9": ({**CONFIG, "canvas_length": 10**9}, "canvas_length"),
    "max_position_embeddings of 1e15": (text_config(max_position_embeddings=10**15), "max_position_embeddings"),
    "vocab_size of 1e15": (text_config(vocab_size=10**15), "vocab_size"),
    "hidden_size of 1e15": (text_config(hidden_size=10**15), "hidden_size"),
    "head_dim of 1e15": (text_config(head_dim=10**15), "head_dim"),
    "vision_config of a list": ({**CONFIG, "vision_config": [1]}, "vision_config"),
    "standardize of text": ({**CONFIG, "vision_config": {"standardize": "no"}}, "standardize"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_config_field_is_rejected_by_name(case, tmp_path):
    raw, field = MALFORMED[case]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=field):
        vision_tensors(Config.from_directory(tmp_path))


def test_error_about_a_long_value_is_short(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        Config.from_dict(text_config(rms_norm_eps="x" * 10**6))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000 + "]" * 100_000, '{"a":' * 500 + "1" + "}" * 500, '{"a": ' + "9" * 5000 + "}"],
    ids=["deep list", "deep object", "5,000 digits"],
)
def test_json_that_python_cannot_parse_is_a_checkpoint_error(directory, text):
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        before = (directory / name).read_bytes() if (directory / name).exists() else None
        (directory / name).write_text(text)
        with pytest.raises(CheckpointError, match=name):
            config = Config.from_directory(directory)
            GenerationDefaults.from_directory(directory, config)
            Tokenizer.from_directory(directory)
        (directory / name).unlink()
        if before is not None:
            (directory / name).write_bytes(before)


def test_model_of_a_hundred_thousand_layers_is_rejected_at_once(directory):
    raw = json.loads((directory / "config.json").read_text())
    raw["text_config"] |= {"num_hidden_layers": 100_000, "layer_types": None}
    (directory / "config.json").write_text(json.dumps(raw))
    with bounded(), pytest.raises(CheckpointError, match="num_hidden_layers"):
        describe(open_source(directory), "deep")


def test_vision_tower_of_a_billion_layers_is_rejected_at_once(directory):
    raw = json.loads((directory / "config.json").read_text())
    raw["vision_config"]["num_hidden_layers"] = 10**9
    (directory / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="vision_config.num_hidden_layers"):
        describe(open_source(directory), "deep")


def test_integer_weights_are_reported_by_name(directory):
    tensors = load_file(directory / SINGLE)
    tensors["model.decoder.norm.weight"] = tensors["model.decoder.norm.weight"].to(torch.int16)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    (problem,) = describe(open_source(directory), "whole").problems
    assert "model.decoder.norm.weight" in problem and "I16" in problem


# --- generation_config.json ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"t_max": 1e308}, "t_max"),
        ({"t_max": 1e-46, "t_min": 1e-46}, "t_m"),
        ({"t_max": NAN}, "t_max"),
        ({"t_min": INF}, "t_min"),
        ({"t_max": 10**400}, "t_max"),
        ({"max_denoising_steps": 10**9}, "steps"),
        ({"stability_threshold": 10**9}, "stability"),
        ({"confidence_threshold": INF}, "confidence"),
        ({"sampler_config": {"entropy_bound": NAN}}, "entropy_bound"),
        ({"sampler_config": [1]}, "sampler_config"),
        ({"max_new_tokens": 10**30}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"eos_token_id": 384}, "eos_token_id"),
        ({"eos_token_id": []}, "eos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
    ],
)
def test_info_reports_invalid_generation_setting(directory, raw, field):
    (directory / "generation_config.json").write_text(json.dumps(raw))
    (problem,) = describe(open_source(directory), "model").problems
    assert "generation_config.json" in problem and field in problem


# --- tokenizer and template ---------------------------------------------------------------------------------------


def test_info_reports_tokenizer_larger_than_the_vocabulary(tmp_path):
    directory = make(tmp_path / "small", vocab_size=300)
    assert any("384" in problem and "300" in problem for problem in describe(open_source(directory), "small").problems)


@pytest.mark.parametrize(
    "template",
    ["{% for", "{{ messages.nothing.at.all }}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
     "{% endfor %}"],
)  # fmt: skip
def test_info_reports_template_that_fails_to_render(directory, template):
    (directory / "chat_template.jinja").write_text(template)
    assert any("template" in problem for problem in describe(open_source(directory), "model").problems)


# --- named pipes and oversized files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", SINGLE],
)
def test_named_pipe_in_a_checkpoint_is_rejected_without_waiting(directory, name):
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    try:
        problems = describe(open_source(directory), "model").problems
    except CheckpointError as error:
        problems = (str(error),)
    assert any(name in problem and "named pipe" in problem for problem in problems)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"])
def test_oversized_file_is_rejected_unread(directory, name):
    with open(directory / name, "wb") as file:
        file.truncate(1 << 40)  # sparse, so it takes no disk space
    try:
        problems = describe(open_source(directory), "model").problems
    except CheckpointError as error:
        problems = (str(error),)
    assert any(name in problem and "larger than" in problem for problem in problems)

"""The bundled models: found by name, complete, small, and the same in `transformers`. Their quality is not tested."""

import json
import logging

import pytest
import torch
from safetensors import safe_open
from transformers import DiffusionGemmaForBlockDiffusion

import gesso
from examples.mini.vocabulary import SPECIALS
from gesso import bundled
from gesso.bundled import BASE, SOLVER
from gesso.chat.tokenizer import FILL
from gesso.checkpoint.find import find
from gesso.checkpoint.safetensors import weight_files
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError
from gesso.info.report import describe
from gesso.train.recipe import load as load_recipe
from gesso.train.run import directory_of
from tests import oracle

MB = 10**6
names = pytest.mark.parametrize("name", bundled.DIRECTORIES)


@pytest.fixture(scope="module")
def loaded():
    return {name: gesso.load(name) for name in bundled.DIRECTORIES}


def test_names_of_bundled_models():
    assert tuple(bundled.DIRECTORIES) == (bundled.BASE, bundled.SOLVER) == ("gesso-mini", "gesso-sudoku")


@names
def test_bundled_name_takes_precedence_over_a_directory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert find(name) == bundled.directory(name) == bundled.DIRECTORIES[name]
    assert find(f"./{name}").samefile(tmp_path / name), "a path always means the directory"
    assert find(tmp_path / name) == tmp_path / name


def test_default_checkpoint_is_gesso_mini(loaded, caplog):
    with caplog.at_level(logging.WARNING, logger="gesso"):
        g = gesso.load()
    assert g.directory == find(None) == bundled.directory("gesso-mini")
    assert torch.equal(g.model.head, loaded["gesso-mini"].model.head)
    assert caplog.records == [], "no warnings"


@pytest.mark.parametrize("recipe", ["overfit", "sudoku"])
def test_recipes_start_from_the_bundled_model(request, recipe):
    read = load_recipe(request.config.rootpath / "examples" / recipe / f"{recipe}.toml")
    assert directory_of(read) == bundled.directory("gesso-mini")


@names
def test_missing_bundled_weights_are_an_error(name, tmp_path, monkeypatch):
    monkeypatch.setitem(bundled.DIRECTORIES, name, tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name} is missing from this installation.*config\.json"):
        gesso.load(name)


def test_unknown_name_lists_the_bundled_models():
    with pytest.raises(CheckpointError, match="no directory 'gesso-maxi'.*gesso-mini, gesso-sudoku"):
        gesso.load("gesso-maxi")


@names
def test_bundled_model_computes_the_same_in_transformers(name, loaded):
    directory = bundled.directory(name)
    theirs, report = DiffusionGemmaForBlockDiffusion.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert {key: list(value) for key, value in report.items() if value} == {}
    g = loaded[name]
    ours = g.model.float().eval()
    prompt = torch.tensor([g.tokenizer.encode("def mean(numbers):\n    total = 0\n")])
    canvas = torch.randint(0, g.config.vocab_size, (1, 32), generator=torch.Generator().manual_seed(0))
    kv, cache = oracle.new_cache(theirs.eval()), ours.new_cache(1, 128)
    with torch.no_grad():
        hidden = theirs.model.encoder(input_ids=prompt, past_key_values=kv).last_hidden_state
        assert (hidden - ours.encode(prompt, cache)).abs().max() < 1e-4
        first = theirs(decoder_input_ids=canvas, past_key_values=kv).logits
        assert (first - ours.denoise(canvas, cache)).abs().max() < 1e-4
        again = theirs(decoder_input_ids=canvas, past_key_values=kv, self_conditioning_logits=first / 0.7).logits
        # Logits are as large as 25. The order of additions differs, and the second pass amplifies that of the first.
        assert (again - ours.denoise(canvas, cache, previous_logits=first / 0.7)).abs().max() < 2e-4


@names
def test_bundled_files_are_small_and_in_bfloat16(name):
    directory = bundled.directory(name)
    weights = weight_files(directory)
    assert all(file.stat().st_size <= 15 * MB for file in weights)
    assert sum(file.stat().st_size for file in directory.iterdir()) <= 32 * MB
    values = 0
    for file in weights:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (not a dict: it has no iterator)
                assert tensors.get_slice(key).get_dtype() == "BF16", key
                values += tensors.get_tensor(key).numel()
    assert values <= 16 * MB
    assert json.loads((directory / "config.json").read_text())["dtype"] == "bfloat16"
    assert {file.name for file in directory.glob("*.safetensors")} == {file.name for file in weights}, "no stray file"


def test_all_bundled_models_together_are_small():
    assert sum(file.stat().st_size for path in bundled.DIRECTORIES.values() for file in path.iterdir()) <= 48 * MB


def test_only_gesso_sudoku_sees_pictures(loaded):
    assert {name: g.model.vision is not None for name, g in loaded.items()} == {BASE: False, SOLVER: True}


def test_info_counts_the_tower_of_gesso_sudoku():
    report = describe(open_source(bundled.directory(SOLVER)), SOLVER)
    assert report.parameters.vision == 803_840
    assert report.parameters.total == report.parameters.text + 803_840
    assert report.weights.vision and report.problems == ()


@names
def test_bundled_tokenizer_has_single_digits_and_every_special_token(name, loaded):
    tokenizer, config = loaded[name].tokenizer, loaded[name].config
    assert tokenizer.vocab_size == config.vocab_size
    for text in ("1234567890", " 1 2 3 4 5 6 7 8 9 0"):
        tokens = tokenizer.encode(text, bos=False)
        assert [tokenizer.decode([token]).strip() for token in tokens] == list("1234567890")
    for i, piece in SPECIALS.items():
        assert tokenizer.id_of(piece) == i and i in tokenizer.special_ids
    for marker in FILL:
        assert tokenizer.encode(marker, bos=False) == [tokenizer.id_of(marker)]
        assert tokenizer.id_of(marker) in tokenizer.special_ids


@names
def test_bundled_model_has_a_chat_template(name, loaded):
    assert (bundled.directory(name) / "chat_template.jinja").is_file()
    ids = loaded[name].tokenizer.chat([{"role": "user", "content": "Hi"}]).tokens
    assert loaded[name].tokenizer.decode(ids, special=True).startswith("<bos><|turn>")

"""`gesso push`: which files arrive at the hub, the model card, and errors before anything is sent."""

import json

import pytest
import torch

import gesso
from gesso import adapters
from gesso.adapters import LoraSettings, merging
from gesso.checkpoint import write
from gesso.checkpoint.push import push
from gesso.errors import CheckpointError, InputError
from tests.hub import Hub

# huggingface_hub 2.4 gives files to httpx in a way that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

BASE = "someone/base"
NAME = "someone/tuned"
SETTINGS = LoraSettings(rank=4, alpha=8.0)
RECIPE = '[run]\nout = "out"\n'


@pytest.fixture
def logged_in(hub: Hub, tiny_directory, monkeypatch) -> Hub:
    """A hub with the base model, and a token for it."""
    hub.add(BASE, tiny_directory)
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    return hub


@pytest.fixture
def adapter(tiny_directory, tmp_path):
    """An adapter of the base, beside files of a run that must stay here."""
    model = gesso.load(tiny_directory).model
    adapters.add(model, SETTINGS)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".B"):
                parameter.normal_(0.0, 0.1)
    directory = tmp_path / "run" / "adapter"
    adapters.save(model, directory, SETTINGS, base=BASE)
    (directory / "recipe.toml").write_text(RECIPE)
    for name in ("rows.jsonl", "optimizer.safetensors", "state.json", "notes.txt"):
        (directory / name).write_text("private")
        (directory.parent / name).write_text("private")
    return directory


def answer(model):
    return model.generate("1: ", seed=1, max_new_tokens=8, steps=2).tokens


def test_a_pushed_adapter_is_found_by_its_name(logged_in, adapter, tiny_directory):
    assert push(adapter, NAME) == f"{logged_in.url}/{NAME}"
    assert set(logged_in.repositories[NAME]) == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    assert NAME not in logged_in.private
    expected, found = gesso.load(tiny_directory, adapter=adapter), gesso.load(tiny_directory, adapter=NAME)
    assert answer(found) == answer(expected)


def test_the_card_of_an_adapter_names_base_library_use_and_recipe(logged_in, adapter):
    push(adapter, NAME)
    card = logged_in.repositories[NAME]["README.md"].decode()
    for line in ('base_model: "someone/base"', 'base_model_relation: "adapter"', 'library_name: "peft"', "- gesso"):
        assert f"\n{line}\n" in card.partition("\n---\n")[0] + "\n", line
    assert f"--model {BASE} --adapter {NAME}" in card
    assert "rank 4 and alpha 8.0" in card and RECIPE.strip() in card


def test_a_pushed_merged_model_is_found_by_its_name(logged_in, adapter, tmp_path):
    merging.merge_files(BASE, adapter, tmp_path / "merged", shard_bytes=100_000)
    (tmp_path / "merged" / "rows.jsonl").write_text("private")
    push(tmp_path / "merged", NAME, private=True)
    assert NAME in logged_in.private
    found = logged_in.repositories[NAME]
    weights = {path.name for path in (tmp_path / "merged").glob("model-*.safetensors")}
    assert set(found) == weights | {
        "config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json", "README.md",
    }  # fmt: skip
    card = found["README.md"].decode()
    assert 'base_model: "someone/base"' in card and 'base_model_relation: "finetune"' in card
    assert f"--model {NAME}" in card and RECIPE.strip() in card
    assert answer(gesso.load(NAME)) == answer(gesso.load(BASE, adapter=adapter))


def test_the_card_of_a_trained_model_names_the_base_of_its_recipe(logged_in, tiny_directory, tmp_path, adapter):
    merging.merge_files(BASE, adapter, tmp_path / "merged")
    write.save(gesso.load(tmp_path / "merged").model, tmp_path / "trained", source=tmp_path / "merged")
    for scratch, line in (("false", 'base_model: "someone/base"\n'), ("true", "A DiffusionGemma checkpoint.\n")):
        (tmp_path / "trained" / "recipe.toml").write_text(f'[model]\npath = "{BASE}"\nscratch = {scratch}\n')
        push(tmp_path / "trained", f"someone/trained-{scratch}")
        card = logged_in.repositories[f"someone/trained-{scratch}"]["README.md"].decode()
        assert line in card and "merged" not in card, "the origin of the source is not that of the trained model"


def test_a_second_push_replaces_the_weights_and_keeps_the_card(logged_in, tiny_directory, tmp_path):
    model = gesso.load(tiny_directory).model
    write.save(model, tmp_path / "shards", source=tiny_directory, shard_bytes=100_000)
    push(tmp_path / "shards", NAME)
    logged_in.repositories[NAME] |= {"README.md": b"# mine", "picture.png": b"-"}
    push(tiny_directory, NAME)
    names = set(logged_in.repositories[NAME])
    assert {name for name in names if "safetensors" in name} == {"model.safetensors"}, "no shard or index is left"
    assert logged_in.repositories[NAME]["README.md"] == b"# mine" and "picture.png" in names


def test_a_readme_of_the_directory_is_the_card(logged_in, adapter):
    (adapter / "README.md").write_text("---\ntags: [mine]\n---\n# Mine\n")
    push(adapter, NAME)
    assert logged_in.repositories[NAME]["README.md"].endswith(b"# Mine\n")


def test_a_local_base_is_not_named(logged_in, adapter, tmp_path):
    config = json.loads((adapter / "adapter_config.json").read_text())
    for base in (str(tmp_path), None):
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
        push(adapter, f"someone/{'local' if base else 'none'}")
    for name in ("someone/local", "someone/none"):
        card = logged_in.repositories[name]["README.md"].decode()
        assert "base_model" not in card and str(tmp_path) not in card


# --- errors -------------------------------------------------------------------------------------------------------


def test_errors_name_the_cause_before_anything_is_sent(logged_in, adapter, tmp_path, monkeypatch):
    logged_in.add("someone/public", {})
    for directory, name, options, words in (
        (adapter, "tuned", {}, "form owner/name"),
        (adapter, "someone/tuned:Q4_K_M", {}, "form owner/name"),
        (adapter.parent, NAME, {}, rf"neither an adapter .* push {adapter}"),
        (tmp_path / "nowhere", NAME, {}, "neither an adapter"),
        (adapter, "someone/public", {"private": True}, "exists and is public"),
        (adapter, BASE, {}, "has config.json, so it is not the repository of an adapter"),
    ):
        with pytest.raises(InputError, match=words):
            push(directory, name, **options)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="adapter_model.safetensors is missing"):
        push(adapter, NAME)
    assert not logged_in.uploads and NAME not in logged_in.repositories
    assert logged_in.repositories["someone/public"] == {}


def test_a_push_without_a_token_says_how_to_log_in(hub, adapter, main):
    done = main("push", str(adapter), NAME)
    assert done.code == 2 and "hf auth login" in done.err and hub.repositories == {}


@pytest.mark.parametrize("status, words", [(403, "may write to someone/tuned"), (500, "not sent twice")])
def test_errors_of_the_hub_are_one_line(logged_in, adapter, status, words, monkeypatch):
    # The library waits before it tries again.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    logged_in.status["/commit/"] = status
    with pytest.raises(CheckpointError, match=words) as caught:
        push(adapter, NAME)
    assert "\n" not in str(caught.value)


def test_an_interrupted_upload_is_one_line(logged_in, adapter, monkeypatch):
    def interrupted(*arguments, **options):
        raise ConnectionError("connection reset")

    monkeypatch.setattr("huggingface_hub.lfs.http_backoff", interrupted)  # it would try for a minute
    with pytest.raises(CheckpointError, match="connection reset. Check the network.* not sent twice"):
        push(adapter, NAME)
    assert logged_in.repositories[NAME] == {}, "no commit"


def test_a_card_that_the_hub_rejects_is_one_line(logged_in, adapter):
    (adapter / "README.md").write_text("---\ntags: [mine\n---\n")
    logged_in.status["/validate-yaml"] = 400
    with pytest.raises(CheckpointError, match="README.md") as caught:
        push(adapter, NAME)
    assert "\n" not in str(caught.value) and logged_in.repositories[NAME] == {}


def test_the_command_prints_the_address(logged_in, adapter, main):
    done = main("push", str(adapter), NAME, "--private")
    assert (done.code, done.out) == (0, f"{logged_in.url}/{NAME}\n")
    assert NAME in logged_in.private

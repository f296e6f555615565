"""The data of the model in the box: all that its recipe names is made, once, and the recipe can read it."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from gesso.chat.tokenizer import Tokenizer
from gesso.eval import Structured, python_corpus
from gesso.model.config import Config
from gesso.train import run as command
from gesso.train.recipe import load
from tests.examples.test_python_corpus import code, names, wheel

RECIPES = Path(__file__).parents[2] / "recipes"
PIECES, ROWS = 640, 40


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_data", RECIPES / "mini" / "make_data.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A wheel of fifteen files in the cache, the list that names it, and the shape with a smaller vocabulary."""
    path = tmp_path_factory.mktemp("data")
    package = wheel(path / "wheels", {name: code(f"own_{n}") for n, name in enumerate(names("train", 15))})
    row = ", ".join(f'{key} = "{value}"' for key, value in vars(package).items())
    (path / "packages.toml").write_text(f"package = [{{{row}}}]\n")
    config = json.loads((RECIPES / "mini" / "config.json").read_text())
    config["text_config"]["vocab_size"] = PIECES
    (path / "shape").mkdir()
    (path / "shape" / "config.json").write_text(json.dumps(config))
    (path / "shape" / "generation_config.json").write_text((RECIPES / "mini" / "generation_config.json").read_text())
    (path / "stdlib").mkdir()
    for name in ("first", "second", "third"):
        (path / "stdlib" / f"{name}.py").write_text(code(name))
    return path


@pytest.fixture(scope="module")
def make(script, place):
    def run(packages: str = "packages.toml") -> list[str]:
        said: list[str] = []
        options = {"packages": place / packages, "shape": place / "shape", "rows": ROWS}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(python_corpus.sysconfig, "get_path", lambda _: str(place / "stdlib"))
            script.make(place / "out", place / "wheels", **options, say=said.append)
        return said

    return run


@pytest.fixture(scope="module")
def made(place, make) -> Path:
    make()
    return place / "out"


def test_the_recipe_finds_all_it_names_and_reads_every_row(made):
    recipe = load(RECIPES / "mini.toml")
    assert recipe.model.path and Path(recipe.model.path).name == "model"
    files = tuple(str(made / Path(file).name) for file in recipe.data.files)
    data = replace(recipe.data, files=files, max_length=4096)
    report = command.check(replace(recipe, data=data, model=replace(recipe.model, path=str(made / "model"))))
    library = sum(python_corpus.split_of(f"{name}.py") == "train" for name in ("first", "second", "third"))
    assert (report.rows, report.rejected) == (15 + library + ROWS, ())
    assert Config.from_directory(made / "model").vocab_size == PIECES
    assert Tokenizer.from_directory(made / "model").vocab_size == PIECES


def test_what_is_there_is_left_alone_and_what_is_gone_is_made_again_the_same(made, make):
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}

    before = files()
    assert len(before) == 7
    said = make("absent.toml")  # a list that is read would be an error
    assert files() == before and len(said) == 3 and all("there already" in line for line in said)
    for gone in ("python-heldout.jsonl.xz", "structured.jsonl.xz"):
        (made / gone).unlink()
        said = make()
        assert files() == before and sum("there already" in line for line in said) == 2


def test_the_tokenizer_learns_from_the_whole_library_and_a_sample_of_the_rest(script, made):
    learnt = list(script.texts(made / "python.jsonl.xz", made / "structured.jsonl.xz"))
    documents = list(script.read(made / "python.jsonl.xz"))
    library = [row["text"] for row in documents if row["source"].startswith("python==")]
    others = [row["text"] for row in documents if row["text"] not in library]
    assert library and len(others) == 15
    rows = list(Structured().training_rows(ROWS, seed=0))
    said = [message["content"] for row in rows[::8] for message in row["messages"]]
    assert learnt == library + others[::6] + said


def test_no_half_made_model_is_left_when_too_little_is_there_to_learn_from(script, place, tmp_path):
    with pytest.raises(script.InputError, match="a vocabulary of 640 cannot be made"):
        script.make_model(tmp_path / "model", place / "shape", iter(["a"]))
    assert not (tmp_path / "model").exists()

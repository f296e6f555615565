"""The training data of gesso-mini: every part is made once, and the recipe reads it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.mini import make_data as script
from examples.python_infill import corpus
from examples.structured.rows import training_rows
from gesso.chat.tokenizer import Tokenizer
from gesso.model.config import Config
from gesso.train import run as command
from gesso.train.recipe import load
from tests.examples.test_python_corpus import code, names, wheel

MINI = Path(__file__).parents[2] / "examples" / "mini"
VOCABULARY, ROWS = 640, 40


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A wheel of 15 files in the cache, its list, and the shape with a smaller vocabulary."""
    path = tmp_path_factory.mktemp("data")
    package = wheel(path / "wheels", {name: code(f"own_{n}") for n, name in enumerate(names("train", 15))})
    row = ", ".join(f'{key} = "{value}"' for key, value in vars(package).items())
    (path / "packages.toml").write_text(f"package = [{{{row}}}]\n")
    config = json.loads((MINI / "config.json").read_text())
    config["text_config"]["vocab_size"] = VOCABULARY
    (path / "shape").mkdir()
    (path / "shape" / "config.json").write_text(json.dumps(config))
    (path / "shape" / "generation_config.json").write_text((MINI / "generation_config.json").read_text())
    (path / "stdlib").mkdir()
    for name in ("first", "second", "third"):
        (path / "stdlib" / f"{name}.py").write_text(code(name))
    return path


@pytest.fixture(scope="module")
def make(place):
    def run(packages: str = "packages.toml") -> list[str]:
        said: list[str] = []
        options = {"packages": place / packages, "shape": place / "shape", "rows": ROWS}
        with pytest.MonkeyPatch.context() as patch:
            # The standard library has thousands of files.
            patch.setattr(corpus.sysconfig, "get_path", lambda _: str(place / "stdlib"))
            script.make(place / "out", place / "wheels", **options, say=said.append)
        return said

    return run


@pytest.fixture(scope="module")
def made(place, make) -> Path:
    make()
    return place / "out"


COPYING, AGAIN = ROWS * 4 // 5, ROWS // 3 + ROWS * 4 // 15 + ROWS // 6
WORDINGS = ROWS + ROWS * 8 // 15 + ROWS * 4 // 15 + ROWS // 5
REQUESTS = ROWS * 4 // 3 + ROWS // 3 + ROWS // 6 + ROWS * 2 // 15


@pytest.mark.parametrize(
    ("name", "generated"),
    [
        ("mini", ROWS),
        ("mini-more", ROWS),
        ("mini-chat", ROWS + ROWS // 2),
        ("mini-copy", COPYING + AGAIN),
        ("mini-wordings", WORDINGS),
        ("mini-requests", REQUESTS),
    ],
)
def test_the_recipe_reads_every_row(made, name, generated):
    recipe = load(MINI / f"{name}.toml")
    assert recipe.model.path and Path(recipe.model.path).name == "model"
    files = tuple(str(made / Path(file).relative_to("data/mini")) for file in recipe.data.files)
    data = replace(recipe.data, files=files, max_length=4096)
    report = command.check(replace(recipe, data=data, model=replace(recipe.model, path=str(made / "model"))))
    library = sum(corpus.split_of(f"{name}.py") == "train" for name in ("first", "second", "third"))
    assert (report.rows, report.rejected) == (15 + library + generated, ())
    assert Config.from_directory(made / "model").vocab_size == VOCABULARY
    assert Tokenizer.from_directory(made / "model").vocab_size == VOCABULARY


def test_existing_parts_are_kept_and_missing_parts_are_made_again(made, make):
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}

    before = files()
    assert len(before) == 22
    said = make("absent.toml")  # reading this list would fail
    assert files() == before and len(said) == 16 and all("already exists" in line for line in said)
    for gone in (
        "python-heldout.jsonl.xz",
        "part/python.jsonl.xz",
        "structured.jsonl.xz",
        "chat.jsonl.xz",
        "again.jsonl.xz",
    ):
        (made / gone).unlink()
        said = make()
        assert files() == before and sum("already exists" in line for line in said) == 15


def test_the_tokenizer_sample_has_the_whole_standard_library(made):
    learnt = list(script.texts(made / "python.jsonl.xz", made / "structured.jsonl.xz"))
    documents = list(script.read(made / "python.jsonl.xz"))
    library = [row["text"] for row in documents if row["source"].startswith("python==")]
    others = [row["text"] for row in documents if row["text"] not in library]
    assert library and len(others) == 15
    rows = list(training_rows(ROWS, seed=0))
    said = [message["content"] for row in rows[::8] for message in row["messages"]]
    assert learnt == library + others[::6] + said


def test_a_failed_tokenizer_leaves_no_model_directory(place, tmp_path):
    with pytest.raises(script.InputError, match="cannot learn 640 tokens"):
        script.make_model(tmp_path / "model", place / "shape", iter(["a"]))
    assert not (tmp_path / "model").exists()

"""The names by which a request may mean a model."""

from dataclasses import replace

import pytest

from gesso.serve.entry import ModelEntry, entry_of
from gesso.serve.errors import ApiError
from gesso.serve.settings import EngineSettings, ServerSettings
from tests.serve.preparing import prepare

ENGINE = EngineSettings(adapters={"sql": "/nowhere", "odd:latest": "/nowhere"})


@pytest.fixture(scope="module")
def entries():
    """The models of `gesso serve` without a model, and two adapters."""
    main = ServerSettings(engine=ENGINE)
    solver = ServerSettings(engine=replace(ENGINE, model="gesso-sudoku", adapters={}), name="gesso-sudoku")
    return [ModelEntry(main), ModelEntry(solver)]


NAMES = [
    ("gesso", "gesso", None),
    ("gesso:latest", "gesso", None),
    ("gesso-mini", "gesso", None),
    ("gesso-mini:latest", "gesso", None),
    ("gesso-sudoku", "gesso-sudoku", None),
    ("gesso-sudoku:latest", "gesso-sudoku", None),
    ("sql", "gesso", "sql"),
    ("sql:latest", "gesso", "sql"),
    ("odd:latest", "gesso", "odd:latest"),
]


@pytest.mark.parametrize(("name", "served", "adapter"), NAMES)
def test_a_model_has_its_name_the_tag_latest_and_its_own_name(entries, name, served, adapter):
    messages = [{"role": "user", "content": "Hello"}]
    requests = {
        "chat": {"messages": messages},
        "completions": {"prompt": "Hello"},
        "responses": {"input": "Hello"},
        "anthropic": {"messages": messages, "max_tokens": 4},
        "ollama_chat": {"messages": messages},
    }
    for endpoint, fields in requests.items():
        form = prepare(entries, endpoint, {"model": name, **fields}).form
        assert (form.served, form.adapter, form.model) == (served, adapter, adapter or served)


@pytest.mark.parametrize("name", ["gesso:7b", "latest", ":latest", "gesso:latest:latest", "odd", ""])
def test_other_names_are_not_found(entries, name):
    with pytest.raises(ApiError, match="there is no model"):
        entry_of(entries, name)


def test_a_directory_has_no_name_of_a_bundled_model(tiny):
    entry = ModelEntry(ServerSettings(engine=EngineSettings(model=str(tiny.directory)), name="tiny"))
    assert entry.served_name("gesso-mini") is None and entry.served_name("tiny:latest") == "tiny"


def test_only_models_for_conversations_claim_tools_and_thinking(entries):
    def capabilities(name):
        return prepare(entries, "show", {"model": name})["capabilities"]

    assert capabilities("gesso") == ["completion", "insert", "thinking", "tools"]
    assert capabilities("gesso-sudoku") == ["completion"]

"""The names by which a request may mean a model."""

import json
from dataclasses import replace

import pytest

from gesso.serve.errors import ApiError
from gesso.serve.prepare import endpoints
from gesso.serve.prepare.frontend import ModelFrontend, frontend_of
from gesso.serve.prepare.request import PreparedRequest
from gesso.serve.settings import EngineSettings, ServerSettings

ENGINE = EngineSettings(adapters={"sql": "/nowhere", "odd:latest": "/nowhere"})


@pytest.fixture(scope="module")
def frontends():
    """The models of `gesso serve` without a model, and two adapters."""
    main = ServerSettings(engine=ENGINE)
    solver = ServerSettings(engine=replace(ENGINE, model="gesso-sudoku", adapters={}), name="gesso-sudoku")
    return [ModelFrontend(main), ModelFrontend(solver)]


def prepared(frontends, endpoint, **body):
    names = [frontend.name for frontend in frontends]
    adapters = {frontend.name: list(frontend.adapters) for frontend in frontends}
    contexts, sees = dict.fromkeys(names, 512), dict.fromkeys(names, False)
    task = {"endpoint": endpoint, "contexts": contexts, "adapters": adapters, "accepts_images": sees, "fetch": None}
    return endpoints.run(task, json.dumps(body).encode(), frontends)


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
def test_a_model_has_its_name_the_tag_latest_and_its_own_name(frontends, name, served, adapter):
    messages = [{"role": "user", "content": "Hello"}]
    requests = {
        "chat": {"messages": messages},
        "completions": {"prompt": "Hello"},
        "responses": {"input": "Hello"},
        "anthropic": {"messages": messages, "max_tokens": 4},
        "ollama_chat": {"messages": messages},
    }
    for endpoint, fields in requests.items():
        request = PreparedRequest.decode(*prepared(frontends, endpoint, model=name, **fields))
        assert (request.served, request.adapter, request.model) == (served, adapter, adapter or served)


@pytest.mark.parametrize("name", ["gesso:7b", "latest", ":latest", "gesso:latest:latest", "odd", ""])
def test_other_names_are_not_found(frontends, name):
    with pytest.raises(ApiError, match="there is no model"):
        frontend_of(frontends, name)


def test_a_directory_has_no_name_of_a_bundled_model(tiny):
    frontend = ModelFrontend(ServerSettings(engine=EngineSettings(model=str(tiny.directory)), name="tiny"))
    assert frontend.served_name("gesso-mini") is None and frontend.served_name("tiny:latest") == "tiny"


def test_only_models_for_conversations_claim_tools_and_thinking(frontends):
    def capabilities(name):
        return json.loads(prepared(frontends, "show", model=name)[1])["capabilities"]

    assert capabilities("gesso") == ["completion", "insert", "thinking", "tools"]
    assert capabilities("gesso-sudoku") == ["completion"]

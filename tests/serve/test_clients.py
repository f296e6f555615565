"""LangChain, and a fuzzer that sends requests allowed by the OpenAPI description.

Both take seconds to import, so only the process that runs these tests does.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.serving import QUICK, server_fixture
from tests.waiting import PATIENCE

LONGER = QUICK | {"canvas_length": 32}
PERSON = {
    "title": "person",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


server = server_fixture("--max-batch", "auto", "--max-length", "600")


def test_ready_reports_the_chosen_settings(server):
    ready = server.http.get("/ready").json()
    assert (ready["max_batch"], ready["max_length"], ready["prefill"]) == (8, 600, 256)
    assert ready["write"] == "canvases (the default)", "a small model is not measured"
    assert "600 (as requested)" in ready["why"] and ready["why"] in server.log.read_text()


# --- LangChain --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def langchain(server):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none needed", model="tiny", max_tokens=64, seed=1, max_retries=0,
        extra_body={"diffusion": LONGER}, use_responses_api=False,
    )  # fmt: skip


def test_langchain_answer_equals_its_stream(langchain):
    answer = langchain.invoke("Hello")
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in langchain.stream("Hello")) == answer.content


def test_langchain_structured_output(langchain):
    found = langchain.with_structured_output(PERSON, method="json_schema").invoke("Ada is 36.")
    assert isinstance(found["name"], str) and isinstance(found["age"], int)


def test_langchain_tool_call(langchain):
    tool = {"type": "function", "function": {"name": "save", "parameters": PERSON}}
    answer = langchain.bind_tools([tool], tool_choice="save").invoke("Ada is 36.")
    assert answer.tool_calls[0]["name"] == "save"
    assert isinstance(answer.tool_calls[0]["args"]["age"], int)


def test_langchain_completion(server):
    from langchain_openai import OpenAI

    llm = OpenAI(
        base_url=f"{server.url}/v1", api_key="none needed", model="tiny", max_tokens=8, seed=1, max_retries=0,
        extra_body={"diffusion": LONGER},
    )  # fmt: skip
    assert isinstance(llm.invoke("def f(x):"), str)


# --- a fuzzer ---------------------------------------------------------------------------------------------------------


def test_no_request_allowed_by_openapi_is_a_server_error(server):
    import schemathesis

    statuses = []
    drawing = settings(
        max_examples=2, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    for operation in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():

        @drawing
        @given(case=operation.ok().as_strategy())
        def ask(case):
            response = case.call(base_url=server.url, timeout=PATIENCE)
            statuses.append(response.status_code)
            assert response.status_code < 500, response.text

        ask()
    assert len(statuses) > 15 and 200 in statuses and 400 in statuses
    server.wait_metric("gesso_requests_running", 0)
    assert server.metric("gesso_engine_restarts_total") == 0

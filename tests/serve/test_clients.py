"""A fuzzer that sends requests allowed by the OpenAPI description.

It takes seconds to import, so only the process that runs this test does.
"""

from hypothesis import HealthCheck, Phase, given, settings

from tests.serving import server_fixture
from tests.waiting import PATIENCE

server = server_fixture()


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

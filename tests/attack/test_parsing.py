"""Large, deep or invalid bodies are rejected without delaying other clients."""

import json
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gesso.serve.settings import ServerLimits
from tests.attack.watching import (
    BAD,
    ask,
    assert_nothing_left,
    assert_refused,
    attack,
    bystanders,
    short,
    text,
)
from tools.load import attacks, wire
from tools.load.wire import CHAT, COMPLETIONS, EDITS

pytestmark = pytest.mark.attack

USER = attacks.USER
TOOLS = [{"name": f"f{number}"} for number in range(attacks.TOOLS)]
LONG = "all work and no play " * 333_000  # 7 MB, below the limit on bodies
DIGITS = b"1" * 5000


REFUSED = {
    "60,000 tools, one of which must be called": (CHAT, {"messages": USER, "tools": TOOLS, "tool_choice": "required"}),
    "60,000 tools to tokenize": ("/tokenize", {"messages": USER, "tools": TOOLS}),
    "600,000 prompts of the wrong type": (COMPLETIONS, attacks.many_wrong_prompts(600_000)),
    "a long prompt": (COMPLETIONS, {"prompt": LONG}),
    "a long instruction": (EDITS, {"input": "The sky is green.", "span": [11, 16], "instruction": LONG}),
    "a long content part": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
    "a long tool description": (CHAT, {"messages": USER, "tools": [{"name": "f", "description": LONG}]}),
    "an integer of 5,000 digits as a token": (COMPLETIONS, b'{"prompt": [%s]}' % DIGITS),
    "an integer of 5,000 digits as a seed": (COMPLETIONS, b'{"prompt": "x", "seed": %s}' % DIGITS),
    "not JSON": (COMPLETIONS, b'{"prompt": "x"'),
    "not UTF-8": (COMPLETIONS, b'{"prompt": "\xff"}'),
    "NaN": (COMPLETIONS, b'{"prompt": "x", "temperature": NaN}'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_body_is_rejected_while_others_are_served(server, name):
    path, body = REFUSED[name]
    with bystanders(server):
        assert_refused(attack(server, path, body))


@pytest.mark.parametrize("depth", (500, 100_000))
def test_deep_json_never_causes_a_server_error(server, depth):
    with bystanders(server):
        for path, body in attacks.nested(depth):
            answer = attack(server, path, body)
            assert answer.status == 200 or 400 <= answer.status < 500, (path, answer.status, answer.message)


def test_abandoned_requests_stop_being_processed(server):
    """Six clients hang up while their tools are checked: more than the server has threads for."""
    body = wire.encode({"messages": USER, "tools": TOOLS})
    with bystanders(server):
        connections = [wire.send(server.url, BAD, "/tokenize", body) for _ in range(6)]
        time.sleep(0.3)
        for connection in connections:
            wire.abandon(connection)
        assert attack(server, "/tokenize", {"prompt": "x"}).status == 200
    assert_nothing_left(server)


@pytest.mark.parametrize("form", ({"name": "f"}, {"type": "function", "function": {"name": "f"}}))
def test_a_tool_can_be_required_in_either_form(server, form):
    """Both forms pass validation, so neither may fail in the engine."""
    answer = attack(server, CHAT, {"messages": USER, "tools": [form], "tool_choice": "required", "max_tokens": 64})
    assert answer.status == 200 or 400 <= answer.status < 500, (answer.status, answer.message)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["", "x", "\ud800", "\0", "<|turn>", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["role", "type", "text", "a"]), inner),
    max_leaves=20,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "prompt": values,
        "messages": values,
        "input": values,
        "span": values,
        "tools": values,
        "tool_choice": values,
        "response_format": values,
        "choice": values,
        "stop": values,
        "diffusion": values,
        "tokens": values,
        "max_tokens": st.sampled_from([0, 1, 4, 10**9, -1, 1.5, "4"]),
    },
)
paths = st.sampled_from([CHAT, COMPLETIONS, EDITS, wire.RESPONSES, "/tokenize", "/detokenize"])


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(path=paths, body=bodies, repeated=st.sampled_from([1, 1, 1, 2000]))
def test_no_body_causes_a_server_error(server, path, body, repeated):
    body = {name: value * repeated if isinstance(value, list) else value for name, value in body.items()}
    body.setdefault("max_tokens", 4)
    encoded = json.dumps(body).encode()
    assume(len(encoded) <= ServerLimits().body_bytes)  # beyond it, the server closes the connection before all is sent
    answer = attack(server, path, encoded)
    if answer.status != 200:
        assert_refused(answer)


def test_these_attacks_leave_nothing(server):
    assert text(ask(server, short())) == text(ask(server, short()))
    assert_nothing_left(server)

"""One function resolves and checks what a caller asks for, whichever way it comes."""

import json
import subprocess
import sys

import pytest

import gesso
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.request import Request
from gesso.errors import ContextOverflow
from gesso.request import build as building
from gesso.request.build import attach, build
from gesso.request.info import ClientLimits
from gesso.request.spec import ChatSpec, RequestSpec
from gesso.settings import Diffusion
from tests.serve.preparing import entry, prepare

SMALL = {"max_new_tokens": 4, "steps": 2, "canvas_length": 16, "seed": 1}
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"enum": [1, 2]}}}}}]


@pytest.fixture
def counted(monkeypatch):
    """Count what is resolved and checked. Nothing but the calls shows it."""
    counts = {"settings": 0, "check": 0}
    settings, check = building._settings, Request.check

    def resolve(*arguments):
        counts["settings"] += 1
        return settings(*arguments)

    def count(self, *limits):
        counts["check"] += 1
        return check(self, *limits)

    monkeypatch.setattr(building, "_settings", resolve)
    monkeypatch.setattr(Request, "check", count)
    return counts


@pytest.mark.parametrize(
    "ask",
    [
        lambda g: g.generate("abc", **SMALL),
        lambda g: g.chat(HELLO, **SMALL),
        lambda g: g.generate("abc", regex="[ab]{3}", **SMALL),
        lambda g: list(g.stream("abc", **SMALL)),
    ],
    ids=["generate", "chat", "constraint", "stream"],
)
def test_python_resolves_and_checks_a_request_once(tiny, counted, ask):
    ask(tiny)
    assert counted == {"settings": 1, "check": 1}


def test_the_command_line_resolves_and_checks_a_request_once(main, tiny_directory, counted):
    options = ("-m", str(tiny_directory), "--max-new-tokens", "4", "--steps", "2", "--seed", "1")
    assert main("generate", "abc", *options).code == 0
    assert counted == {"settings": 1, "check": 1}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("chat", {"messages": HELLO}),
        ("completions", {"prompt": "abc", "n": 4}),
        ("completions", {"prompt": "abc", "suffix": "d"}),
        ("responses", {"input": "Hello"}),
        ("anthropic", {"messages": HELLO}),
        ("ollama_chat", {"messages": HELLO}),
        ("llama_cpp_infill", {"input_prefix": "abc"}),
    ],
)
def test_the_server_resolves_and_checks_a_request_once_before_it_reaches_the_engine(
    tiny_directory, counted, endpoint, body
):
    """`tests/serve/test_worker.py` shows that the engine process checks only what the child could not."""
    prepare([entry(tiny_directory)], endpoint, body, context=4096)
    assert counted == {"settings": 1, "check": 1}


def test_a_request_made_by_hand_is_checked_when_it_is_submitted(tiny):
    with pytest.raises(gesso.InputError, match="outside the vocabulary"):
        tiny.engine.submit(Request(prompt=(2, 10**6), max_new_tokens=4))


def test_a_changed_request_is_checked_again_and_one_with_another_seed_is_not(tiny):
    built = build(RequestSpec(prompt="abc"), tiny.info, list)
    assert built.is_checked and built.with_seed(3).is_checked
    with pytest.raises(gesso.InputError, match="at least 1"):
        from dataclasses import replace

        tiny.engine.submit(replace(built, max_new_tokens=0))


def test_a_constraint_is_chosen_but_not_compiled(tiny):
    spec = RequestSpec(prompt="abc", constraint=ConstraintSpec(regex="(unclosed"))
    built = build(spec, tiny.info, list)
    assert built.constraint is not None and built.guide is None and not built.is_checked
    with pytest.raises(gesso.InputError, match="not attached"):
        tiny.engine.submit(built)
    with pytest.raises(gesso.InputError, match="regular expression"):
        attach(built, tiny.guides.of(built.constraint))


@pytest.mark.parametrize("change", [{"settings": {"write": "tokens"}}, {"pins": {0: 200}}])
def test_an_optional_constraint_that_is_not_used_is_never_compiled(tiny, change):
    spec = RequestSpec(prompt=ChatSpec(messages=HELLO, tools=TOOLS))
    assert build(spec, tiny.info, list).constraint is not None
    unused = build(RequestSpec(prompt=spec.prompt, **change), tiny.info, list)
    assert unused.constraint is None and unused.validate is None


def test_only_a_server_lowers_a_length_to_what_fits(tiny):
    from dataclasses import replace

    spec = RequestSpec(prompt="abc", max_new_tokens=10**6)
    with pytest.raises(ContextOverflow):
        build(spec, tiny.info, list)
    limited = replace(tiny.info, limits=ClientLimits(request_tokens=100))
    request = build(spec, limited, list)
    assert len(request.prompt) + request.max_new_tokens == 100


def test_a_temperature_means_the_greed_of_the_preset(tiny):
    greedy = Diffusion(greed=0.5)
    assert build(RequestSpec(prompt="a", preset=greedy, temperature=0.5), tiny.info, list).diffusion.greed == 0.75


def test_the_python_api_loads_no_package_of_the_server():
    code = "import sys, gesso.api; print(json.dumps(sorted(sys.modules)))".replace("sys,", "sys, json,")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"msgspec", "pydantic", "fastapi"} & set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("prompt", "constraint", "is_named"),
    [
        (ChatSpec(messages=HELLO), ConstraintSpec(json_schema={"type": "object"}), True),
        (ChatSpec(messages=HELLO, tools=TOOLS), None, True),
        (ChatSpec(messages=HELLO, schema_in_prompt=False), ConstraintSpec(json_schema={"type": "object"}), False),
        (ChatSpec(messages=HELLO), ConstraintSpec(choice=["yes", "no"]), False),
        ("Hello", ConstraintSpec(json_schema={"type": "object"}), False),
    ],
    ids=["schema in the prompt", "tools", "schema not in the prompt", "choice", "continuation"],
)
def test_the_first_half_is_free_if_the_prompt_names_the_constraint(tiny, prompt, constraint, is_named):
    request = build(RequestSpec(prompt=prompt, constraint=constraint), tiny.info, list)
    assert request.free_first is is_named

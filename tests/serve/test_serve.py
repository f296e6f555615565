"""A live server with the official OpenAI client. Nothing is mocked."""

import json
import subprocess
import sys

import httpx
import pytest

from gesso.bench.serve import measure
from tests.serving import QUICK, server_fixture
from tests.waiting import wait_until

# Low temperature and few steps, so that the tiny model converges soon.
EXTRA = {"diffusion": QUICK}
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


server = server_fixture()


def chat(client, **options):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "seed": 1, "extra_body": EXTRA} | options
    return client.chat.completions.create(**asked)


def texts(chunks):
    """Return the joined text of a stream's chunks by choice."""
    found = {}
    for chunk in chunks:
        for choice in chunk.choices:
            found[choice.index] = found.get(choice.index, "") + (choice.delta.content or "")
    return found


# --- the official client ----------------------------------------------------------------------------------------------


def test_models_are_listed_and_unknown_models_are_not_found(client):
    import openai

    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    for call in (lambda: chat(client, model="gpt-5"), lambda: client.models.retrieve("gpt-5")):
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5'; available: tiny"):
            call()


def test_same_seed_same_answer(client):
    first, again, other = chat(client), chat(client), chat(client, seed=2)
    assert first.choices[0].message.content == again.choices[0].message.content != other.choices[0].message.content
    assert first.choices[0].message.role == "assistant"
    assert first.choices[0].finish_reason in ("stop", "length")


def test_a_random_seed_is_reported_and_reproduces_the_answer(client):
    drawn = chat(client, seed=None)
    again = chat(client, seed=drawn.choices[0].seed)
    assert again.choices[0].message.content == drawn.choices[0].message.content


def test_usage_counts_tokens_steps_and_canvases(client):
    usage = chat(client).usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 40
    diffusion = usage.diffusion
    assert diffusion["canvases"] <= 3 and 1 <= diffusion["steps"] <= 8 * 4
    assert diffusion["tokens_per_step"] == pytest.approx(usage.completion_tokens / diffusion["steps"], abs=1e-3)
    assert diffusion["time_to_first_text"] > 0


def test_a_second_turn_uses_the_cached_prefix(client):
    long = [{"role": "user", "content": "x" * 600}]
    first = chat(client, messages=long, max_tokens=4)
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    second = chat(client, messages=[*long, answer, {"role": "user", "content": "y"}], max_tokens=4)
    assert second.usage.prompt_tokens_details.cached_tokens >= 512


def test_a_stream_equals_the_plain_answer_and_has_several_deltas(client):
    early = 0
    for seed in range(3):
        plain = chat(client, seed=seed, max_tokens=48).choices[0].message.content
        chunks = list(chat(client, seed=seed, max_tokens=48, stream=True, stream_options={"include_usage": True}))
        assert texts(chunks) == {0: plain}
        assert chunks[-1].usage.completion_tokens <= 48
        early += sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 1
    assert early


def test_n_choices_use_consecutive_seeds(client):
    several = chat(client, n=3, seed=10)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    alone = [chat(client, seed=10 + i).choices[0].message.content for i in range(3)]
    assert [choice.message.content for choice in several.choices] == alone
    assert texts(chat(client, n=3, seed=10, stream=True)) == dict(enumerate(alone))


def test_a_stop_string_ends_the_text_streamed_or_not(client):
    whole = chat(client).choices[0].message.content
    stop = whole[5:8]  # not after a "<", which could begin a tag and is held back
    plain = chat(client, stop=stop)
    assert plain.choices[0].message.content == whole[: whole.find(stop)]
    assert plain.choices[0].finish_reason == "stop"
    assert texts(chat(client, stop=[stop, "never"], stream=True)) == {0: whole[: whole.find(stop)]}


def test_max_tokens_and_max_completion_tokens_bound_the_answer(client):
    for name in ("max_tokens", "max_completion_tokens"):
        body = {"model": "tiny", "messages": HELLO, "seed": 1, name: 5, "extra_body": EXTRA}
        assert client.chat.completions.create(**body).usage.completion_tokens <= 5


def test_logprobs_cover_every_token_and_change_nothing(client):
    asked = {"seed": 4, "logprobs": True, "top_logprobs": 3}  # a seed whose text has no beginning of a thought
    plain, answer = chat(client, seed=4), chat(client, **asked)
    assert answer.choices[0].message.content == plain.choices[0].message.content
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    written = [entry.token for entry in content if entry.token != '<|"|>']  # it quotes arguments and is not text
    assert "".join(written) == plain.choices[0].message.content
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    streamed = list(chat(client, **asked, stream=True))
    assert [c.choices[0].logprobs.content for c in streamed if c.choices[0].logprobs] == [content]


def test_a_tool_call_is_parsed_streamed_or_not(client, server):
    """The tiny model calls no tool by itself, so pins force the call."""
    call = '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|><turn|>'
    tokens = server.http.post("/tokenize", json={"prompt": call, "add_special_tokens": False}).json()["tokens"]
    pins = {str(at): token for at, token in enumerate(tokens)}
    body = {"tools": [WEATHER], "max_tokens": len(tokens) + 8, "extra_body": {"diffusion": QUICK | {"pins": pins}}}
    choice = chat(client, **body).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.name == "weather"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Rome"}
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **body)]
    streamed = [call for choice in chunks for call in choice.delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in streamed] == [(0, "weather")]
    assert chunks[-1].finish_reason == "tool_calls"


def test_a_conversation_with_tool_results_is_accepted(client):
    asked = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    assert chat(client, messages=messages, tools=[WEATHER], tool_choice="auto").choices


def test_reasoning_effort_enables_thinking(client):
    plain, thinking = chat(client, max_tokens=4), chat(client, max_tokens=4, reasoning_effort="high")
    assert thinking.usage.prompt_tokens > plain.usage.prompt_tokens  # the template adds it to the prompt


def test_completions_of_text_and_of_tokens_are_equal(client, server):
    options = {"model": "tiny", "max_tokens": 12, "seed": 4, "extra_body": EXTRA}
    tokens = server.http.post("/tokenize", json={"prompt": "Once"}).json()["tokens"]
    first = client.completions.create(prompt="Once", logprobs=2, **options)
    assert client.completions.create(prompt=tokens, **options).choices[0].text == first.choices[0].text
    both = client.completions.create(prompt=["Once", "Twice"], **options)
    assert [choice.text for choice in both.choices][0] == first.choices[0].text
    logprobs, text = first.choices[0].logprobs, first.choices[0].text
    pieces = zip(logprobs.tokens, logprobs.text_offset, strict=True)
    assert all(text.startswith(piece, at) for piece, at in pieces if not piece.startswith("<"))
    stream = client.completions.create(prompt="Once", stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in stream) == first.choices[0].text


def test_responses_equal_chat_completions(client):
    options = {"model": "tiny", "max_output_tokens": 24, "extra_body": EXTRA | {"seed": 1}}
    plain = client.responses.create(input="Hello", **options)
    assert plain.output_text == chat(client, max_tokens=24).choices[0].message.content
    events = list(client.responses.create(input=HELLO, stream=True, **options))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == plain.output_text


def test_temperature_below_one_is_greed_and_above_one_scales_t_max_and_t_min(client):
    def text(temperature=1, **settings):
        extra = {"extra_body": {"diffusion": QUICK | settings}}
        return chat(client, temperature=temperature, **extra).choices[0].message.content

    assert text(0) == text(greed=1.0) != text()
    assert text(0.25) == text(greed=0.75)
    assert text(2, t_max=0.15, t_min=0.05) == text()


# --- drafts and tokens ------------------------------------------------------------------------------------------------


def test_drafts_report_every_step_and_change_nothing(server, client):
    body = {"messages": HELLO, "max_tokens": 16, "seed": 1, "diffusion": QUICK | {"drafts": True}}
    events = list(server.events("/v1/chat/completions", body))
    drafts = [event["draft"] for event in events if "draft" in event]
    assert [draft["step"] for draft in drafts] == list(range(1, len(drafts) + 1))
    assert all(len(draft["entropy"]) == 16 for draft in drafts)
    content = "".join(c["delta"].get("content", "") for event in events for c in event["choices"])
    assert content == chat(client, max_tokens=16).choices[0].message.content


def test_drafts_report_states_pieces_candidates_and_reasons(server):
    """Pins have a state letter, each token's text is sent once, and candidates are sent only on request."""
    diffusion = QUICK | {"drafts": {"candidates": 3}, "pins": {"2": 140}, "canvas_length": 8}
    body = {"messages": HELLO, "max_tokens": 16, "seed": 1, "diffusion": diffusion}
    drafts = [event["draft"] for event in server.events("/v1/chat/completions", body) if "draft" in event]
    pieces, sent = {}, 0
    for draft in drafts:
        sent += len(draft["pieces"])
        pieces |= draft["pieces"]
        others = [token for position in draft["candidates"] for token, _ in position]
        assert {str(token) for token in [*draft["tokens"], *others]} <= set(pieces)
        assert len(draft["states"]) == len(draft["entropy"]) == len(draft["tokens"]) == len(draft["candidates"]) == 8
        assert set(draft["states"]) <= set("pfsa.")
        for state, token, position in zip(draft["states"], draft["tokens"], draft["candidates"], strict=True):
            shares = [share for _, share in position]
            assert len(shares) == 3 and shares == sorted(shares, reverse=True)
            assert token == position[0][0] or state in "pf", "the most likely token, unless it was fixed before"
    assert sent == len(pieces), "the text of each token is sent once"
    first = [draft for draft in drafts if draft["canvas"] == 0]
    assert all(draft["tokens"][2] == 140 and draft["states"][2] == "p" for draft in first)
    assert [draft["start"] for draft in drafts if draft["reason"]] == [0, 8]
    assert [draft["reason"] is None for draft in first] == [True] * (len(first) - 1) + [False]
    plain = server.events("/v1/chat/completions", body | {"diffusion": diffusion | {"drafts": True}})
    assert all("candidates" not in event["draft"] for event in plain if "draft" in event)


def test_autoregressive_sampler_works_with_the_servers_default_settle(server):
    diffusion = {"sampler": "autoregressive", "drafts": {"candidates": 3}}
    body = {"prompt": "Hello", "max_tokens": 3, "seed": 1, "diffusion": diffusion}
    drafts = [event["draft"] for event in server.events("/v1/completions", body) if "draft" in event]
    assert [len(draft["tokens"]) for draft in drafts] == [1, 1, 1]


def test_verified_preset_works_with_the_servers_default_settle(server):
    body = {"prompt": "Hello", "max_tokens": 8, "seed": 1}
    by_preset, by_name = (
        server.http.post("/v1/completions", json=body | {"diffusion": diffusion}).json()["choices"][0]["text"]
        for diffusion in ({"preset": "verified"}, {"sampler": "verified", "greed": 1})
    )
    assert by_preset == by_name


def test_infill_and_edits_stream_drafts(server):
    """Drafts do not change the text."""
    hole = {"prompt": "abc ", "suffix": " xyz", "max_tokens": 4, "seed": 3, "diffusion": QUICK}
    span = {"input": "The quick brown fox.", "span": [4, 9], "max_tokens": 4, "seed": 3, "diffusion": QUICK}
    for path, body in (("completions", hole), ("edits", span)):
        plain = server.http.post(f"/v1/{path}", json=body).json()
        watched = body | {"diffusion": QUICK | {"drafts": True}}
        events = list(server.events(f"/v1/{path}", watched))
        assert any("draft" in event for event in events)
        choice = next(event["choices"][0] for event in events if event["choices"])
        assert choice["text"] == plain["choices"][0]["text"]


def test_tokenize_and_detokenize(server):
    found = server.http.post("/tokenize", json={"prompt": "To be"}).json()
    assert found["count"] == len(found["tokens"])
    text = server.http.post("/detokenize", json={"tokens": found["tokens"], "skip_special_tokens": True}).json()
    assert text == {"prompt": "To be", "content": "To be"}, "the second for clients of llama.cpp"
    chat_tokens = server.http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert "<|turn>user" in server.http.post("/detokenize", json={"tokens": chat_tokens}).json()["prompt"]


def test_openapi_lists_every_endpoint(server):
    paths = set(server.http.get("/openapi.json").json()["paths"])
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/ready", "/metrics"} <= paths


# --- rejected requests ------------------------------------------------------------------------------------------------


REJECTED = [
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": "some"}, "min_p"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
    ({"diffusion": {"nonsense": 1}}, "diffusion.nonsense"),
    ({"diffusion": {"sampler": "magic"}}, "diffusion.sampler"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"seed": -2}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": [""]}, "stop.0"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
]


@pytest.mark.parametrize(("change", "param"), REJECTED, ids=[param for _, param in REJECTED])
def test_unsupported_values_are_rejected_by_name(server, change, param):
    response = server.http.post("/v1/chat/completions", json={"messages": HELLO} | change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert param.split("[")[0].split(".")[-1 if "diffusion" in param else 0] in error["message"]


BROKEN = {
    "not JSON": (b"{", "not JSON"),
    "not UTF-8": (b'{"messages": "\xff\xfe"}', "not UTF-8"),
    "deep": (b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    "half a surrogate pair": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
    "a model of half a surrogate pair": (b'{"model": "\\ud800", "messages": []}', "no model"),
    "a list": (b"[]", "the body"),
}


@pytest.mark.parametrize(("body", "message"), BROKEN.values(), ids=list(BROKEN))
def test_a_malformed_body_is_rejected_with_the_reason(server, body, message):
    response = server.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 404)
    assert message in response.json()["error"]["message"]


def test_a_prompt_that_does_not_fit_is_rejected_before_running(server):
    """A megabyte that cannot fit is rejected by its length, without tokenizing it."""
    steps = server.metric("gesso_denoising_steps_total")
    for content in ("x" * 1_000_000, "x" * 9000):
        response = server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
        assert response.status_code == 400
        assert "This model's maximum context length is" in response.json()["error"]["message"]
        assert response.elapsed.total_seconds() < 1
    assert server.metric("gesso_denoising_steps_total") == steps


def test_other_web_pages_cannot_use_a_local_server(server):
    """No CORS headers, no plain-text bodies (they need no preflight), no other host names (DNS rebinding)."""
    answer = server.http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    body = json.dumps({"messages": HELLO})
    plain = server.http.post("/v1/chat/completions", content=body, headers={"content-type": "text/plain"})
    assert plain.status_code == 400
    assert server.http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403


def test_answers_have_a_request_id_and_the_log_has_no_prompt(server):
    given = server.http.get("/v1/models", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    secret = "xyzzy plugh"
    body = {"prompt": secret, "max_tokens": 16, "seed": 1, "user": "alice", "diffusion": QUICK}
    response = server.http.post("/v1/completions", json=body)
    request_id, answer = response.headers["x-request-id"], response.json()["choices"][0]["text"]
    wait_until(lambda: request_id in server.log.read_text())  # it is written when the answer has been sent
    log = server.log.read_text()
    line = next(json.loads(x) for x in log.splitlines() if request_id in x)
    assert (line["path"], line["status"], line["user"]) == ("/v1/completions", 200, "alice")
    assert len(answer) > 8, "short enough to be part of any log"
    assert secret not in log and answer not in log


def test_many_clients_get_the_same_texts_as_one(server):
    found = measure(server.url, clients=6, seconds=0.3)
    assert found["error_count"] == 0 and found["requests"] >= 6
    assert found["same_text_as_alone"]
    assert found["first_event"]["chat"] > 0 and found["first_event"]["tokenize"] > 0


def test_plain_http_without_a_client_library(server):
    """Send a request as curl would."""
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 3, "diffusion": QUICK})
    assert answer.json()["object"] == "text_completion"


def test_the_server_process_imports_no_torch():
    """It starts sooner and stays smaller. Only the engine process needs torch."""
    program = "import sys, gesso.serve.run; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_successful_probes_are_not_logged(server):
    for path in ("/health", "/ready", "/v1/models", "/nothing"):
        server.http.get(path)
    wait_until(lambda: '"path": "/nothing"' in server.log.read_text())
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    ready = [line for line in lines if line.get("path") == "/ready"]
    assert all(line["status"] == 503 for line in ready)  # while the engine was loading
    assert not [line for line in lines if line.get("path") == "/health"]
    assert [line for line in lines if line.get("path") == "/v1/models"]

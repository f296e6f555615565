"""The engine with the tiny model: the same text in any batch, costs, ends of texts, pins, cancelling and errors."""

from dataclasses import replace

import pytest
import torch

import gesso
from gesso import Commit, Done, Draft
from gesso.diffusion.samplers import EntropyBound
from gesso.engine.engine import Engine
from gesso.engine.runner import SearchTimes
from gesso.errors import InputError
from gesso.memory.workspace import LOGITS_COPIES
from gesso.settings import SAMPLERS
from tests.engine_requests import PROMPT, SMALL, finish, other_requests, request, result
from tests.live_bytes import LiveBytes
from tests.tiny import make
from tests.waiting import PATIENCE

# --- same seed, same text -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tiny):
    """The result of `request()` on an engine of its own."""
    return result(Engine(tiny.model, tiny.decode), request())


def test_same_seed_same_text_alone_and_in_a_batch_of_eight(tiny, alone):
    batch = Engine(tiny.model, tiny.decode, max_batch=8)
    for other in other_requests():
        batch.submit(other)
    assert result(batch, request()).tokens == alone.tokens


def test_entropies_and_soft_embeddings_are_bit_identical_in_any_batch(tiny):
    """Tokens hide small differences; entropies and soft embeddings show them after some steps."""
    alone = finish(engine := Engine(tiny.model, tiny.decode), engine.submit(request(max_new_tokens=16)))[0]
    batch = Engine(tiny.model, tiny.decode)
    for other in other_requests():
        batch.submit(other)
    together = finish(batch, batch.submit(request(max_new_tokens=16)))[0]
    for mine, theirs in zip(alone, together, strict=True):
        if isinstance(mine, Draft):
            assert mine.entropy == theirs.entropy
            assert torch.equal(mine.canvas.soft_CH, theirs.canvas.soft_CH)


def test_a_new_request_does_not_change_running_ones(tiny):
    """Requests join one step apart and make the cache grow. Each gets the text it gets alone."""
    engine = Engine(tiny.model, tiny.decode, piece=32)
    wanted = [request(prompt=long_prompt(90), seed=seed) for seed in range(2)] + other_requests()[:2]
    ids = []
    for other in wanted:
        ids.append(engine.submit(other))
        engine.step()
    # `finish` lacks the events of these steps, but has the last event of each request.
    together = [events[-1].result.tokens for events in finish(engine, *ids)]
    assert together == [result(Engine(tiny.model, tiny.decode, piece=32), other).tokens for other in wanted]


def test_each_canvas_and_each_attempt_has_its_own_noise(tiny):
    process = Engine(tiny.model, tiny.decode)
    process.submit(request())
    process = process.running[0].process
    blanks = [process.blank(index, 16, {}, attempt).tokens_C for index, attempt in ((0, 0), (1, 0), (0, 1))]
    canvases = [process.blank(index, 16, {}, attempt) for index, attempt in ((0, 0), (1, 0), (0, 1))]
    keys = [process.draws(canvas).keys(16) for canvas in canvases]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(blanks[a], blanks[b])
        assert not torch.equal(keys[a], keys[b])


def test_same_seed_same_text_when_requests_join_and_leave(tiny, alone):
    batch = Engine(tiny.model, tiny.decode)
    others = [batch.submit(other) for other in other_requests()]
    for _ in range(3):
        batch.step()
    mine = batch.submit(request())
    batch.step()
    batch.cancel(others[0])
    assert finish(batch, mine)[0][-1].result.tokens == alone.tokens


def long_prompt(length, start=130):
    return tuple(start + i * 7 % 190 for i in range(length))


@pytest.mark.parametrize("length", [70, 128, 300])
def test_same_seed_same_text_with_any_cache_contents(tiny, length):
    """Below, at and beyond the window of 128; after prompts that share a prefix with this one, and after itself."""
    wanted = request(prompt=long_prompt(length), max_new_tokens=16)
    alone = result(Engine(tiny.model, tiny.decode, piece=32), wanted)
    engine = Engine(tiny.model, tiny.decode, piece=32)
    for shared in (length, length - 30, 33, 5):
        result(engine, request(prompt=(*wanted.prompt[:shared], 129, 128), seed=99, max_new_tokens=16))
        assert result(engine, wanted).tokens == alone.tokens
    assert result(engine, wanted).usage.cached_tokens == length // 32 * 32


def test_different_seeds_give_different_texts(engine):
    assert len({result(engine, request(seed=seed)).tokens for seed in (1, 2, 2**32 + 1, 2**63)}) == 4


def test_a_run_can_be_resumed_from_any_of_its_drafts(tiny):
    fixed = request(diffusion=replace(SMALL, stopping="fixed"), max_new_tokens=32)
    events = finish(engine := Engine(tiny.model, tiny.decode), engine.submit(fixed))[0]
    drafts = [event for event in events if isinstance(event, Draft) and event.canvas.reason is None]
    assert len(drafts) == 10, "two canvases of six steps, each with five drafts before its last"
    for draft in drafts:
        again = result(Engine(tiny.model, tiny.decode), replace(fixed, resume=draft))
        assert again.tokens == events[-1].result.tokens


def test_a_resumed_stream_commits_only_new_text(tiny):
    events = list(tiny.stream([*PROMPT], max_new_tokens=40, canvas_length=16, steps=4, stopping="fixed", seed=7))
    draft = next(event for event in events if isinstance(event, Draft) and event.canvas.index == 1)
    again = list(
        tiny.stream([*PROMPT], max_new_tokens=40, canvas_length=16, steps=4, stopping="fixed", resume=draft)
    )  # without a seed, that of the draft is used
    commits = [[event.text for event in run if isinstance(event, Commit)] for run in (events, again)]
    assert commits[1] == commits[0][1:]
    assert again[-1].result.text == events[-1].result.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": (2, 3)}, "prompt of the draft differs"),
        ({"max_new_tokens": 20}, "16 tokens"),
        ({"pins": {20: 5}}, "pins of the draft differ"),
        ({"diffusion": replace(SMALL, steps=2)}, "already taken 3 steps"),
        ({"diffusion": replace(SMALL, canvas_length=8)}, "canvas_length"),
    ],
)
def test_a_draft_of_a_different_request_is_rejected(engine, changes, words):
    drafts = [event for event in finish(engine, engine.submit(request()))[0] if isinstance(event, Draft)]
    draft = next(d for d in drafts if d.canvas.index == 1 and d.canvas.step == 3 and d.canvas.reason is None)
    with pytest.raises(gesso.InputError, match=words):
        engine.submit(request(resume=draft, **changes))
    with pytest.raises(gesso.InputError, match="last of its canvas"):
        engine.submit(request(resume=next(d for d in drafts if d.canvas.reason)))


# --- pins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pins_hold_in_every_draft_and_in_the_result(engine, sampler):
    pins = {0: 150, 3: 151, 15: 152, 16: 153, 39: 154}
    settings = replace(SMALL, sampler=sampler)
    events = finish(engine, engine.submit(request(pins=pins, diffusion=settings)))[0]
    for event in events:
        if isinstance(event, Draft):
            start = 16 * event.canvas.index
            here = {at - start: token for at, token in pins.items() if start <= at < start + len(event.tokens)}
            assert {at: event.tokens[at] for at in here} == here
            assert {at: event.canvas.tokens_C[at].item() for at in here} == here
    tokens = events[-1].result.tokens
    assert {at: tokens[at] for at in pins} == pins


def test_pinned_positions_have_zero_entropy_and_are_accepted(engine):
    """Pins use none of the entropy bound and are always accepted."""
    draft = finish(engine, engine.submit(request(max_new_tokens=16, pins={4: 160, 9: 161})))[0][0]
    entropy = draft.entropy
    assert (entropy[4], entropy[9]) == (0.0, 0.0)
    assert draft.canvas.accepted_C[[4, 9]].all()
    assert draft.canvas.history[-1].confidence_C[[4, 9]].tolist() == [1.0, 1.0]


def test_a_fully_pinned_canvas_takes_one_step(engine):
    answer = result(engine, request(max_new_tokens=16, pins=dict.fromkeys(range(16), 160)))
    assert answer.tokens == (160,) * 16
    assert answer.usage.denoising_steps == 1


def test_self_conditioning_uses_pinned_tokens(engine, tiny):
    events = finish(engine, engine.submit(request(max_new_tokens=16, pins={4: 160})))[0]
    soft_H = events[0].canvas.soft_CH[4]
    assert torch.allclose(soft_H, tiny.model.decoder.embed_tokens.weight[160] * tiny.model.embed_scale)


# --- cancelling and errors ----------------------------------------------------------------------------------------


def test_cancelling_ends_a_request_before_its_next_pass(engine, passes):
    kept, dropped = engine.submit(request(seed=1)), engine.submit(request(seed=2, prompt=(2, 300)))
    engine.step()
    engine.cancel(dropped)
    events = engine.step()
    assert [e.result.finish_reason for e in events if e.request_id == dropped] == ["cancelled"]
    assert {piece.row for piece in passes[-1]} == {0}
    engine.cancel(dropped)  # cancelling again, or an unknown id, does nothing
    engine.cancel(999)
    assert finish(engine, kept)[0][-1].result.finish_reason == "length"


def test_a_waiting_request_can_be_cancelled(tiny):
    engine = Engine(tiny.model, tiny.decode, max_batch=1)
    running, waiting = engine.submit(request()), engine.submit(request(seed=9))
    engine.step()
    engine.cancel(waiting)
    assert [e.result.finish_reason for e in engine.step() if e.request_id == waiting] == ["cancelled"]
    finish(engine, running)


def test_an_error_in_a_pass_does_not_corrupt_the_cache(tiny):
    """An interrupt leaves a ring half written. The tokens are read again, and the text is the same."""
    long = tuple(130 + i % 200 for i in range(300))
    expected = result(Engine(tiny.model, tiny.decode, prefill=100, piece=50), request(prompt=long)).tokens
    engine = Engine(tiny.model, tiny.decode, prefill=100, piece=50)
    mine = engine.submit(request(prompt=long))
    engine.step()

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = tiny.model.decoder.layers[-1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    hook.remove()
    assert finish(engine, mine)[0][-1].result.tokens == expected


def test_an_error_while_the_cache_is_saved_changes_no_text(tiny, tmp_path, monkeypatch):
    """Saving fails at the second of two rings. Half a saved state is never used, and no token is read twice."""
    layers = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    model = gesso.load(make(tmp_path / "two-rings", **layers)).model

    def new_engine():
        return Engine(model, tiny.decode, piece=32)

    wanted = [request(prompt=long_prompt(200, start), max_new_tokens=16) for start in (130, 140)]
    expected = [result(new_engine(), one).tokens for one in wanted]
    engine = new_engine()
    result(engine, wanted[0])  # saves a state
    ids = [engine.submit(one) for one in wanted]
    ring, failing = engine.cache.rings[1], {"now": True}
    save = ring.save

    def fail_once(row):
        if failing.pop("now", False):
            raise MemoryError
        save(row)

    monkeypatch.setattr(ring, "save", fail_once)  # no request makes one of two rings fail
    events = []
    while engine.busy:
        try:
            events += engine.step()
        except MemoryError:
            continue
    assert not failing, "saving never failed"
    assert [e.result.tokens for i in ids for e in events if isinstance(e, Done) and e.request_id == i] == expected
    longer = request(prompt=(*long_prompt(200), 130), max_new_tokens=16)
    assert result(engine, longer).tokens == result(new_engine(), longer).tokens


def test_a_request_that_does_not_fit_in_memory_fails_alone(tiny, alone, monkeypatch):
    engine = Engine(tiny.model, tiny.decode)
    fine = engine.submit(request())
    engine.step()
    grow = engine.cache.grow
    monkeypatch.setattr(  # no test can use up the memory of its machine
        engine.cache, "grow", lambda row, n: grow(row, n) if n < 3000 else (_ for _ in ()).throw(MemoryError("no room"))
    )
    large = engine.submit(request(prompt=long_prompt(3000)))
    events = []
    while engine.busy:
        events += engine.step()
    last = {event.request_id: event for event in events}
    assert isinstance(last[large].error, MemoryError)
    assert last[fine].result.tokens == alone.tokens


def test_events_survive_an_error_that_stops_the_step(tiny, monkeypatch):
    """A request ends in the pass in which Ctrl-C interrupts another: its last events come with the next step."""
    engine = Engine(tiny.model, tiny.decode)
    settings = replace(SMALL, steps=1)
    first = engine.submit(request(max_new_tokens=16, diffusion=settings))

    def interrupted(canvas_C, prediction, moment):
        raise KeyboardInterrupt

    second = engine.submit(request(seed=6, diffusion=replace(settings, sampler=interrupted)))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.cancel(second)
    assert [event.kind for event in engine.step() if event.request_id == first] == ["draft", "commit", "done"]


def test_a_failing_sampler_fails_only_its_request(tiny):
    def broken(canvas_C, prediction, moment):
        raise RuntimeError("my sampler is broken")

    whole = tiny.generate("abc", seed=1, max_new_tokens=8, steps=3, stopping="fixed").tokens
    other = tiny.stream("abc", seed=1, max_new_tokens=8, steps=3, stopping="fixed")
    next(other)
    with pytest.raises(RuntimeError, match="my sampler"):
        tiny.generate("abc", max_new_tokens=8, sampler=broken)
    assert list(other)[-1].result.tokens == whole
    assert not tiny.engine.busy


def test_streams_may_interleave_and_be_closed_early(tiny):
    one, two = (tiny.stream("abc", seed=s, max_new_tokens=16, steps=3, stopping="fixed") for s in (1, 2))
    kinds = [next(one).kind, next(two).kind, next(one).kind]
    assert kinds == ["draft", "draft", "draft"]
    one.close()
    texts = [event.text for event in two if event.kind == "done"]
    assert texts == [tiny.generate("abc", seed=2, max_new_tokens=16, steps=3, stopping="fixed").text]
    assert not tiny.engine.busy


def test_a_custom_sampler_may_request_logits(tiny):
    class Greedy(EntropyBound):
        needs = frozenset({"logits"})

        def __call__(self, canvas_C, prediction, moment):
            assert torch.equal(prediction.logits_CV.argmax(-1), prediction.argmax_C)
            return super().__call__(canvas_C, prediction, moment)

    plain = tiny.generate("abc", seed=3, max_new_tokens=16, steps=4, entropy_bound=1.0)
    own = tiny.generate("abc", seed=3, max_new_tokens=16, steps=4, sampler=Greedy(1.0))
    assert own.tokens == plain.tokens, "logits in memory and streamed logits give the same draws"


def test_at_most_one_request_has_its_logits_in_memory(tiny):
    """Logits are computed for samplers that need them and for constraints that were enforced in the previous step."""

    class Reading(EntropyBound):
        needs = frozenset({"logits"})

    def peak(*requests):
        engine = Engine(tiny.model, tiny.decode, search_times=at_once)
        with LiveBytes(tiny.model, counts=lambda tensor: tensor.shape[-1:] == (tiny.config.vocab_size,)) as live:
            finish(engine, *map(engine.submit, requests))
        return live.peak

    at_once = SearchTimes(least_at_once=PATIENCE, most_at_once=PATIENCE)  # a search that pauses keeps its logits
    guide, brief = tiny.guides.guide(regex="[ab]{12}"), replace(SMALL, steps=4)
    reading = replace(brief, sampler=Reading(2.0))
    wanted = [request(seed=seed, max_new_tokens=16, diffusion=brief, guide=guide) for seed in range(2)]
    wanted += [request(seed=seed, max_new_tokens=16, diffusion=reading) for seed in range(2)]
    alone = max(map(peak, wanted[::2]))
    assert 0 < peak(*wanted) <= alone <= LOGITS_COPIES * 4 * SMALL.canvas_length * tiny.config.vocab_size


def test_checking_a_long_prompt_allocates_no_object_per_token(engine):
    import tracemalloc

    wanted = request(prompt=(200,) * 4000)
    engine.check(wanted)
    tracemalloc.start()
    engine.check(wanted)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000


@pytest.mark.parametrize("wrong", [True, 2.0, "2", None])
def test_a_non_integer_token_is_named_by_its_position(engine, wrong):
    class Integer(int):
        pass

    engine.check(request(prompt=(2, Integer(200))))
    with pytest.raises(InputError, match=f"token 1 of the prompt must be an integer, got {wrong!r}"):
        engine.check(request(prompt=(2, wrong, Integer(200))))

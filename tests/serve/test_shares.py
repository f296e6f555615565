"""Fair shares: on a shared server, no client gets the whole batch or the whole queue."""

import itertools

import pytest

from gesso.serve.errors import ApiError
from gesso.serve.form import AnswerForm
from gesso.serve.jobs import AnswerJob, CompiledRequest, Mailbox
from gesso.serve.metrics import Metrics
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.serve.supervisor import Supervisor
from gesso.serve.wire import Ended, Prepared, PreparedPrompt, Ready

IDS = itertools.count()


def supervisor(*, shared=True, max_batch=4, device="cpu", queue=64):
    """Return a supervisor whose engine is ready. Its messages are discarded."""
    made = Supervisor(EngineSettings(), ServerLimits(queue=queue), Metrics(), "model", shared)
    made._handle(ready(device, max_batch))
    return made


def ready(device="cpu", max_batch=4):
    return Ready(
        device=device,
        dtype="float32",
        quantize=None,
        max_batch=max_batch,
        max_length=100,
        prefill=256,
        why="as requested",
    )


def jobs(client, count, planned=False):
    prompt = PreparedPrompt(prompt_tokens=1, max_new_tokens=1, seed=0, planned=planned, work=b"")
    form = AnswerForm(served="model", model="model", adapter=None)
    prepared = Prepared(form=form, prompts=[prompt], choices=1, readiness=ready().readiness)
    request = CompiledRequest(prepared=prepared)
    return [AnswerJob(id=next(IDS), client=client, request=request, mailbox=Mailbox()) for _ in range(count)]


def running(supervisor):
    return [job.client for job in supervisor.running.values()]


def test_a_client_leaves_a_slot_for_others():
    engine = supervisor()
    engine.submit(jobs("greedy", 10))
    assert running(engine) == 3 * ["greedy"]
    engine.submit(jobs("modest", 1))
    assert running(engine) == [*3 * ["greedy"], "modest"]


def test_the_slot_stays_free_when_an_answer_ends():
    engine = supervisor()
    engine.submit(jobs("greedy", 10))
    engine._handle(Ended(id=next(iter(engine.running)), text="", tokens=[], finish_reason="stop", seed=0, usage={}))
    assert running(engine) == 3 * ["greedy"] and len(engine.waiting) == 6


def test_a_single_client_gets_the_whole_batch():
    engine = supervisor(shared=False)
    engine.submit(jobs("only", 10))
    assert len(running(engine)) == 5, "the batch, and one job to fill the next gap"


def test_infill_counts_as_the_slots_it_may_take():
    engine = supervisor(max_batch=32, device="cuda:0")
    engine.submit(jobs("greedy", 10, planned=True))
    assert running(engine) == 3 * ["greedy"]


def test_a_batch_of_one_serves_all_clients_in_turn():
    engine = supervisor(max_batch=1)
    engine.submit(jobs("greedy", 4))
    engine.submit(jobs("modest", 1))
    assert len(running(engine)) == 2


def test_a_client_may_fill_a_fourth_of_the_queue():
    engine = supervisor(queue=128)
    engine.submit(jobs("greedy", 16))
    engine.submit(jobs("greedy", 16))
    with pytest.raises(ApiError, match="of your requests are already waiting"):
        engine.submit(jobs("greedy", 16))
    engine.submit(jobs("modest", 16))


@pytest.mark.parametrize(
    ("keys", "hosts", "shared"),
    [((), ("localhost",), False), ((), None, True), (("a",), None, False), (("a", "b"), None, True)],
)
def test_clients_are_distinguished_by_keys_or_addresses(keys, hosts, shared):
    assert ServerSettings(keys=keys, hosts=hosts).shared == shared

"""Fair shares: on a shared server, no client gets the whole batch or the whole queue."""

import itertools

import pytest

from gesso.serve.errors import ApiError
from gesso.serve.jobs import Job, Mailbox
from gesso.serve.metrics import Metrics
from gesso.serve.prepare.request import PreparedJob
from gesso.serve.protocol import Ended, Ready
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.serve.supervisor import Supervisor

IDS = itertools.count()


def supervisor(*, shared=True, max_batch=4, device="cpu", queue=64):
    """Return a supervisor whose engine is ready. Its messages are discarded."""
    made = Supervisor(EngineSettings(), ServerLimits(queue=queue), Metrics(), "model", shared)
    made._handle(Ready(device, "float32", None, max_batch, 100, 256, "as requested"))
    return made


def jobs(client, count, planned=False):
    prepared = PreparedJob(prompt=0, prompt_tokens=1, max_new_tokens=1, payload=b"", planned=planned)
    return [Job(next(IDS), client, prepared, Mailbox()) for _ in range(count)]


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
    engine._handle(Ended(next(iter(engine.running)), "", [], "stop", 0, {}))
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

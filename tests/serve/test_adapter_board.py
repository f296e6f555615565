"""The board of adapters and its followers, with engines that answer at once and without Ray."""

import asyncio
import pickle
from dataclasses import dataclass, field

import pytest

from gesso.serve.adapter_board import AdapterBoard, AdapterDirectories, ReplicaReport
from gesso.serve.adapter_follower import AdapterFollower
from gesso.serve.adapters import ServedAdapters
from gesso.serve.errors import ApiError
from gesso.serve.metrics import Metrics
from gesso.serve.wire import AdapterFailed, AdapterLoaded, LoadAdapter


class Board(AdapterBoard):
    """A board that waits for a short time."""

    beat_seconds, silent_seconds = 0.05, 0.5


class Follower(AdapterFollower):
    beat_seconds = 0.05


class Replica:
    """A replica with what a follower needs of a supervisor. Its engine answers as soon as it is asked, or fails."""

    def __init__(self, board, root, given=(), fails=False):
        self.fails = fails
        self.adapters = ServedAdapters({name: str(root / name) for name in given}, 4, Metrics(), "tiny", self.send)
        self.adapters.engine_starts()
        self.adapters.engine_ready()
        self.follower = Follower(board, self, str(root))

    def send(self, message):
        if isinstance(message, LoadAdapter):
            answer = AdapterFailed(message.name, "why", True) if self.fails else AdapterLoaded(message.name)
            asyncio.get_running_loop().call_soon(self.adapters.take, answer)

    def unload_adapter(self, name):
        self.adapters.unload(name)
        self.adapters.note_requests([])

    async def join(self):
        self.follower.start()
        while not self.follower.has_caught_up:
            await asyncio.sleep(0.01)

    @property
    def names(self):
        return sorted(self.adapters.served)


@dataclass
class Unreachable:
    """A board that cannot be reached until `works` is set."""

    board: AdapterBoard
    calls: list[str] = field(default_factory=list)
    works: bool = False

    def __getattr__(self, name):
        async def call(*arguments):
            self.calls.append(name)
            if not self.works:
                raise ConnectionError("no board")
            return await getattr(self.board, name)(*arguments)

        return call


@pytest.fixture
def root(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            (tmp_path / name / file).touch()
    return tmp_path.resolve()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, 60))


async def error_of(call):
    with pytest.raises(ApiError) as error:
        await call
    return error.value


def test_an_adapter_reaches_all_replicas_and_those_that_join_later(root):
    async def scenario():
        board = Board({"a": str(root / "a")})
        one, two = (Replica(board, root, given="a") for _ in range(2))
        await one.join()
        await two.join()
        await one.follower.load("b", str(root / "b"))
        assert one.names == two.names == ["a", "b"]
        await two.follower.unload("a")
        assert one.names == two.names == ["b"]
        late = Replica(board, root, given="a")
        await late.join()
        assert late.names == ["b"]
        assert (await error_of(late.follower.load("b", str(root / "c")))).code == "adapter_exists"
        assert (await error_of(late.follower.unload("a"))).code == "adapter_not_found"

    run(scenario())


def test_an_adapter_that_one_replica_cannot_load_is_served_by_none(root):
    async def scenario():
        board = Board({})
        good, bad = Replica(board, root), Replica(board, root, fails=True)
        await good.join()
        await bad.join()
        error = await error_of(good.follower.load("b", str(root / "b")))
        assert (error.status, error.message) == (400, "why")
        assert good.names == bad.names == [] and not board.table.adapters
        assert (await error_of(good.follower.load("b", str(root.parent)))).code == "adapter_not_found"

    run(scenario())


def test_a_change_does_not_wait_for_a_replica_that_died(root):
    async def scenario():
        board = Board({})
        one, dead = Replica(board, root), Replica(board, root)
        await one.join()
        await dead.join()
        await dead.follower.stop()
        await one.follower.load("b", str(root / "b"))
        assert one.names == ["b"] and dead.names == [] and len(board.reports) == 1
        await dead.join()  # it was only slow
        while dead.names != ["b"]:
            await asyncio.sleep(0.01)

    run(scenario())


def test_a_load_waits_for_the_engine_of_each_replica(root):
    async def scenario():
        board = Board({})
        one, restarting = Replica(board, root), Replica(board, root)
        await one.join()
        await restarting.join()
        restarting.adapters.engine_died()
        load = asyncio.create_task(one.follower.load("b", str(root / "b")))
        await asyncio.sleep(2 * Board.silent_seconds)
        assert not load.done(), "it applies the table, so it counts as alive"
        restarting.adapters.engine_ready()
        await load
        assert one.names == restarting.names == ["b"]

    run(scenario())


def test_a_new_board_takes_over_the_table_of_the_replicas(root):
    async def scenario():
        board = Board({})
        replica = Replica(board, root)
        await replica.join()
        await replica.follower.load("b", str(root / "b"))
        replica.follower.board = Board({})
        while replica.follower.board.table.version < 2:
            await asyncio.sleep(0.01)
        assert replica.names == ["b"] and list(replica.follower.board.table.adapters) == ["b"]

    run(scenario())


def test_without_a_board_replicas_answer_and_reject_changes(root):
    async def scenario():
        board = Unreachable(Board({}))
        replica = Replica(board, root, given="a")
        replica.follower.start()
        while board.calls.count("follow") < 3:
            await asyncio.sleep(0.01)
        assert replica.names == ["a"] and not replica.follower.has_caught_up
        assert (await error_of(replica.follower.load("b", "b"))).status == 503
        board.works = True
        while not replica.follower.has_caught_up:
            await asyncio.sleep(0.01)
        assert replica.names == []
        await replica.follower.load("b", str(root / "b"))

    run(scenario())


def test_reports_and_errors_travel_between_processes():
    error = ApiError(404, "gone", param="lora_name", code="adapter_not_found", retry_after=3)
    report = pickle.loads(pickle.dumps(ReplicaReport("r", AdapterDirectories(2, {"a": "/a"}), error)))
    assert report.table == AdapterDirectories(2, {"a": "/a"}) and vars(report.failure) == vars(error)

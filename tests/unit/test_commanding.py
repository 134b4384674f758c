"""What runs around the dispatcher: partitions that move while statuses are read, and answers that are read again."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from bridge.commands.partition import Earlier
from bridge.commands.ports import Committed, Partition
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import RefusedError, TopicMissingError, UnreachableError
from bridge.routing.router import Router
from bridge.waiting import end_tasks
from config.settings import CommandSettings, MqttSettings, RouteSettings, SessionGroupSettings, Settings
from gateway.base.group_plan import group_plans
from gateway.components import command_uplink, commanding
from gateway.components.commanding import CommandRunner
from gateway.components.mqtt_side import MqttSide
from tests.unit.manual_time import manual_time
from tests.unit.test_command_problems import give
from tests.unit.test_command_problems import make as make_command_runner
from tests.unit.test_commands_dispatcher import answer, command
from tests.unit.test_commands_simulation import BEGIN_MS, Member, World

PARTITION = ("commands", 0)


class Tail:
    """Reads statuses; during the first reading the partition goes, and comes back with a later commit."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self.starts: list[Mapping[int, int]] = []

    async def read(self, starts: Mapping[int, int], take: Callable[[LoggedRecord], object]) -> tuple[int, set[int]]:
        self.starts.append(starts)
        if len(self.starts) == 1:
            self._runner._new.pop(PARTITION)
            self._runner.assigned({PARTITION: Committed(9, "1|5|")})
        return 1, set()


class Sink:
    held = False

    def holds(self, _partition: Partition) -> bool:
        return self.held

    def drop(self, partition: Partition) -> None: ...


def make_runner() -> CommandRunner:
    runner = CommandRunner.__new__(CommandRunner)
    runner._new, runner._assignments = {}, 0
    runner.dispatcher = Member(World(1)).dispatcher
    runner._sink = Sink()  # type: ignore[assignment]
    runner.view = SimpleNamespace(errors={})  # type: ignore[assignment]
    return runner


async def test_a_partition_that_went_and_came_back_is_owned_with_its_later_commit() -> None:
    runner = make_runner()
    tail = runner._tail = Tail(runner)  # type: ignore[assignment]
    runner.assigned({PARTITION: Committed(3, "1|2|T4")})
    await runner._assign_new()
    assert runner._new.keys() == {PARTITION}, "what was read is older than the commit"
    assert not runner.dispatcher.partitions
    await runner._assign_new()
    assert tail.starts == [{0: 2}, {0: 5}]
    assert runner.dispatcher._partitions[PARTITION].map.low == 9
    assert not runner._new


async def test_what_this_worker_wrote_before_an_outage_is_in_kafka_before_statuses_are_read() -> None:
    """Else a command whose last status comes later is sent again, and ends twice."""
    runner = make_runner()
    tail = runner._tail = Tail(runner)  # type: ignore[assignment]
    tail.starts.append({})  # nothing moves
    runner.assigned({PARTITION: None})
    runner._sink.held = True  # type: ignore[attr-defined]
    await runner._assign_new()
    assert (len(tail.starts), runner._new.keys()) == (1, {PARTITION})
    runner._sink.held = False  # type: ignore[attr-defined]
    await runner._assign_new()
    assert (len(tail.starts), runner.dispatcher.partitions) == (2, {PARTITION})


async def test_an_answer_during_a_partitions_last_commit_is_the_next_owners() -> None:
    """A status of ours might come after the next owner has read them: the command would end twice."""

    class Group:
        async def commit(self, offsets: Mapping[Partition, Committed]) -> Collection[Partition]:
            self.offsets = offsets
            answer(member, 200)
            return ()

    runner, member, group = make_runner(), Member(World(1)), Group()
    runner.dispatcher, runner._group = member.dispatcher, group  # type: ignore[assignment]
    member.assign(PARTITION)
    runner.dispatcher.take([command(BEGIN_MS)])
    member.sending.popleft()[1](0)
    member.kafka_takes()
    await runner.revoked([PARTITION])
    assert group.offsets == {PARTITION: Committed(0, "1|1|A1")}
    assert not member.waiting


@pytest.mark.parametrize(("found", "told"), [
    ((1, set()), "statuses has only 1 partitions"), ((2, {1, 2}), "no leader for statuses/1. Others go on"),
])  # fmt: skip
async def test_no_command_is_sent_whose_status_has_no_partition_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, found: tuple[int, set[int]], told: str
) -> None:
    """The topic of commands has grown, or a broker is away."""
    monkeypatch.setattr(commanding, "_GROWN_S", 0)
    runner = make_command_runner(lambda: None)

    async def read(_starts: Mapping[int, int], _take: object) -> tuple[int, set[int]]:
        return found

    runner._tail.read = read  # type: ignore[method-assign, assignment]
    runner.assigned({PARTITION: None, ("commands", 1): None})
    await runner._assign_new()
    assert runner.dispatcher.partitions == {PARTITION}
    (problem,) = [one for one in runner.view.problems() if one.id == "commands-unreadable"]
    assert told in problem.text
    runner.lost([("commands", 1)])
    assert not list(runner.view.problems()), "it is another worker's"
    runner.assigned({("commands", 1): None})
    found = (2, set())
    await runner._assign_new()
    assert runner.dispatcher.partitions == {PARTITION, ("commands", 1)}
    assert not list(runner.view.problems())


def consumer(
    monkeypatch: pytest.MonkeyPatch, read_group: Callable[..., Awaitable[Any]], read_statuses: Callable[..., Any]
) -> CommandRunner:
    """A runner whose group assigns PARTITION at once; ``read_group`` gets the group."""

    class Group:
        paused: Collection[Partition] = ()

        async def start(self) -> None:
            runner.assigned({PARTITION: None})

        async def stop(self) -> None: ...

        def pause(self, partitions: Collection[Partition]) -> None:
            self.paused = set(partitions)

        read = read_group

    runner = runner_with(monkeypatch, Group)
    runner._tail.read = read_statuses  # type: ignore[method-assign]
    return runner


def runner_with(monkeypatch: pytest.MonkeyPatch, group: type) -> CommandRunner:
    """A runner of which ``_consume`` may be called."""

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(commanding, "GroupMember", lambda *_args, **_options: group())
    monkeypatch.setattr(commanding, "prepare_topics", nothing)
    return make_command_runner(lambda: None)


async def test_the_group_is_read_while_statuses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that does not read for a minute is put out of its group, and would begin again, for ever."""
    go_on, reads = asyncio.Event(), 0

    async def read_group(group: Any) -> list[LoggedRecord]:
        nonlocal reads
        await asyncio.sleep(0)
        reads += 1
        if reads == 5:
            assert group.paused == {PARTITION}
            go_on.set()
        runner._is_stopping = PARTITION in runner.dispatcher.partitions
        return []

    async def read_statuses(*_: object) -> tuple[int, set[int]]:
        await go_on.wait()
        return 1, set()

    runner = consumer(monkeypatch, read_group, read_statuses)
    async with asyncio.timeout(60):
        await runner._consume()
    assert reads > 5


@manual_time
async def test_statuses_that_cannot_be_read_yet_keep_new_partitions_waiting_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker gave up all that it had, while a rebalance met a broker of the status topic that was away."""
    told, tries = set(), 0

    async def read_group(_group: object) -> list[LoggedRecord]:
        await asyncio.sleep(0.1)
        told.update(problem.text for problem in runner.view.problems())
        runner._is_stopping = PARTITION in runner.dispatcher.partitions
        return []

    async def read_statuses(*_: object) -> tuple[int, set[int]]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise UnreachableError("Kafka is away.")
        return 1, set()

    runner = consumer(monkeypatch, read_group, read_statuses)
    await runner._consume()
    assert told == {"Commands 'switches': new partitions cannot be read. Kafka is away."}
    assert not list(runner.view.problems())


@manual_time
async def test_no_problem_stays_of_new_partitions_that_went_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_group(_group: object) -> list[LoggedRecord]:
        await asyncio.sleep(5)
        runner._is_stopping = not runner._new
        return []

    async def read_statuses(*_: object) -> tuple[int, set[int]]:
        runner.lost([PARTITION])
        raise UnreachableError("Kafka is away.")

    runner = consumer(monkeypatch, read_group, read_statuses)
    await runner._consume()
    assert not list(runner.view.problems())


@pytest.mark.parametrize("error", [UnreachableError("Kafka is away"), ValueError("a defect")])
@manual_time
async def test_what_fails_beside_the_group_is_logged(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def read_group(_group: object) -> None:
        await asyncio.sleep(0.1)
        raise UnreachableError("the group is away")

    async def read_statuses(*_: object) -> None:
        raise error

    with capture_logs() as lines, pytest.raises(UnreachableError, match="the group is away"):
        await consumer(monkeypatch, read_group, read_statuses)._consume()
    (line,) = [line for line in lines if "part" in line]
    assert (line["part"], str(line.get("exc_info") or line["error"])) == ("earlier statuses", str(error))


def test_of_earlier_statuses_only_those_that_may_be_needed_are_kept() -> None:
    """A status topic may be that of several topics and entries."""
    found = Earlier({PARTITION: Committed(5, ""), ("commands", 1): None})
    for place in ("commands/0:4", "commands/0:5", "commands/1:0", "others/0:7", "commands/2:7"):
        value = {"command": place, "status": "sent", "terminal": False, "attempt": 1, "at_ms": 1}
        found.take(LoggedRecord(Place("status", 0, 0), 0, b"", json.dumps(value).encode(), []))
    for other in (b"[" * 100_000, json.dumps({**value, "attempt": float("inf")}).encode()):
        found.take(LoggedRecord(Place("status", 0, 0), 0, b"", other, []))
    assert [offset for offset, _ in found.of(PARTITION)] == [5]
    assert sum(map(len, found._found.values())) == 2


async def test_an_earlier_moment_is_not_replaced_by_a_later_one() -> None:
    uplink = make_command_runner(lambda: None)._uplink
    for moment_ms in (None, 70, 50, None, 60):
        uplink.rewind(moment_ms)
    assert uplink._rewind_ms == 50


@manual_time
async def test_partitions_that_stay_without_a_leader_are_told() -> None:
    runner, leaderless = make_command_runner(lambda: None), [PARTITION]
    runner._group = group = SimpleNamespace(leaderless=lambda: leaderless, trouble="")  # type: ignore[assignment]
    looking = asyncio.create_task(runner._looking_for_leaders())
    await asyncio.sleep(6)
    assert not list(runner.view.problems()), "a change of leaders is short"
    await asyncio.sleep(5)
    (problem,) = runner.view.problems()
    assert "some partitions cannot be read. Kafka has no leader for commands/0." in problem.text
    leaderless, group.trouble = [], "Kafka did not answer about commands: Invalid CRC."
    await asyncio.sleep(5)
    (problem,) = runner.view.problems()
    assert "commands cannot be read. Kafka did not answer about commands: Invalid CRC." in problem.text
    group.trouble = ""
    await asyncio.sleep(5)
    assert not list(runner.view.problems())
    await end_tasks(looking)


@manual_time
async def test_a_feed_that_can_read_more_is_followed_by_one_from_the_oldest_command_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feeds: list[Any] = []
    is_back = False

    class Feed:
        positions: Mapping[Partition, int] = {}

        def __init__(self, *_: object) -> None:
            self.leaderless = [("answers", 1)] * (not feeds)
            self.rewound: list[int] = []
            feeds.append(self)

        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        async def rewind(self, moment_ms: int) -> None:
            self.rewound.append(moment_ms)

        async def read(self) -> list[LoggedRecord]:
            await asyncio.sleep(10)
            return []

        def can_read_more(self) -> bool:
            return bool(self.leaderless) and is_back

    monkeypatch.setattr(command_uplink, "TopicFeed", Feed)
    runner = make_command_runner(lambda: None)
    give(runner, 1)
    listening = asyncio.create_task(runner._again("answers", runner._uplink.read))
    await asyncio.sleep(20)
    (problem,) = runner.view.problems()
    assert "answers cannot be read. Kafka has no leader for answers/1." in problem.text
    is_back = True
    await asyncio.sleep(30)
    assert not list(runner.view.problems())
    assert [len(feed.rewound) for feed in feeds] == [0, 1]
    await end_tasks(listening)
    await runner.stop(0, retire=False)


@manual_time
async def test_a_deleted_status_topic_is_made_anew_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    count: int | None = None
    producer: Any = SimpleNamespace(partition_count=lambda _topic: count)
    runner, asked = make_command_runner(lambda: producer), asyncio.Event()
    runner._sink.waiting = 1

    async def prepare(*_: object) -> None:
        asked.set()
        raise TopicMissingError("Kafka has no topic statuses.")

    monkeypatch.setattr(commanding, "prepare_topics", prepare)
    keeping = asyncio.create_task(runner._again("status topic", runner._keep_topic))
    await asked.wait()
    await asyncio.sleep(0.1)
    (problem,) = runner.view.problems()
    assert "status topic cannot be written. Kafka has no topic statuses." in problem.text
    count = 1
    await asyncio.sleep(30)
    assert not list(runner.view.problems())
    await end_tasks(keeping)


@pytest.mark.parametrize(("distribution", "others", "own", "is_open"), [
    ("shared", (True, True), (False,), False), ("shared", (False, False), (True,), True),
    ("shared", (False, False), (True, False), True), ("partitioned", (True, True), (True, False), False),
])  # fmt: skip
async def test_no_command_leaves_before_the_sessions_of_the_answers_are_subscribed(
    distribution: str, others: tuple[bool, ...], own: tuple[bool, ...], is_open: bool
) -> None:
    """Those of other groups bring no answer: each command would time out."""
    commands = CommandSettings(
        name="switches", topics=("commands",), status_topic="statuses", answers="answers", secret=SecretStr("s" * 32)
    )  # fmt: skip
    routes = (
        RouteSettings(name="telemetry", filters=("devices/+/telemetry",), topic="telemetry"),
        RouteSettings(name="answers", filters=("devices/+/res",), topic="answers", group="urgent"),
    )
    mqtt = MqttSettings(distribution=distribution, groups=(SessionGroupSettings(name="urgent"),))  # type: ignore[arg-type]
    settings = Settings(mqtt=mqtt, routes=routes, commands=(commands,))
    side = MqttSide.__new__(MqttSide)
    side._settings, side.sessions = settings, []
    side._shared = SimpleNamespace(router=Router(routes, instance="gateway"))  # type: ignore[assignment]
    side.groups = []
    for plan, states in zip(group_plans(settings), (others, own), strict=True):
        side.sessions += (sessions := [SimpleNamespace(subscribed=state) for state in states])  # type: ignore[arg-type]
        side.groups.append(SimpleNamespace(plan=plan, sessions=sessions))  # type: ignore[arg-type]
    runner = make_command_runner(lambda: None, commands, settings, side)
    runner._uplink._feed, runner._link.connected_ns = SimpleNamespace(), 1  # type: ignore[assignment]
    runner.look()
    assert runner.dispatcher.is_open is is_open
    assert runner._timer is not None
    runner._timer.cancel()


async def test_what_is_revoked_after_an_error_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner sent commands again that had been sent: their statuses could not be written any more."""
    committed: list[Mapping[Partition, Committed]] = []

    class Group:
        is_alive = True

        async def start(self) -> None:
            runner.dispatcher.assign(PARTITION, Committed(3, ""), ())

        def pause(self, _partitions: object) -> None: ...

        async def read(self) -> None:
            raise RefusedError("Kafka does not let us read.")

        async def stop(self) -> None:
            assert runner._is_owner(), "statuses are written"
            await runner.revoked([PARTITION])

        async def commit(self, offsets: Mapping[Partition, Committed]) -> Collection[Partition]:
            committed.append(offsets)
            return ()

    runner = runner_with(monkeypatch, Group)
    with pytest.raises(RefusedError):
        await runner._consume()
    assert committed == [{PARTITION: Committed(3, "1|0|")}]
    assert runner._group is None

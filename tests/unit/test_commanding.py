"""What runs around the dispatcher: partitions that move while statuses are read, and answers that are read again."""

from collections.abc import Mapping, Sequence

from bridge.commands.ports import Committed, Partition
from bridge.dead_letters.reading import LoggedRecord
from gateway.components.commanding import CommandRunner
from tests.unit.test_commands_simulation import Member, World

PARTITION = ("commands", 0)


class Tail:
    """Reads statuses; during the first reading the partition goes, and comes back with a later commit."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self.starts: list[Mapping[int, int]] = []

    async def read(self, starts: Mapping[int, int]) -> Mapping[int, tuple[Sequence[LoggedRecord], int]]:
        self.starts.append(starts)
        if len(self.starts) == 1:
            self._runner._new.pop(PARTITION)
            self._runner.assigned({PARTITION: Committed(9, "1|5|")})
        return {number: ([], 0) for number in starts}


class Sink:
    held = False

    def holds(self, _partition: Partition) -> bool:
        return self.held


def make_runner() -> CommandRunner:
    runner = CommandRunner.__new__(CommandRunner)
    runner._new, runner._assignments, runner._rewind_ms = {}, 0, None
    runner.dispatcher = Member(World(1)).dispatcher
    runner._sink = Sink()  # type: ignore[assignment]
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


def test_an_earlier_moment_is_not_replaced_by_a_later_one() -> None:
    runner = make_runner()
    for moment_ms in (None, 70, 50, None, 60):
        runner._rewind_to(moment_ms)
    assert runner._rewind_ms == 50

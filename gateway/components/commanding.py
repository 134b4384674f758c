"""Commands in one worker: for each ``[[commands]]`` a member of its consumer group, a dispatcher, and the writers and
readers around it; and one MQTT connection that all commands leave by.

Loaded only where the settings have commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from bridge.backoff import Backoff
from bridge.commands.dispatcher import Dispatcher
from bridge.commands.partition import Earlier
from bridge.commands.plan import CommandPlan
from bridge.commands.sink import StatusWriter
from bridge.errors import BridgeError, RefusedError, UnreachableError
from bridge.kafka.feed import StatusTail
from bridge.kafka.group import GroupMember
from bridge.waiting import end_tasks
from config.errors import GatewayError, forget_frames
from gateway.base.problem import Problem
from gateway.components.command_letters import LETTERS_PARTITION, CommandDeadLetters
from gateway.components.command_share import LinkShare
from gateway.components.command_topics import prepare_topics
from gateway.components.command_uplink import Uplink
from gateway.components.command_view import CommandView
from gateway.mqtt.publish_link import PublishLink

if TYPE_CHECKING:
    from bridge.commands.ports import Committed, Partition
    from bridge.ports import Producer
    from bridge.wire import DeadLetterReason
    from config.settings import Settings
    from config.tables.commands import CommandSettings
    from gateway.components.command_letters import NoteDeadLetter
    from gateway.components.worker_view import WorkerView

log = structlog.get_logger("commands")

COMMIT_S: Final = 0.2
_REVOKE_S: Final = 4.5  # below the 5 s that the group waits for
_LOOK_S: Final = 0.1  # how often it is looked whether what is revoked has settled
_AT_ONCE_S: Final = 0.001
_AGAIN_S: Final = 1.0  # before the statuses of new partitions are asked for again
_GROWN_S: Final = 5.0  # between two looks whether the status topic has grown as well, or is gone


class WallClock:
    """``bridge.commands.ports.Clock``."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def group_name(settings: Settings, commands: CommandSettings) -> str:
    return commands.group or f"{settings.instance}-commands-{commands.name}"


def link_client_id(settings: Settings) -> str:
    """The MQTT client id of a worker's connection for commands."""
    return f"{settings.instance}-{settings.worker}-commands"


class Commanding:
    """A component of the service, started after the sessions. Belongs to the event loop's thread.

    A failure of its Kafka or MQTT side is a problem and is tried again; it ends nothing else.
    """

    name: Final = "commands"

    def __init__(
        self,
        worker: WorkerView,
        producer: Callable[[], Producer | None],
        renew: Callable[[str], None],
        *,
        is_retired: Callable[[], bool],
        noted: NoteDeadLetter,
    ) -> None:
        """``producer`` gives the started producer, or None; ``renew`` replaces it, for a reason. ``noted`` gets name,
        reason, error and Kafka topic of each dead letter."""
        settings = worker.settings
        self._is_retired = is_retired
        self.link = PublishLink(settings.mqtt, link_client_id(settings), worker.mqtt.login)
        self.runners = [
            CommandRunner(worker, commands, self.link, producer, renew, noted) for commands in settings.commands
        ]
        self.link.watch(self._changed)
        worker.metrics.commands_connected.watch(lambda: int(self.link.connected_ns is not None))

    def _changed(self) -> None:
        for runner in self.runners:
            runner.look()

    async def start(self) -> None:
        await self.link.start()
        for runner in self.runners:
            runner.start()

    async def stop(self, deadline_ns: int) -> None:
        """Give the partitions up: wait for the broker's answers, write the statuses, commit.

        They wait 15 s for this worker to come back. Retired, it leaves the group, and others get them at once."""
        retire = self._is_retired()
        await asyncio.gather(*(runner.stop(deadline_ns, retire=retire) for runner in self.runners))
        await self.link.stop(time.monotonic_ns())

    def problems(self) -> Iterable[Problem]:
        """The connection's problem, then those of each ``[[commands]]``."""
        if self.link.problem is not None and self.link.connected_ns is None:
            yield Problem(
                "commands-disconnected",
                "critical",
                f"No command leaves: {self.link.client_id} is not connected. {self.link.problem}",
                "Check the MQTT broker, and that this client id may connect.",
            )
        for runner in self.runners:
            yield from runner.view.problems()

    def openings(self) -> list[tuple[str, int, str]]:
        """Of each ``[[commands]]``: its name, the number of partitions whose commands are sent now, and what keeps it
        from sending."""
        return [
            (
                runner.name,
                len(runner.dispatcher.partitions) if runner.dispatcher.is_open else 0,
                " ".join(runner.view.errors.values()) or self.link.problem or "",
            )
            for runner in self.runners
        ]

    def facts(self) -> dict[str, object]:
        """For /status. Does not block."""
        return {
            "client_id": self.link.client_id,
            "connected": self.link.connected_ns is not None,
            "problem": self.link.problem,
            "routes": {runner.name: runner.view.facts() for runner in self.runners},
        }


class CommandRunner:
    """One ``[[commands]]`` in one worker. It is the listener of its group."""

    def __init__(
        self,
        worker: WorkerView,
        commands: CommandSettings,
        link: PublishLink,
        producer: Callable[[], Producer | None],
        renew: Callable[[str], None],
        noted: NoteDeadLetter,
    ) -> None:
        settings = worker.settings
        self.name = commands.name
        self._worker = worker
        self._commands = commands
        self._link = link
        self._settle_ns = round(commands.settle.total_seconds() * 1e9)
        login = worker.kafka.login
        client_id = link.client_id
        self._sink = StatusWriter(
            commands.status_topic,
            producer=lambda: producer() if self._is_owner() else None,
            renew=renew,
            broken=partial(self._broken, "statuses"),
        )
        self._letters = CommandDeadLetters(
            settings,
            commands.name,
            producer=producer,
            renew=renew,
            noted=noted,
            written=self._letter_written,
            broken=partial(self._broken, "dead letters"),
        )
        share = LinkShare(link, len(settings.commands), self._is_owner)
        self.dispatcher = Dispatcher(
            CommandPlan.from_settings(commands), share, self._sink, self._letters, WallClock(),
            lambda status, taken_ns: self.view.finished(status, taken_ns),  # noqa: PLW0108 - the view comes after it
        )  # fmt: skip
        self.view = CommandView(commands, client_id, self.dispatcher, worker.metrics)
        self._settings = settings
        self._producer = producer
        self._login = login
        self._tail = StatusTail(settings.kafka, client_id, commands.status_topic, login)
        self._uplink = Uplink(
            settings, commands, client_id, login, self.dispatcher, partial(self._note_leaderless, "answers"), self.look
        )
        self._group: GroupMember | None = None
        self._new: dict[Partition, Committed | None] = {}  # assigned, without their earlier statuses yet
        self._assignments = 0
        self._leaderless: list[Partition] = []  # of the commands, at the last look
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._is_stopping = False

    # --- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to join the group and to read. Does not block."""
        self._tasks = [
            asyncio.create_task(self._again("group", self._consume), name=f"commands {self.name}"),
            asyncio.create_task(self._committing(), name=f"commits {self.name}"),
            asyncio.create_task(self._looking_for_leaders(), name=f"leaders {self.name}"),
            asyncio.create_task(self._again("status topic", self._keep_topic), name=f"status topic {self.name}"),
        ]
        if self._uplink.is_wanted:
            reading = self._again("answers", self._uplink.read)
            self._tasks.append(asyncio.create_task(reading, name=f"answers {self.name}"))

    async def stop(self, deadline_ns: int, *, retire: bool) -> None:
        """Leave the group, for good with ``retire``. It calls ``revoked``, which finishes what can be finished."""
        self._is_stopping = True
        if self._group is not None:
            left_s = max(0.1, (deadline_ns - time.monotonic_ns()) / 1e9)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await (self._group.retire() if retire else self._group.stop())
        await end_tasks(*self._tasks)
        if self._timer is not None:
            self._timer.cancel()
        self.dispatcher.forget(list(self.dispatcher.partitions))
        await self._letters.close()
        await self._sink.close()

    async def _again(self, part: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await ``work()`` until the stop; after a failure again, with growing pauses."""
        backoff = Backoff(500_000_000, 10_000_000_000)
        while not self._is_stopping:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - a defect of one part ends no other
                self.view.errors[part] = str(error) if isinstance(error, GatewayError) else repr(error)
                self._log_failure(part, error)
            self._timer_ns = 0  # the next ``look`` sets the timer anew
            await asyncio.sleep(backoff.next_ns(time.monotonic_ns()) / 1e9)

    def _log_failure(self, part: str, error: BaseException) -> None:
        """For what is tried again."""
        if isinstance(error, GatewayError):
            log.warning("commands_failed", commands=self.name, part=part, error=str(error), repeat_key=part)
            forget_frames(error)
        else:
            log.error("commands_defect", commands=self.name, part=part, exc_info=error)

    def _note_leaderless(self, part: str, partitions: Collection[Partition]) -> None:
        """Have the partitions that wait for a leader be a problem of this part, or none if there are none."""
        self.view.errors.pop(part, None)
        if partitions:
            names = ", ".join(f"{topic}/{number}" for topic, number in partitions)
            error = UnreachableError(f"Kafka has no leader for {names}. Others go on, and these once they have one.")
            self.view.errors[part] = str(error)
            self._log_failure(part, error)

    def _broken(self, part: str, error: BaseException) -> None:
        self.view.errors[part] = f"A defect: {error!r}. What was being written waits until the next start."
        log.error("commands_defect", commands=self.name, part=part, exc_info=error)

    def _letter_written(self, offset: int, size: int, reason: DeadLetterReason | None) -> None:
        worker, topic = self._worker, self._settings.dead_letter.topic
        worker.ledger_log.intervals.letter_stored(self.name, topic, LETTERS_PARTITION, offset, size)
        if reason is not None:
            worker.kafka.counts.dead_letter_stored(self.name, reason.value)

    def _is_owner(self) -> bool:
        return self._group is not None and self._group.is_alive

    # --- records -------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Be a member of the group and take its records. ``_again`` calls it again after a failure."""
        settings, client_id = self._settings, self._link.client_id
        await prepare_topics(settings.kafka, client_id, self._commands, self._login)
        group = GroupMember(
            settings.kafka, client_id, group=group_name(settings, self._commands), instance=client_id,
            topics=self._commands.topics, listener=self, table=f"commands.{self.name}", login=self._login,
        )  # fmt: skip
        assigning: asyncio.Task[None] | None = None  # the group is read meanwhile, or it puts this member out
        try:
            await group.start()
            self._group = group
            self.view.errors.pop("group", None)
            while not self._is_stopping:
                if assigning is not None and assigning.done():
                    ended, assigning = assigning, None
                    ended.result()
                if self._new and assigning is None:
                    assigning = asyncio.create_task(self._assign_new(), name=f"statuses {self.name}")
                group.pause(self.dispatcher.full() | self._new.keys())
                records = await group.read()
                if records:
                    self.dispatcher.take(records)
                    self._uplink.rewind(self.dispatcher.rewind_ms())  # answers since then are read again
                    self.look()
        finally:
            await end_tasks(assigning, failed=partial(self._log_failure, "earlier statuses"))
            if not self._is_stopping:
                await group.stop()  # it calls ``revoked``, which writes the last statuses and commits
                self._group = None
                self.lost(list(self.dispatcher.partitions))

    async def _assign_new(self) -> None:
        """Read what earlier owners wrote after their last commits, then own the partitions.

        This worker may have been the owner, before an outage of Kafka: what it had under way then comes first."""
        new = {partition: commit for partition, commit in self._new.items() if not self._sink.holds(partition)}
        if not new:
            return
        assignments = self._assignments
        starts: dict[int, int] = {}
        for (_, number), committed in new.items():
            start = self.dispatcher.status_offset(committed)
            starts[number] = min(start, starts.get(number, start))
        earlier = Earlier(new)
        try:
            count, leaderless = await self._tail.read(starts, earlier.take)
        except UnreachableError as error:  # what this member has already goes on
            if self._new:  # not revoked meanwhile
                self.view.errors["new partitions"] = str(error)
            self._log_failure("earlier statuses", error)
            await asyncio.sleep(_AGAIN_S)
            return
        if assignments != self._assignments:
            return  # one may have gone and come back, with a later commit and more statuses: all is read again
        found = set(range(count)) - leaderless
        for partition, committed in new.items():
            if partition in self._new and partition[1] in found:  # not revoked meanwhile
                del self._new[partition]
                self.dispatcher.assign(partition, committed, earlier.of(partition))
        waiting = sorted(leaderless & starts.keys())
        self._note_leaderless("new partitions", [(self._commands.status_topic, number) for number in waiting])
        if any(number >= count for number in starts):  # the topic of commands has grown
            self.view.errors["new partitions"] = (
                f"Topic {self._commands.status_topic} has only {count} partitions: a command's status has no "
                "partition. Add partitions to it."
            )
        if "new partitions" in self.view.errors:
            await asyncio.sleep(_GROWN_S)

    async def _looking_for_leaders(self) -> None:
        """Tell which partitions of commands are not read, and why. A change of leaders is over by the second look."""
        while True:
            await asyncio.sleep(_GROWN_S)
            self.view.errors.pop("commands", None)
            if self._group is not None and self._group.trouble:
                self.view.errors["commands"] = f"{self._group.trouble} Other partitions are read."
            before, self._leaderless = self._leaderless, [] if self._group is None else self._group.leaderless()
            self._note_leaderless("some partitions", [one for one in self._leaderless if one in before])

    async def _keep_topic(self) -> None:
        """Have a deleted status topic made anew: statuses wait for it. ``_again`` calls it again after a failure."""
        topic = self._commands.status_topic
        while True:
            await asyncio.sleep(_GROWN_S)
            producer = self._producer()
            if self._sink.waiting and producer is not None and producer.partition_count(topic) is None:
                await prepare_topics(self._settings.kafka, self._link.client_id, self._commands, self._login)
            self.view.errors.pop("status topic", None)

    # --- bridge.commands.ports.PartitionListener -----------------------------------------------------

    def assigned(self, partitions: Mapping[Partition, Committed | None]) -> None:
        self._assignments += 1
        self._new.update(partitions)

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """The group waits for this before it gives the partitions to others: settle, let go, commit."""
        for partition in partitions:
            self._new.pop(partition, None)
        self.dispatcher.close(partitions)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REVOKE_S):
                while not self.dispatcher.is_settled(partitions):  # noqa: ASYNC110 - the broker and Kafka answer
                    await asyncio.sleep(_AT_ONCE_S if self._link.outstanding < 100 else _LOOK_S)
        offsets = self.dispatcher.commits(partitions)
        self._let_go(partitions)  # before the commit: an answer that comes meanwhile is the next owner's
        await self._commit(offsets)

    def lost(self, partitions: Collection[Partition]) -> None:
        """The group's call: the partitions may be another's already, so nothing is committed."""
        for partition in partitions:
            self._new.pop(partition, None)
        if partitions:
            log.warning("commands_lost", commands=self.name, partitions=[f"{t}/{n}" for t, n in partitions])
        self._let_go(partitions)

    def missed(self, partition: Partition, first: int, end: int) -> None:
        """The group's call: the records of these offsets were deleted before they were read."""
        count = self.dispatcher.deleted(partition, end)
        self.view.deleted_ns = time.monotonic_ns()
        log.error(
            "commands_deleted_unread",
            commands=self.name,
            partition=f"{partition[0]}/{partition[1]}",
            first=first,
            end=end,
            unfinished=count,
            advice="raise the topic's retention above the longest expiry, and look for a worker that stood still",
        )

    def _let_go(self, partitions: Collection[Partition]) -> None:
        self.view.errors.pop("new partitions", None)
        for partition in partitions:
            self._sink.drop(partition)
        self.dispatcher.forget(partitions)

    # --- commits -------------------------------------------------------------------------------------

    async def _committing(self) -> None:
        """Commit every COMMIT_S, until cancelled."""
        while True:
            await asyncio.sleep(COMMIT_S)
            try:
                if self._group is not None:
                    self.dispatcher.passed(self._group.positions)
                await self._commit(self.dispatcher.commits())
            except Exception:  # commits must go on
                log.exception("commands_defect", commands=self.name, part="commits")

    async def _commit(self, offsets: Mapping[Partition, Committed]) -> None:
        """Commit these offsets. A failure is logged; a later commit includes them."""
        if not offsets or self._group is None:
            return
        try:
            too_large = await self._group.commit(offsets)
        except BridgeError as error:
            if not isinstance(error, RefusedError):
                log.warning("commands_not_committed", commands=self.name, error=str(error), repeat_key=self.name)
            forget_frames(error)
            return
        self.dispatcher.committed(offsets, too_large)

    # --- time ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Open or close the way to the broker, send what may be sent, and wake up for what is due next."""
        now_ns = time.monotonic_ns()
        connected_ns = self._link.connected_ns
        is_up = connected_ns is not None and not self._is_stopping and self._can_answer()
        opens_ns = 0 if connected_ns is None else connected_ns + self._settle_ns
        self.dispatcher.is_open = is_up and now_ns >= opens_ns
        self.dispatcher.tick()
        due = [one for one in (self.dispatcher.due_ns(), opens_ns if is_up and now_ns < opens_ns else None) if one]
        if not self._is_stopping:
            self._arm(min(due, default=now_ns + 1_000_000_000), now_ns)

    def _can_answer(self) -> bool:
        """Whether an answer would be received: the answers' sessions are subscribed, and their topic is read."""
        if not self._uplink.is_wanted:
            return True
        names = {name for name in (self._commands.answers, self._commands.delivered_by) if name is not None}
        return self._uplink.is_read and self._worker.mqtt.fetches(names)

    def _arm(self, due_ns: int, now_ns: int) -> None:
        """Have ``look`` called at ``due_ns``, or within a second if that is later."""
        due_ns = min(due_ns, now_ns + 1_000_000_000)  # sessions come and go without telling
        if self._timer is not None and self._timer_ns <= due_ns and self._timer_ns > now_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = asyncio.get_running_loop().call_later(max(0.0, (due_ns - now_ns) / 1e9), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.look()

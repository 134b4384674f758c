"""MQTT sessions that exist at the broker, and in the settings no more: they are resumed, drained and ended.

With fewer `mqtt.sessions`, another client id or a group less, the broker would go on giving a former session its share
of the messages, and keep them until the session expires, with everything in it.
"""

from __future__ import annotations

__all__ = ["OrphanSession", "Orphans", "Plan", "plan_sessions"]

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from bridge.routing.filters import Subscription
from gateway.base.lifecycle import StopVerb
from gateway.mqtt.errors import ConnectError
from gateway.mqtt.session import Session, SessionPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from config.settings import MqttSettings, Settings
    from gateway.data_dir.identity import Identity
    from gateway.data_dir.session_registry import SessionRecord
    from gateway.mqtt.retry import Pause
    from gateway.mqtt.session import DataPath

log = structlog.get_logger("mqtt")

AT_A_TIME: Final = 4  # each brings a window of messages at once, which the real sessions' memory was not planned for
_KEPT_AT_LEAST: Final = timedelta(hours=1)  # or a break while draining would lose the rest


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the recorded sessions.

    ``record``: those of the present settings, with the filters they had before beside those they are to have;
    ``forget``: client ids whose record is of no use any more; ``orphans``: to drain and end; ``left_behind``: recorded
    at another broker under a client id that is in use here, so that nobody can resume them.
    """

    record: tuple[SessionRecord, ...]
    forget: tuple[str, ...]
    orphans: tuple[SessionRecord, ...]
    left_behind: tuple[SessionRecord, ...]


def plan_sessions(
    recorded: Iterable[SessionRecord], wanted: Sequence[SessionRecord], *, persistent: bool, elsewhere: Collection[str]
) -> Plan:
    """Decide from what was recorded and what the settings want. ``elsewhere``: client ids of the other slots.

    Without ``persistent`` sessions end with their connections, and those of the same client ids from before at the
    first clean connect.
    """
    present = {record.client_id: record for record in wanted}
    merged = dict(present) if persistent else {}
    forget, orphans, left_behind = [], [], []
    for old in recorded:
        new = present.get(old.client_id)
        if new is None and old.client_id not in elsewhere:
            orphans.append(old)
        elif new is None or not persistent:
            forget.append(old.client_id)
        elif set(old.addresses) & set(new.addresses):
            earlier = tuple(text for text in old.filters if text not in new.filters)
            merged[old.client_id] = replace(new, filters=new.filters + earlier)
        else:
            left_behind.append(old)
    return Plan(tuple(merged.values()), tuple(forget), tuple(orphans), tuple(left_behind))


class OrphanSession(Session):
    """A session that is to be emptied and ended; ``record`` has what it takes to resume it.

    ``start`` returns at once, and the work goes on until it is ended, however long the broker is away. ``turns`` bounds
    how many are emptied at a time; ``ended`` is called when the session is gone.
    """

    def __init__(
        self,
        record: SessionRecord,
        settings: Settings,
        path: DataPath,
        verb: Callable[[], StopVerb],
        failed: Callable[[BaseException], None],
        *,
        turns: asyncio.Semaphore,
        ended: Callable[[], None],
    ) -> None:
        subscriptions = tuple(Subscription(text, 1) for text in record.filters)
        number = record.session.rpartition("-")[2]  # it stood where a session of its number begins
        place = settings.worker + (int(number) if number.isdecimal() else 0)
        plan = SessionPlan(record.session, record.client_id, subscriptions, None, place)
        mqtt = _resuming(settings.mqtt, record)
        super().__init__(plan, settings.model_copy(update={"mqtt": mqtt}), path, verb, failed)
        self.name = f"orphan-{record.client_id}"
        self._turns = turns
        self._ended = ended
        self.gone = False
        self._ending = False  # the last words are being said
        self.problem = "waits for its turn"

    async def start(self) -> None:
        """Does not wait for the broker."""
        self._task = asyncio.create_task(self._retire(), name=self.name)
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        first.set_result(None)
        self._task.add_done_callback(lambda task: self._report(task, first))

    async def stop(self, deadline_ns: int) -> None:
        """When everything is to end, wait for that; else acknowledge what was taken, and leave the rest for the next
        start."""
        self._stopping = True
        task, self._task = self._task, None
        if task is None:
            return
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        try:
            if self._ending or self._verb() is StopVerb.RETIRE:
                await asyncio.wait({task}, timeout=left_s)
            connection = self._connection
            if connection is not None and not connection.handshaking and not task.done() and left_s:
                self._path.flow.stop_reading()
                await connection.settled()
                await connection.disconnect(end_session=False)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # reported where it was raised
                await task

    async def _retire(self) -> None:
        siblings = self._path.siblings
        while True:
            news = siblings.news
            try:
                async with self._turns:
                    if await self._resume_and_end():
                        self.gone = True
                        self._ended()
                        return
                    assert self._connection is not None
                    label, _ = self._connection.ended.result()
                    pause: Pause | None = self._retry.ended(label, time.monotonic_ns())
            except ConnectError as error:
                self._path.metrics.mqtt_connect_failures.child(error.reason).value += 1
                self.problem = str(error)
                log.warning(
                    "orphan_session_not_resumed",
                    client_id=self.plan.client_id,
                    reason=error.reason,
                    error=str(error),
                    consequence="what the broker holds for it waits there; tried again until it expires",
                    repeat_key=error.reason,
                )
                pause = self._pause_after(error, time.monotonic_ns())
            finally:
                self._close()
            if self._stopping and self._verb() is not StopVerb.RETIRE:
                return
            if pause is not None:
                await siblings.wait(pause, news)
                self._servers.rested()

    async def _resume_and_end(self) -> bool:
        """Whether the session is gone, or nobody's business any more. Raises ConnectError."""
        handshake, connection = await self._connect()
        connection.subscribed()
        self.problem = None
        self._path.metrics.mqtt_connects.child().value += 1
        if handshake.session_present:
            # No SUBSCRIBE: the broker still has the filters, and gives what it holds at once.
            await self._empty(handshake.client, connection)
        if connection.ended.done():
            label, self.problem = connection.ended.result()
            self._path.metrics.mqtt_disconnects.child(label).value += 1
            if label != "requested":
                log.warning("mqtt_disconnected", session=self.name, reason=label, detail=self.problem)
            if label == "taken_over":
                # Somebody else uses this client id, so it is no orphan. To come back would begin a quarrel without end.
                log.warning("orphan_session_in_use", client_id=self.plan.client_id, consequence="left to its user")
                return True
            return False
        self._ending = True
        gone = await self._end(connection)
        self._ending = False
        if gone:
            log.info(
                "orphan_session_ended",
                client_id=self.plan.client_id,
                session_present=handshake.session_present,
                filters=[subscription.filter for subscription in self.plan.subscriptions],
                acknowledged=connection.acknowledged,
            )
        return gone


class Orphans:
    """All orphans of a worker, as one component of the service, which holds up no start."""

    name: Final = "orphans"

    def __init__(self) -> None:
        self.sessions: list[OrphanSession] = []  # those that are gone among them, for their counts
        self._left = 0
        self._none_left = asyncio.Event()
        self._none_left.set()

    @property
    def left(self) -> int:
        """How many are still to be ended."""
        return self._left

    async def wait_ended(self) -> None:
        """Returns when there is none any more."""
        await self._none_left.wait()

    def recall(
        self,
        identity: Identity,
        wanted: Sequence[SessionRecord],
        settings: Settings,
        make: Callable[[SessionRecord, asyncio.Semaphore, Callable[[], None]], OrphanSession],
        *,
        retiring: bool = False,
    ) -> None:
        """Before the first session connects: write down which there are going to be, and find those that are orphans.

        ``retiring``: all are, those ``wanted`` too, which an older gateway may have left without a record.
        Raises IdentityError when that cannot be written. Blocks for a few small file operations."""
        if retiring:
            identity.recall([record for record in wanted if identity.registry.get(record.client_id) is None], ())
            wanted = ()
        plan = plan_sessions(
            identity.registry.records,
            wanted,
            persistent=settings.mqtt.persistent,
            elsewhere=identity.recorded_elsewhere(),
        )
        identity.recall(plan.record, plan.forget)
        for record in plan.left_behind:
            log.warning(
                "session_left_behind",
                client_id=record.client_id,
                brokers=record.addresses,
                consequence="what the former broker holds for it stays there until it expires; one run with that "
                "broker in mqtt.addresses would fetch it",
            )
        turns = asyncio.Semaphore(AT_A_TIME)
        self.sessions = [make(record, turns, self._one_less) for record in plan.orphans]
        self._left = len(self.sessions)
        if self._left:
            self._none_left.clear()
            log.info("orphan_sessions_found", client_ids=[record.client_id for record in plan.orphans])

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._none_left.set()

    async def start(self) -> None:
        """Returns at once."""
        for session in self.sessions:
            await session.start()

    async def stop(self, deadline_ns: int) -> None:
        """As OrphanSession says, all together."""
        await asyncio.gather(*(session.stop(deadline_ns) for session in self.sessions))


def _resuming(mqtt: MqttSettings, record: SessionRecord) -> MqttSettings:
    """Settings that find the recorded session: its protocol, a broker that has it, and the wish to keep it meanwhile.

    The present addresses if one of them was there before (nodes of a cluster come and go), else the recorded ones."""
    addresses = mqtt.addresses if set(mqtt.addresses) & set(record.addresses) else record.addresses
    return mqtt.model_copy(
        update={
            "protocol": record.protocol,
            "addresses": addresses,
            "persistent": True,
            "session_expiry": max(mqtt.session_expiry, _KEPT_AT_LEAST),
        }
    )

"""MQTT sessions that exist at the broker, but no longer in the settings: they are resumed, drained and ended.

The settings may have fewer `mqtt.sessions`, another client id or fewer groups. The broker would give such a session its
share of the messages until it expires, and then drop them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

import structlog

from bridge.routing.filters import Subscription
from bridge.waiting import end_tasks
from gateway.base.lifecycle import StopVerb
from gateway.mqtt.errors import ConnectError
from gateway.mqtt.session import DataPath, Session, SessionPlan
from gateway.mqtt.session_state import SessionState

if TYPE_CHECKING:
    from config.settings import MqttSettings, Settings
    from gateway.data_dir.identity import Identity
    from gateway.data_dir.session_registry import SessionRecord
    from gateway.mqtt.retry import Pause

log = structlog.get_logger("mqtt")

AT_A_TIME: Final = 4  # each brings a window of messages, which the memory of the real sessions does not provide for
_KEPT_AT_LEAST: Final = timedelta(hours=1)  # otherwise a lost connection while draining would lose the rest


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the recorded sessions.

    ``record``: those of the settings, with their former filters beside the present ones, and those that another slot
    uses and does not know all filters of. ``forget``: client ids whose record is useless. ``orphans``: sessions to
    drain and end. ``left_behind``: recorded at another broker, under a client id that is in use here; they cannot be
    resumed.
    """

    record: tuple[SessionRecord, ...]
    forget: tuple[str, ...]
    orphans: tuple[SessionRecord, ...]
    left_behind: tuple[SessionRecord, ...]


def plan_sessions(
    recorded: Iterable[SessionRecord],
    wanted: Sequence[SessionRecord],
    *,
    persistent: bool,
    elsewhere: Mapping[str, SessionRecord],
) -> Plan:
    """Decide from the recorded sessions and the settings. ``elsewhere``: the records of the other slots by client id.
    A client id may come from one of them, with the filters that its session has.

    Without ``persistent``, sessions end with their connections. Older ones of the same client ids end at the first
    clean connect.
    """
    present = {record.client_id: record for record in wanted}
    found = {record.client_id: record for record in recorded}
    forget, orphans, left_behind, kept = [], [], [], []
    for old in found.values():
        new, other = present.get(old.client_id), elsewhere.get(old.client_id)
        if new is None and (other is None or not other.in_use):
            orphans.append(old if other is None else _with_filters(old, other))
        elif new is None and other is not None and _with_filters(other, old) != other:
            kept.append(replace(old, in_use=False))  # the other slot learns from it what the broker has
        elif new is None or not persistent:
            forget.append(old.client_id)
        elif not _at_one_broker(old, new):
            left_behind.append(old)
    record = _records(wanted, (elsewhere, found)) if persistent else ()
    return Plan((*record, *kept), tuple(forget), tuple(orphans), tuple(left_behind))


def _records(
    wanted: Sequence[SessionRecord], known: Sequence[Mapping[str, SessionRecord]]
) -> tuple[SessionRecord, ...]:
    """The ``wanted`` records, with the filters of ``known`` ones behind their own. Established are those that were, and
    all in a single group."""
    is_single = len({new.group for new in wanted}) == 1
    records = []
    for new in wanted:
        olds = [old for one in known if (old := one.get(new.client_id)) and _at_one_broker(old, new)]
        established = [text for text in new.filters if is_single or any(text in old.established for old in olds)]
        records.append(replace(reduce(_with_filters, olds, new), established=tuple(established)))
    return tuple(records)


def _with_filters(new: SessionRecord, old: SessionRecord) -> SessionRecord:
    """``new`` with the filters of ``old`` behind its own, if both are at one broker."""
    if not _at_one_broker(old, new):
        return new
    return replace(new, filters=tuple(dict.fromkeys(new.filters + old.filters)))


def _at_one_broker(one: SessionRecord, other: SessionRecord) -> bool:
    return not set(one.addresses).isdisjoint(other.addresses)


class OrphanSession(Session):
    """A session to drain and end; ``record`` has everything needed to resume it.

    ``start`` returns at once; the work lasts until the session has ended, however long the broker is down. ``turns``
    bounds how many are drained at a time; ``ended`` is called when the session has ended.
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
        """``turns`` bounds how many run at a time; ``ended`` is called once the session is gone."""
        subscriptions = tuple(Subscription(text, 1) for text in record.filters)
        number = record.session.rpartition("-")[2]  # it stood where a session of its number begins
        place = settings.worker + (int(number) if number.isdecimal() else 0)
        plan = SessionPlan(record.session, record.client_id, subscriptions, None, place)
        mqtt = _resuming(settings.mqtt, record)
        super().__init__(plan, settings.model_copy(update={"mqtt": mqtt}), path, verb, failed)
        self.name = f"orphan-{record.client_id}"
        self._turns = turns
        self._ended = ended
        self._stop_requested = False  # a stop that retires still connects again
        self.problem = "waits for its turn"

    @property
    def gone(self) -> bool:
        """Whether this gateway has the session no longer."""
        return self.state is SessionState.ENDED

    @property
    def _stopping(self) -> bool:
        return self._stop_requested

    async def start(self) -> None:
        """Does not wait for the broker."""
        self._task = asyncio.create_task(self._retire(), name=self.name)
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        first.set_result(None)  # so errors go to ``failed``, none to a caller of ``start``
        self._task.add_done_callback(lambda task: self._report(task, first))

    async def stop(self, deadline_ns: int) -> None:
        """Acknowledge the received messages; the next start drains the rest. A stop that retires waits for the end."""
        self._stop_requested = True
        task = self._task
        if task is None:
            return
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        try:
            if self.state is SessionState.ENDING or self._verb() is StopVerb.RETIRE:
                await asyncio.wait({task}, timeout=left_s)
            connection = self._connection
            if connection is not None and not connection.handshaking and not task.done() and left_s:
                self._data_path.flow.stop_reading()
                await connection.settled()
                await connection.disconnect(end_session=False)
        finally:
            await end_tasks(task)
            if not self.gone:
                self._move(SessionState.STOPPED)

    async def _retire(self) -> None:
        """Resume, empty and end the session; again after each failure, until it is gone or a restart's stop comes."""
        siblings = self._data_path.siblings
        while True:
            sibling_subscribed = siblings.next_subscribed
            if self._is_elsewhere():
                self._leave_to_other()
                self._ended()
                return
            try:
                async with self._turns:
                    if await self._resume_and_end():
                        self._ended()
                        return
                    assert self._connection is not None
                    label, _ = self._connection.ended.result()
                    pause: Pause | None = self._retry.ended(label, time.monotonic_ns())
            except ConnectError as error:
                self._data_path.metrics.mqtt_connect_failures.child(error.reason).value += 1
                self.problem = str(error)
                log.warning(
                    "orphan_session_not_resumed",
                    client_id=self.plan.client_id,
                    reason=error.reason,
                    error=str(error),
                    consequence="its messages wait at the broker; it is tried again until it expires",
                    repeat_key=error.reason,
                )
                pause = self._pause_after(error, time.monotonic_ns())
            finally:
                self._close()
                if not self.gone:
                    self._move(SessionState.WAITING)
            if self._stopping and self._verb() is not StopVerb.RETIRE:
                return
            if pause is not None:
                await siblings.wait(pause, sibling_subscribed)
                self._servers.waited()

    async def _resume_and_end(self) -> bool:
        """True: the session has ended, or belongs to another client. False: try again. Raises ConnectError."""
        handshake, connection = await self._connect()
        connection.subscribed()
        self._move(SessionState.UNSUBSCRIBING)
        self.problem = None
        self._data_path.metrics.mqtt_connects.child().value += 1
        if handshake.session_present:
            # No SUBSCRIBE: the broker still has the filters, and sends its queue at once.
            await self._empty(handshake.client, connection)
        if connection.ended.done():
            label, self.problem = connection.ended.result()
            self._data_path.metrics.mqtt_disconnects.child(label).value += 1
            if label != "requested":
                log.warning("mqtt_disconnected", session=self.name, reason=label, detail=self.problem)
            if label == "taken_over":
                self._leave_to_other()
                return True
            return False
        gone = await self._end(connection)
        if gone:
            log.info(
                "orphan_session_ended",
                client_id=self.plan.client_id,
                session_present=handshake.session_present,
                filters=[subscription.filter for subscription in self.plan.subscriptions],
                acknowledged=connection.acknowledged,
            )
        return gone

    def _is_elsewhere(self) -> bool:
        """Whether another slot has recorded the session, perhaps after this one's start."""
        registry = self._data_path.registry
        with contextlib.suppress(OSError):
            other = None if registry is None else registry.elsewhere().get(self.plan.client_id)
            return other is not None and other.in_use
        return False

    def _leave_to_other(self) -> None:
        """Another client uses this client id, so it is no orphan. A reconnect would end its connection."""
        log.warning(
            "orphan_session_in_use",
            client_id=self.plan.client_id,
            consequence="the session stays with the other client",
        )
        self._move(SessionState.ENDED)


class Orphans:
    """All orphans of a worker, as one component of the service. It delays no start."""

    name: Final = "orphans"

    def __init__(self) -> None:
        self.sessions: list[OrphanSession] = []  # ended ones included, for their counts
        self.left = 0  # have not ended yet
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def wait_ended(self) -> None:
        """Wait until every one has ended."""
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
        """Record the sessions that are about to connect, and find the orphans. Call it before the first session
        connects.

        ``retiring``: every session is an orphan, also the ``wanted`` ones, which an older gateway may not have
        recorded. Raises IdentityError when the record cannot be written. Blocks for a few small file operations.
        """
        if retiring:
            if settings.worker == 0 or "${worker}" in settings.mqtt.client_id:  # otherwise they are slot 0's sessions
                identity.record_sessions(
                    [record for record in wanted if identity.registry.get(record.client_id) is None], ()
                )
            wanted = ()
        plan = plan_sessions(
            identity.registry.records,
            wanted,
            persistent=settings.mqtt.persistent,
            elsewhere=identity.registry.elsewhere(),
        )
        identity.record_sessions(plan.record, plan.forget)
        for record in plan.left_behind:
            log.warning(
                "session_left_behind",
                client_id=record.client_id,
                brokers=record.addresses,
                consequence="if it ever connected there, its messages stay at that broker until it expires; a run with "
                "it in mqtt.addresses would fetch them",
            )
        turns = asyncio.Semaphore(AT_A_TIME)
        self.sessions = [make(record, turns, self._one_less) for record in plan.orphans]
        self.left = len(self.sessions)
        if self.left:
            self._none_left.clear()
            log.info("orphan_sessions_found", client_ids=[record.client_id for record in plan.orphans])

    def _one_less(self) -> None:
        self.left -= 1
        if not self.left:
            self._none_left.set()

    async def start(self) -> None:
        """Returns at once."""
        for session in self.sessions:
            await session.start()

    async def stop(self, deadline_ns: int) -> None:
        """Stop all of them together, as OrphanSession does."""
        await asyncio.gather(*(session.stop(deadline_ns) for session in self.sessions))


def _resuming(mqtt: MqttSettings, record: SessionRecord) -> MqttSettings:
    """Settings that resume the recorded session: its protocol, a broker that has it, and persistence until it has
    ended.

    The present addresses if one of them was there before (nodes of a cluster come and go), else the recorded ones.
    """
    addresses = mqtt.addresses if set(mqtt.addresses) & set(record.addresses) else record.addresses
    return mqtt.model_copy(
        update={
            "protocol": record.protocol,
            "addresses": addresses,
            "persistent": True,
            "session_expiry": max(mqtt.session_expiry, _KEPT_AT_LEAST),
        }
    )

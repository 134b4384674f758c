"""One MQTT session: a client id that is kept connected and subscribed, from start to stop.

``gateway.mqtt.session_state`` draws its states and their transitions.

Packet ids of QoS 2 belong to the session across connections, until PUBREL. Those of QoS 1 belong to one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import forget_frames
from config.values.addresses import parse_mqtt_address
from gateway.base.lifecycle import StopVerb
from gateway.data_dir.session_registry import SessionRecord, SessionRegistry
from gateway.mqtt import reasons
from gateway.mqtt.client import Handshake, PahoClient, either
from gateway.mqtt.connection import MOST_IDS, Connection
from gateway.mqtt.errors import ConnectError, MqttRefusedError
from gateway.mqtt.ingest import Ingest
from gateway.mqtt.retry import Pause, Retry, Siblings
from gateway.mqtt.servers import SERVER_MOVED, Redirection, Servers
from gateway.mqtt.session_state import ACCEPTED, RECEIVING, STOPPING, SUBSCRIBED, TRANSITIONS, SessionState

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from bridge.certificate import Validity
    from bridge.produce.accumulator import Accumulator
    from bridge.produce.dead_letter import DeadLetters
    from bridge.produce.dispatch import Dispatcher
    from bridge.routing.filters import Subscription
    from config.settings import Settings
    from gateway.base.metrics import Metrics
    from gateway.data_dir.lost_sessions import LostSessions
    from gateway.mqtt.flow import Flow
    from gateway.mqtt.login import Login, Shown

log = structlog.get_logger("mqtt")

NO_MATCHING_SUBSCRIBERS = 0x10  # PUBACK's reason code (MQTT 5.0 section 3.4.2.1); a retained message was taken
OVERRUN_SHOWN_NS = 900_000_000_000
REPEAT_S = 5.0  # from SUBACK to the second SUBSCRIBE of a connection
_REFUSALS = frozenset({"credentials", "not_authorised"})  # a broker's reasons to refuse a token


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What identifies a session: its name within the worker, its client id, its subscriptions.

    ``name`` is its number, behind the name of its group if it has one. ``status_topic`` is where it announces the
    worker, None for all sessions but one. ``place`` is the index of its first address in ``mqtt.addresses``, modulo
    their number. Sessions differ in it, so that one dead node disconnects few of them.
    """

    name: str
    client_id: str
    subscriptions: tuple[Subscription, ...]
    status_topic: str | None
    place: int = 0


@dataclass(frozen=True, slots=True)
class DataPath:
    """What the sessions of a worker share."""

    flow: Flow
    accumulator: Accumulator
    dispatcher: Dispatcher
    dead_letters: DeadLetters
    metrics: Metrics
    login: Login
    registry: SessionRegistry | None = None  # sessions that exist at the broker; None: no record is kept
    siblings: Siblings = field(default_factory=Siblings)
    lost: LostSessions | None = None  # records sessions that the broker loses


class Session:
    """A component of the service (``gateway.base.lifecycle.Component``).

    ``start`` returns when every filter is granted for the first time. An unreachable broker is tried until it answers.
    A first refusal raises MqttRefusedError if there is no other address. ``verb`` says at the stop whether the broker
    keeps the session; ``failed`` gets a defect of ours.
    """

    def __init__(
        self,
        plan: SessionPlan,
        settings: Settings,
        path: DataPath,
        verb: Callable[[], StopVerb],
        failed: Callable[[BaseException], None],
    ) -> None:
        mqtt = settings.mqtt
        self.plan = plan
        self.name = f"session-{plan.name}"
        self._settings = settings
        self._data_path = path
        self._verb = verb
        self._failed = failed
        addresses = [parse_mqtt_address(text) for text in mqtt.addresses]
        self._servers = Servers(addresses, mqtt.redirect, place=plan.place)
        self._retry = Retry(mqtt, path.siblings)
        self._ingest = Ingest(
            path.dispatcher,
            path.accumulator,
            path.dead_letters,
            v5=mqtt.protocol == "5",
            max_packet=mqtt.max_packet_bytes,
            max_record=settings.kafka.max_record_bytes,
        )
        self._connection: Connection | None = None
        self._client: PahoClient | None = None
        self._handshake: Handshake | None = None
        self._leaving: dict[int, asyncio.Future[None]] = {}  # an UNSUBSCRIBE without answer, by packet id
        self._connections = 0
        self._life = f"{time.time_ns() // 1_000_000:x}"
        self._task: asyncio.Task[None] | None = None
        self.state = SessionState.WAITING
        self._acknowledged = 0  # of connections that have ended
        self._received_bytes = 0
        self._window = mqtt.receive_maximum
        self._unanswered = 0  # status messages on this connection
        self._may_announce = True
        self.unheard = 0  # status messages that nobody was subscribed to, as the broker's PUBACK said
        self.left_unacked = 0  # unacknowledged messages at the stop
        self.last_shown: Shown | None = None  # at the last attempt, accepted or not
        self.server_certificate: Validity | None = None  # of the broker, at the last accepted connection
        self._tried_again = False  # with another token, since the last connection that stood
        self.standing = asyncio.Event()  # while its state is RUNNING
        self.absent: Callable[[Session], None] = lambda _: None  # called when the broker does not have the session
        self.problem: str | None = "not connected yet"

    # --- what others read --------------------------------------------------------------------------

    @property
    def record(self) -> SessionRecord:
        """Everything needed to resume this session without its settings."""
        filters = tuple(subscription.filter for subscription in self.plan.subscriptions)
        mqtt = self._settings.mqtt
        return SessionRecord(self.plan.client_id, self.plan.name, filters, mqtt.protocol, tuple(mqtt.addresses))

    @property
    def _kept(self) -> SessionRecord | None:
        """What the registry has of this session; None where no record is kept."""
        registry = self._data_path.registry
        return registry.get(self.plan.client_id) if registry is not None else None

    @property
    def _held_filters(self) -> set[str]:
        """Every filter that the broker may have for this session: those wanted, and earlier ones that it has not left
        yet, as two reloads without a connection between them make."""
        earlier = self._kept.filters if self._kept is not None else ()
        return {*earlier, *(subscription.filter for subscription in self.plan.subscriptions)}

    def _move(self, to: SessionState) -> None:
        """Change the state; ``standing`` is set while it is RUNNING."""
        assert to is self.state or to in TRANSITIONS[self.state], f"{self.name}: {self.state} cannot become {to}"
        self.state = to
        if to is SessionState.RUNNING:
            self.standing.set()
        else:
            self.standing.clear()

    @property
    def _stopping(self) -> bool:
        return self.state in STOPPING

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the login and the connection stands. A frozen broker accepts TCP connections,
        but no login."""
        return self.state in ACCEPTED and self._connection is not None and not self._connection.ended.done()

    @property
    def subscribed(self) -> bool:
        """Whether the broker has granted the filters on the present connection."""
        return self.state in SUBSCRIBED and self._connection is not None

    @property
    def receives(self) -> bool:
        """Whether what matches the filters comes on the present connection."""
        return self.state in RECEIVING and self.connected

    @property
    def unacked(self) -> int:
        return self._connection.unacked if self._connection is not None else 0

    @property
    def window(self) -> int:
        """How many messages the broker sends unacknowledged.

        CONNACK's number formally limits the other direction. EMQX sends no more than it names; mosquitto does. After
        more than that, the window is what we asked for.
        """
        asked = self._settings.mqtt.receive_maximum
        connection, client = self._connection, self._client
        if self._window < asked and connection is not None and client is not None and self.unacked > self._window:
            self._window = asked
            connection.set_window(asked, client.keepalive)
            self._data_path.metrics.mqtt_receive_window.child(self.plan.name).value = asked
        return self._window

    @property
    def overrun(self) -> int:
        """The most unacknowledged messages of the present connection, if the broker exceeded the window within the last
        quarter of an hour; else 0."""
        connection = self._connection
        if connection is None or time.monotonic_ns() - connection.overrun_ns > OVERRUN_SHOWN_NS:
            return 0
        return connection.overrun

    @property
    def awaits_suback(self) -> bool:
        """Whether messages come before the broker has answered SUBSCRIBE."""
        connection = self._connection
        return self.state is SessionState.SUBSCRIBING and connection is not None and connection.messages > 0

    @property
    def retained(self) -> int:
        """Messages with the retain flag, so far."""
        return self._ingest.retained

    @property
    def redelivered(self) -> int:
        return self._ingest.redelivered

    @property
    def acknowledged(self) -> int:
        return self._acknowledged + (self._connection.acknowledged if self._connection is not None else 0)

    @property
    def received_bytes(self) -> int:
        return self._received_bytes + (self._connection.received_bytes if self._connection is not None else 0)

    # --- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(first), name=self.name)
        self._task.add_done_callback(lambda task: self._report(task, first))
        await first

    def _report(self, task: asyncio.Task[None], first: asyncio.Future[None]) -> None:
        """The task has ended: its error goes to ``first``, which ``start`` awaits, or later to ``failed``."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if first.done():
            self._failed(error)
        else:
            first.set_exception(error)

    async def stop(self, deadline_ns: int) -> None:
        """Drain and disconnect, for a restart or for good (``StopVerb``). After the deadline: drop the connection,
        acknowledge nothing more."""
        try:
            # Also before SUBACK: a resumed session delivers from CONNACK on.
            if self.state in ACCEPTED and not self._stopping and time.monotonic_ns() < deadline_ns:
                await self._drain(self._verb())
        finally:
            if self.state is not SessionState.ENDED:
                self._move(SessionState.STOPPED)
            await end_tasks(self._task)

    async def _drain(self, verb: StopVerb) -> None:
        """Have all that was read acknowledged and disconnect; RETIRE also empties and ends the session."""
        connection, client = self._connection, self._client
        assert connection is not None
        assert client is not None
        retires, renews = verb is StopVerb.RETIRE, self.state is SessionState.RENEWING
        self._move(SessionState.UNSUBSCRIBING if retires else SessionState.DRAINING)
        if renews:  # DISCONNECT is on its way, behind the acknowledgements and the status
            await connection.disconnect(end_session=False)
            if retires:
                self._warn_not_ended("its credentials were being renewed")
            return
        self._announce(client, "stopping")
        if retires:
            await self._empty(client, connection)
            self._announce(client, "retired")
            await connection.settled()
            try:
                failure = None if await self._end(connection) else "the connection broke meanwhile"
            except ConnectError as error:  # of the clean connect that MQTT 3.1.1 needs
                failure = str(error)
            if failure is not None:
                self._warn_not_ended(failure)
        else:
            # No UNSUBSCRIBE: EMQX drops what is published to a group without members.
            self._data_path.flow.stop_reading()
            await connection.settled()
            self._announce(client, "stopped")
            await connection.settled()
            await connection.disconnect(end_session=False)

    def _warn_not_ended(self, reason: str) -> None:
        log.warning(
            "session_not_ended",
            session=self.plan.name,
            client_id=self.plan.client_id,
            reason=reason,
            advice="`gateway retire` again drains and ends it",
        )

    async def _empty(self, client: PahoClient, connection: Connection) -> None:
        """Unsubscribe, and receive what the broker still holds. Returns early when the connection ends.

        First the membership ends: the group's other members get what is published from now on. The broker keeps this
        session's queue for it, so reading goes on until the queue is empty.
        """
        await self._unsubscribe(client, connection, sorted(self._held_filters))
        await connection.drained()

    async def _unsubscribe(
        self, client: PahoClient, connection: Connection, filters: Sequence[str], *, patience_s: float | None = None
    ) -> bool:
        """Unsubscribe and wait for UNSUBACK, until ``patience_s`` of silence unless it is None; whether it came."""
        if not filters:
            return True
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client.on_unsubscribe = self._on_unsubscribed
        _, packet_id = client.unsubscribe(list(filters))
        if packet_id is not None:
            self._leaving[packet_id] = gone
        client.loop_write()
        await either({gone, connection.ended}, patience_s, connection.silent_s)
        return gone.done()

    def _on_unsubscribed(self, _client: object, _data: object, packet_id: int, *_answer: object) -> None:
        gone = self._leaving.pop(packet_id, None)
        if gone is not None and not gone.done():
            gone.set_result(None)

    async def _end(self, connection: Connection) -> bool:
        """End the empty session at the broker; whether that succeeded.

        The session must be empty: EMQX loses unacknowledged messages when a session's expiry drops to 0.
        """
        connection.read()  # its end, if that came behind the last answer: no DISCONNECT would arrive
        if connection.ended.done():  # it broke, so the broker's queue is unknown
            return False
        self._move(SessionState.ENDING)
        v5 = self._settings.mqtt.protocol == "5"
        await connection.disconnect(end_session=v5)
        if not v5:
            await self._end_by_clean_connect()
        if self._data_path.lost is not None:
            self._data_path.lost.ended(self.plan.client_id)
        if self._data_path.registry is not None:
            try:
                self._data_path.registry.forget(self.plan.client_id)
            except OSError as error:  # the next start finds no such session at the broker, and forgets it then
                log.warning("session_record_kept", client_id=self.plan.client_id, error=words(error))
        self._move(SessionState.ENDED)
        return True

    async def _end_by_clean_connect(self) -> None:
        """MQTT 3.1.1 ends a session only by a clean connect with its client id (section 3.1.2.4).

        Raises ConnectError."""
        clean = self._settings.mqtt.model_copy(update={"persistent": False})
        address = self._servers.current()
        shown = await self._data_path.login.show(encrypted=address.encrypted)
        handshake = Handshake(clean, address, self.plan.client_id, None, shown)
        await handshake.connect()
        connection = self._make_connection(handshake)
        try:
            connection.open()
            await handshake.connected(connection.ended)  # only the answer says that the broker has done it
            await connection.disconnect(end_session=False)
        finally:
            connection.close()

    async def _run(self, first: asyncio.Future[None]) -> None:
        siblings = self._data_path.siblings
        while not self._stopping:
            pause: Pause | None = None  # None: at once
            sibling_subscribed = siblings.next_subscribed
            try:
                connection = await self._open()
                if not first.done():
                    first.set_result(None)
                await self._drop_stale_filters(connection)
                await self._repeat_subscriptions(connection)
                label, self.problem = await asyncio.shield(connection.ended)
                sibling_subscribed = siblings.next_subscribed
                now_ns = time.monotonic_ns()
                self._servers.connection_ended(now_ns)
                if label == "not_authorised" and self._unanswered:
                    self._status_refused(label)
                pause = None if self.state is SessionState.RENEWING else self._retry.ended(label, now_ns)
                if label == "closed" and self._retry.short_lived:
                    self.problem = f"{self.problem}; {reasons.SHORT_LIVED}"
                self._data_path.metrics.mqtt_disconnects.child(label).value += 1
                if label != "requested":
                    log.warning("mqtt_disconnected", session=self.plan.name, reason=label, detail=self.problem)
                if connection.redirection is not None and self._redirect(connection.redirection):
                    pause = None
            except ConnectError as error:
                self._data_path.metrics.mqtt_connect_failures.child(error.reason).value += 1
                self.problem = str(error)
                if await self._has_other_token(error):
                    continue
                now_ns = time.monotonic_ns()
                is_final = isinstance(error, MqttRefusedError) and not siblings.lately_down(now_ns)
                if is_final and not first.done() and self._servers.only:
                    first.set_exception(error)
                    return
                log.warning(
                    "mqtt_connect_failed",
                    session=self.plan.name,
                    reason=error.reason,
                    error=str(error),
                    repeat_key=error.reason,  # four sessions of one broker need one line
                )
                pause = self._pause_after(error, now_ns)
                forget_frames(error)
            finally:
                self._close()
                if not self._stopping:
                    self._move(SessionState.WAITING)
            if pause is not None and not self._stopping:
                await siblings.wait(pause, sibling_subscribed)
                self._servers.waited()

    def _pause_after(self, error: ConnectError, now_ns: int) -> Pause | None:
        """Choose the next address. Returns the wait before it is tried; None: none."""
        early = self._connection  # it may have ended before SUBACK, with a reason of the broker's
        to, label = error.redirection, None
        if early is not None and early.ended.done():
            to, label = to or early.redirection, early.ended.result()[0]
        if to is not None:
            return None if self._redirect(to) else self._retry.failed(error, now_ns, label)
        pause = self._retry.failed(error, now_ns, label)
        return None if self._servers.next_after_failure() and pause.is_shared else pause

    async def _has_other_token(self, error: ConnectError) -> bool:
        """Whether to try again at once with another token than the refused one. Once only: a second refusal has another
        cause."""
        if error.reason not in _REFUSALS or self._tried_again or self.last_shown is None:
            return False
        if not await self._data_path.login.other_token(self.last_shown):
            return False
        self._tried_again = True
        log.warning("mqtt_token_refused", session=self.plan.name, error=str(error), consequence="a new one is tried")
        return True

    async def renew(self, patience_s: float) -> bool:
        """Connect again with the present credentials; whether that was begun.

        First every message that was read is acknowledged. The broker keeps the session and its queue meanwhile. False
        without a connection, or when the acknowledgements take longer than ``patience_s``: then nothing has changed.
        """
        connection = self._connection
        if connection is None or self.state is not SessionState.RUNNING:
            return False
        connection.hold()
        begun = False
        try:
            async with asyncio.timeout(patience_s):
                await connection.settled()
            begun = self.state is SessionState.RUNNING and not connection.ended.done()
        except TimeoutError:
            pass
        finally:
            if not begun:
                connection.resume()
                if not self._stopping:  # else a stop waits for the same acknowledgements
                    connection.stopping = False  # ``settled`` has set it
        if begun:
            self._move(SessionState.RENEWING)
            if self._client is not None:
                self._announce(self._client, "stopped")  # a stop may come before the next connection
            await connection.disconnect(end_session=False)
        return begun

    def adopt(self, settings: Settings) -> None:
        """Use other settings from the next connection on."""
        self._settings = settings

    async def subscribe(self, subscriptions: tuple[Subscription, ...]) -> bool:
        """Use these subscriptions from now on. New ones are subscribed on the present connection; ``leave_stale``
        unsubscribes the others.

        False without a connection: the next one subscribes. Raises MqttRefusedError, or ConnectError without an answer;
        the subscriptions stay wanted.
        """
        before = self.plan.subscriptions
        new = [one for one in subscriptions if one not in before]
        connection, handshake = self._connection, self._handshake
        if new and (registry := self._data_path.registry) is not None:
            # First, so that the next life knows every filter that the broker may have for this session. Sorted: the
            # way back from a full disk then has nothing to write.
            filters = sorted(self._held_filters.union(one.filter for one in new))
            established = sorted(self.established.difference(one.filter for one in new))
            registry.record([replace(self.record, filters=tuple(filters), established=tuple(established))])
        self.plan = replace(self.plan, subscriptions=subscriptions)
        if not new:
            return self.subscribed
        if connection is None or handshake is None or self.state is not SessionState.RUNNING:
            return False
        try:
            await handshake.subscribe(new, connection.ended, connection.silent_s)
        except MqttRefusedError:
            raise
        except ConnectError:
            if connection.ended.done():
                return False
            raise
        log.info("mqtt_subscriptions_added", session=self.plan.name, filters=[one.filter for one in new])
        return True

    async def leave_stale(self) -> None:
        """Unsubscribe unwanted filters on the present connection; without one, the next connection does it."""
        connection = self._connection
        if connection is not None and self.state is SessionState.RUNNING:
            await self._drop_stale_filters(connection)

    @property
    def established(self) -> set[str]:
        """The filters under which copies for other groups may be dropped: all, where no record is kept."""
        wanted = {subscription.filter for subscription in self.plan.subscriptions}
        return wanted if self._kept is None else wanted.intersection(self._kept.established)

    def establish(self, filters: tuple[str, ...]) -> None:
        """Record which filters are established. Raises OSError if the disk fails."""
        registry, record = self._data_path.registry, self._kept
        if registry is not None and record is not None:
            registry.record([replace(record, established=filters)])

    async def emptied(self) -> None:
        """Wait until the broker has had nothing queued for this session since the call, as ``Connection.emptied`` finds
        it; without a connection, for the next one."""
        while True:
            await self.standing.wait()
            connection = self._connection
            if connection is not None and await connection.emptied():
                return

    @property
    def shown(self) -> Shown | None:
        """The credentials of the present connection; None without one."""
        return self.last_shown if self.subscribed else None

    def _redirect(self, to: Redirection) -> bool:
        """Follow a redirection: True to go on at once. Otherwise the next address is tried after a wait."""
        servers = self._servers
        here = servers.current()
        objection = servers.redirect(to)
        if objection is None:
            advice = "put it into mqtt.addresses: the server has moved for good" if to.code == SERVER_MOVED else None
            log.warning(
                "mqtt_redirected", session=self.plan.name, broker=str(here), to=str(servers.current()), advice=advice
            )
            return True
        self.problem = f"{here} redirects to another server, and {objection}."
        log.warning("mqtt_redirect_refused", session=self.plan.name, error=self.problem, repeat_key=str(here))
        servers.next_after_failure()
        return False

    def _make_connection(self, handshake: Handshake) -> Connection:
        """A connection, not opened yet, over the socket of the handshake."""
        mqtt, path, client = self._settings.mqtt, self._data_path, handshake.client
        assert client.stream is not None
        self._connections += 1
        return Connection(
            client,
            client.stream,
            self._ingest,
            path.flow,
            path.accumulator,
            path.dispatcher,
            # The life's start makes the delivery ids of two lives differ.
            label=f"{self.plan.client_id}:{self._life}.{self._connections}:".encode(),
            window=mqtt.receive_maximum,
            keepalive_s=mqtt.keepalive.total_seconds(),
            limit=mqtt.receive_maximum if mqtt.protocol == "5" else MOST_IDS,  # 3.1.1 announces nothing
        )

    async def _connect(self) -> tuple[Handshake, Connection]:
        """Connect, and wait for CONNACK. Raises ConnectError."""
        self._move(SessionState.CONNECTING)
        will = (self.plan.status_topic, self._status("offline")) if self.plan.status_topic is not None else None
        address = self._servers.current()
        shown = self.last_shown = await self._data_path.login.show(encrypted=address.encrypted)
        handshake = Handshake(self._settings.mqtt, address, self.plan.client_id, will, shown)
        client = self._client = handshake.client
        await handshake.connect()
        connection = self._connection = self._make_connection(handshake)
        connection.open()
        await handshake.connected(connection.ended)
        self._move(SessionState.SUBSCRIBING)
        self._handshake = handshake
        assert client.stream is not None
        self.server_certificate = client.stream.server_certificate()
        connection.set_window(handshake.window, client.keepalive)
        self._window = handshake.window
        if not handshake.session_present:
            self._note_absent()
            self.absent(self)
            self._ingest.qos2.clear()  # a new session has none of the old one's exchanges
        return handshake, connection

    async def _open(self) -> Connection:
        """Connect, subscribe, announce. Raises ConnectError."""
        path, name = self._data_path, self.plan.name
        handshake, connection = await self._connect()
        path.metrics.mqtt_session_present.child(name).value = int(handshake.session_present)
        path.metrics.mqtt_receive_window.child(name).value = handshake.window
        # Also with a session present: the broker may have forgotten filters, and settings may have changed.
        asked: tuple[Subscription, ...] = ()
        # Settings may change while an answer is waited for. A session that retires then subscribes to nothing more.
        while asked != (wanted := self.plan.subscriptions) and not self._stopping:
            more = [one for one in wanted if one not in asked]
            await handshake.subscribe(more, connection.ended, connection.silent_s)
            asked = wanted
        connection.subscribed()
        if self.state is SessionState.SUBSCRIBING:  # else a stop drains it already
            self._move(SessionState.RUNNING)
        if path.lost is not None and self._settings.mqtt.persistent:
            path.lost.stands(self.plan.client_id, self._settings.mqtt.addresses)
        self._tried_again = False
        self.problem = None
        self._servers.subscribed(time.monotonic_ns())
        self._retry.subscribed(time.monotonic_ns())
        path.metrics.mqtt_connects.child().value += 1
        if not self._stopping:
            self._announce(handshake.client, "online")
        log.info(
            "mqtt_subscribed",
            session=name,
            client_id=self.plan.client_id,
            broker=str(self._servers.current()),
            session_present=handshake.session_present,
            window=handshake.window,
            filters=[subscription.filter for subscription in self.plan.subscriptions],
        )
        return connection

    def _note_absent(self) -> None:
        """The broker does not have the session. That is a loss if the session was to persist."""
        lost, mqtt = self._data_path.lost, self._settings.mqtt
        if lost is None:
            return
        if mqtt.persistent:
            expiry_ms = round(mqtt.session_expiry.total_seconds() * 1000) if mqtt.protocol == "5" else None
            broker = str(self._servers.current())
            lost.absent(self.plan.name, self.plan.client_id, broker, mqtt.addresses, expiry_ms)
        else:
            lost.ended(self.plan.client_id)

    async def _repeat_subscriptions(self, connection: Connection) -> None:
        """Subscribe to several shared filters once more, some seconds after SUBACK.

        HiveMQ CE 2025.5 may take a member for one without shared filters, if it subscribes to several while the broker
        is busy. Then acknowledgements fetch nothing, and messages stay in the queue until the member subscribes again.
        MQTT 5 alone: with 3.1.1, brokers answer each SUBSCRIBE with retained messages.
        """
        handshake = self._handshake
        if self._settings.mqtt.protocol != "5" or handshake is None:
            return
        await either({connection.ended}, REPEAT_S)
        shared = [one for one in self.plan.subscriptions if one.filter.startswith("$share/")]
        if len(shared) > 1 and not connection.ended.done() and not self._stopping:
            with contextlib.suppress(ConnectError):  # the connection has just ended
                handshake.repeat(shared)
            log.debug("mqtt_subscriptions_repeated", session=self.plan.name)

    async def _drop_stale_filters(self, connection: Connection) -> None:
        """Unsubscribe filters of earlier settings that a persistent session still has.

        Their messages have no route any more; in a shared group they would be missing elsewhere.
        """
        registry, record, client = self._data_path.registry, self._kept, self._client
        if registry is None or record is None or client is None:
            return
        wanted = tuple(subscription.filter for subscription in self.plan.subscriptions)
        stale = [text for text in record.filters if text not in wanted]
        if stale and await self._unsubscribe(
            client, connection, stale, patience_s=self._settings.mqtt.connect_timeout.total_seconds()
        ):
            log.info("mqtt_filters_left", session=self.plan.name, filters=stale)
            # Both may have changed meanwhile: later SUBSCRIBEs came behind this UNSUBSCRIBE.
            record = registry.get(self.plan.client_id) or record
            wanted = tuple(subscription.filter for subscription in self.plan.subscriptions)
            left = tuple(text for text in record.filters if text in wanted or text not in stale)
            try:
                registry.record([replace(record, filters=left)])
            except OSError as error:  # the next connect unsubscribes them again
                log.warning("session_record_kept", client_id=self.plan.client_id, error=words(error))

    def _close(self) -> None:
        """Drop connection and client, and add what they counted to the session's totals.

        The flush ends the open span, which may have packet ids of this connection."""
        if self._data_path.lost is not None:
            self._data_path.lost.left(self.plan.client_id)  # notes when it was disconnected
        connection, self._connection = self._connection, None
        client, self._client = self._client, None
        self._handshake = None
        self._unanswered = 0
        self._leaving.clear()
        if connection is not None:
            connection.close()
            if self._stopping:
                self.left_unacked += connection.returned  # messages that the stop left unacknowledged
            self._acknowledged += connection.acknowledged
            self._received_bytes += connection.received_bytes
            self._data_path.flow.flush()
        elif client is not None and client.stream is not None:
            client.stream.close()
        if client is not None:
            client.drop_callbacks()

    def _announce(self, client: PahoClient, state: str) -> None:
        """Publish the retained status, if the settings have a topic and the broker has not refused it."""
        if self.plan.status_topic is not None and self._may_announce:
            client.on_publish = self._on_announced
            self._unanswered += 1
            client.publish(self.plan.status_topic, self._status(state), qos=1, retain=True)
            client.loop_write()

    def _on_announced(
        self, _client: object, _data: object, _packet_id: int, reason: ReasonCode, _properties: object
    ) -> None:
        """PUBACK of a status: notes that nobody subscribes to it, or that it is refused."""
        self._unanswered -= 1
        if reason.value == NO_MATCHING_SUBSCRIBERS:
            self.unheard += 1
        if reason.is_failure:
            self._status_refused(reasons.words(reason.value))

    def _status_refused(self, reason: str) -> None:
        """Announce nothing more in this life, for some brokers end the connection of who publishes what it may not:
        mosquitto 2.0.11 behind its PUBACK, EMQX with ``deny_action = disconnect``."""
        self._may_announce = False
        log.warning(
            "mqtt_status_refused",
            topic=self.plan.status_topic,
            reason=reason,
            advice="allow this user to publish there and start again, or set mqtt.status.enabled = false",
        )

    def _status(self, state: str) -> bytes:
        """The retained status message. The will is written at the connect, so it has no time of sending."""
        document: dict[str, object] = {
            "state": state,
            "instance": self._settings.instance,
            "worker": self._settings.worker,
            "sessions": self._settings.mqtt.sessions,
        }
        if state != "offline":
            document["time_ms"] = time.time_ns() // 1_000_000
        return json.dumps(document).encode()

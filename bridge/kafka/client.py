"""aiokafka's client with three changes: hedged metadata, a connection for questions, and renewal of connections.

aiokafka asks one broker after another for metadata, each for the whole request time-out, and opens one connection at a
time. In a cluster of three, a frozen broker is the first to be asked in every third request, and then hides a new
leader for 5 s or more. This client asks the next broker after HEDGE_S, asks silent brokers last, and opens the
connection of each broker independently.

A broker handles the requests of a connection in order. With acks=all, a batch that waits for a frozen follower delays
every later request on its connection. A healthy leader with a replica on the frozen broker would then seem frozen too,
and new leaders would stay unknown. So questions have their own connection to each broker (_QUESTIONS).

A broker ends an authenticated session after ``connections.max.reauth.ms`` or the life of the token: it closes the
connection at the next request. Every batch in flight would fail and be sent again. So a connection is replaced after
three quarters of its session. The new one is opened beside the old one and used once it is authenticated. The old one
is closed after its last answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
import structlog
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import StaleMetadata
from aiokafka.protocol.metadata import MetadataRequest

from bridge.kafka.contacts import Contact, Contacts
from bridge.kafka.leaders import Leaders, Metadata
from bridge.kafka.session import SessionConnection, open_connection
from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import GatewayError, forget_frames

if TYPE_CHECKING:
    from bridge.kafka.login import KafkaLogin
    from bridge.kafka.session import Told

    Place = tuple[Any, Any]  # node and connection group

log = structlog.get_logger("kafka")

HEDGE_S = 0.5  # a metadata answer takes milliseconds, and a needless second question costs little
KNOCK_S = 2.0  # a connection takes a round trip
RENEW_AT = (0.7, 0.8)  # range of the share of a session's life after which its connection is replaced, at random
RENEWAL_WAITS_S = (0.2, 5.0)  # between attempts, doubling
_QUESTIONS = ConnectionGroup.COORDINATION
_BOOTSTRAP = "bootstrap"  # aiokafka's name for the connection it keeps until a broker is known
_NO_LOCK = contextlib.nullcontext()


class Client(AIOKafkaClient):  # type: ignore[misc]
    """``AIOKafkaClient`` with some methods replaced; contract tests check that aiokafka still calls them.

    ``options`` are those of ``AIOKafkaClient`` without security, which comes from ``login``. ``contacts`` note which
    broker was asked and which has answered."""

    def __init__(self, login: KafkaLogin, contacts: Contacts | None = None, **options: Any) -> None:
        super().__init__(**options, **login.options())
        self._login = login
        self.contacts = contacts or Contacts()
        self._probing: dict[int, asyncio.Task[None]] = {}  # a probe under way, by node
        self._sync_task: asyncio.Task[None] | None = None  # aiokafka's, which renews metadata
        self.metadata_s = float("-inf")  # when the latest came, by the loop's clock
        self._connecting: dict[object, asyncio.Lock] = {}  # by place: one attempt at a time
        self._asking: dict[object, asyncio.Task[Any]] = {}  # a metadata request under way, by node
        self._again_s = float("-inf")  # metadata are not asked for earlier, by the loop's clock
        self._leaders = Leaders()
        self._silent: set[object] = set()  # nodes that did not answer the last metadata request
        self._renewals: dict[Place, asyncio.TimerHandle | asyncio.Task[None]] = {}  # of the connection in that place
        self._retiring: dict[asyncio.Task[None], SessionConnection] = {}  # replaced; await last answers

    @property
    def connections(self) -> Iterator[SessionConnection]:
        """Every open connection, including replaced ones that wait for their last answers."""
        yield from self._conns.values()
        yield from self._retiring.values()

    @property
    def _get_conn_lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        return _NO_LOCK  # each node has its own lock, taken below

    def has_leader(self, at: TopicPartition) -> bool:
        """Whether a partition has a leader, by the latest metadata."""
        return self.cluster.leader_for_partition(at) not in {None, -1}

    async def bootstrap(self) -> None:
        """Learn the brokers from the first address that answers. Raises KafkaConnectionError when none does."""
        for host, port, _ in self.hosts:
            connection = None
            try:
                connection = await self._open_at(host, port)
                metadata = await connection.send(MetadataRequest([]))
            except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
                forget_frames(error)
                at, text = f"{host}:{port}", words(error)
                log.debug("bootstrap_failed", address=at, error=text)  # the caller asks again to find the reason
                if connection is not None:
                    connection.close()
                continue
            self.cluster.update_metadata(metadata)
            self.metadata_s = asyncio.get_running_loop().time()
            if self.cluster.brokers():
                connection.close()
            else:  # a starting cluster: this connection is asked again
                self._conns[_BOOTSTRAP, ConnectionGroup.DEFAULT] = connection
            break
        else:
            addresses = ", ".join(f"{host}:{port}" for host, port, _ in self.hosts)
            raise kafka_errors.KafkaConnectionError(f"no broker answers at {addresses}")
        if self._sync_task is None:
            self._sync_task = asyncio.get_running_loop().create_task(self._md_synchronizer())

    async def _get_conn(self, node_id: object, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        """aiokafka's: the open connection to a node, or a new one; None when that fails, which is logged."""
        connection = self._conns.get((node_id, group))
        if connection is not None and connection.connected():
            return connection
        del no_hint
        place = (node_id, group)
        async with self._connecting.setdefault(place, asyncio.Lock()):
            connection = self._conns.get(place)
            if connection is not None and connection.connected():
                return connection
            self._conns.pop(place, None)
            try:
                connection = await self._open(node_id)
            except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
                forget_frames(error)
                text = words(error)
                self.contacts.failed(node_id, error)
                log.warning("broker_not_connected", broker=node_id, error=text, repeat_key=node_id)
                self.force_metadata_update()  # its address may have changed
                return None
            self._put(place, connection)
            return connection

    def ask(self, node_id: object, request: Any, told: Told) -> SessionConnection | None:
        """``SessionConnection.ask`` on the connection for batches, which is returned. None without one: ``ready`` opens
        it."""
        connection: SessionConnection | None = self._conns.get((node_id, ConnectionGroup.DEFAULT))
        if connection is None or not connection.connected():
            return None
        connection.ask(request, told)
        return connection

    async def _open(self, node_id: Any) -> SessionConnection:
        """A new connection, authenticated. Raises OSError, TimeoutError and KafkaError."""
        broker = self.cluster.broker_metadata(node_id)
        if broker is None:
            raise StaleMetadata(f"broker {node_id} is not in the present metadata")
        return await self._open_at(broker.host, broker.port)

    async def _open_at(self, host: str, port: int) -> SessionConnection:
        """A new connection to an address, authenticated. Raises as ``_open``."""
        return await open_connection(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
            on_close=self._on_connection_closed,
            max_idle_ms=self._connections_max_idle_ms,
            **self._login.options(),
        )

    async def _knock(self, contact: Contact) -> None:
        """Test whether the machine of a silent broker accepts connections for it: then its process is frozen.

        Raises OSError and TimeoutError."""
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(contact.host, contact.port)
        writer.close()
        if contact.asked_ns:
            contact.accepts = True

    # --- renewal -----------------------------------------------------------------------------------

    def _put(self, place: Place, connection: SessionConnection) -> None:
        """Use a connection from now on, and schedule its replacement."""
        self._conns[place] = connection
        earlier = self._renewals.pop(place, None)
        if earlier is not None and earlier is not asyncio.current_task():
            earlier.cancel()
        ends_ns = _ends_ns(connection)
        if ends_ns is not None:
            share = random.uniform(*RENEW_AT)  # noqa: S311 - for spreading, not for secrets
            wait_s = (connection.began_ns + share * (ends_ns - connection.began_ns) - time.monotonic_ns()) / 1e9
            loop = asyncio.get_running_loop()
            self._renewals[place] = loop.call_later(max(wait_s, 0), self._begin_renewal, place, connection)

    def _begin_renewal(self, place: Place, old: SessionConnection) -> None:
        self._renewals[place] = asyncio.get_running_loop().create_task(self._renew(place, old))

    async def _renew(self, place: Place, old: SessionConnection) -> None:
        """Replace a connection; repeat this until it succeeds or the connection is closed."""
        wait_s, longest_s = RENEWAL_WAITS_S
        while self._conns.get(place) is old and old.connected():
            try:
                if await self._worth_it(old):
                    connection = await self._open(place[0])
                    if self._conns.get(place) is not old:  # it broke and was replaced meanwhile
                        connection.close()
                        return
                    self._put(place, connection)
                    self._retire(old)
                    return
            except (OSError, TimeoutError, kafka_errors.KafkaError, GatewayError) as error:
                forget_frames(error)
                log.warning(
                    "broker_connection_not_renewed",
                    broker=place[0],
                    error=words(error),
                    consequence="the present one is used for as long as the broker takes it; tried again",
                    repeat_key=place[0],
                )
                if self._login.not_renewed is not None:
                    self._login.not_renewed()
            except Exception:  # no task awaits this one, so the failure would be silent
                log.exception("renewal_defect", broker=place[0])
                return
            left_s = ((_ends_ns(old) or 0) - time.monotonic_ns()) / 1e9
            await asyncio.sleep(min(wait_s, max(left_s / 4, 0.05)) if left_s > 0 else wait_s)
            wait_s = min(2 * wait_s, longest_s)

    async def _worth_it(self, old: SessionConnection) -> bool:
        """Whether a new connection could last longer: not if both end with the same token.

        Raises GatewayError if there is no token."""
        shown = old.credential
        if shown is None or self._login.tokens is None or shown.expires_at_ns is None:
            return True
        if (await self._login.tokens.current()).number != shown.number:
            return True
        ends_ns = old.session_ends_ns
        return ends_ns is not None and ends_ns + 1_000_000_000 < shown.expires_at_ns

    def _retire(self, old: SessionConnection) -> None:
        task = asyncio.get_running_loop().create_task(self._close_when_answered(old))
        self._retiring[task] = old
        task.add_done_callback(self._retiring.pop)

    async def _close_when_answered(self, old: SessionConnection) -> None:
        answers = [answer for _, _, answer in old._requests]
        if answers:
            await asyncio.wait(answers, timeout=old.muted_s + self._request_timeout_ms / 1000)
        old.close()

    # --- metadata ----------------------------------------------------------------------------------

    async def _metadata_update(self, cluster_metadata: Any, topics: Iterable[str]) -> bool:
        """aiokafka's: ask for metadata of these topics (none: of all) and take them. True when they came.

        Pauses after an answer in which a partition has no leader: a fetcher asks at once again then, and did so 2,700
        times a second."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._again_s - loop.time())
        try:
            # False: otherwise brokers with automatic creation would create a missing topic.
            answer = await self._ask_for_metadata(Metadata(list(topics) if topics else None, False))
        except Exception:  # it would end the task that renews metadata, and new leaders would stay unknown
            log.exception("metadata_defect")
            return False
        if answer is None:
            cluster_metadata.failed_update(None)
            return False
        if not answer.brokers:  # a cluster that is starting
            return False
        self._leaders.latest(answer, time.monotonic())
        cluster_metadata.update_metadata(answer)
        self.metadata_s = loop.time()
        is_led = all(row[2] >= 0 for *_, rows in answer.topics for row in rows)
        self._again_s = float("-inf") if is_led else loop.time() + self._retry_backoff
        bootstrap = self._conns.pop((_BOOTSTRAP, ConnectionGroup.DEFAULT), None)
        if bootstrap is not None:
            bootstrap.close()
        return True

    async def _ask_for_metadata(self, request: MetadataRequest) -> Any:
        """The first answer of any broker; None if all failed."""
        nodes: list[object] = [broker.nodeId for broker in self.cluster.brokers()]
        if (_BOOTSTRAP, ConnectionGroup.DEFAULT) in self._conns:
            nodes.append(_BOOTSTRAP)
        random.shuffle(nodes)
        nodes.sort(key=lambda node: node in self._silent)  # a stable sort: the others stay in random order
        waiting: dict[asyncio.Task[Any], object] = {}
        while nodes or waiting:
            if nodes:
                node = nodes.pop(0)
                if node in self._asking:
                    continue  # its last answer is still due and would come first
                task = self._asking[node] = asyncio.get_running_loop().create_task(self._ask(node, request))
                task.add_done_callback(partial(self._asked, node))
                waiting[task] = node
            done, _ = await asyncio.wait(
                waiting, timeout=HEDGE_S if nodes else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                node = waiting.pop(task)
                if (answer := task.result()) is not None:
                    self._silent = (self._silent | set(waiting.values())) - {node}
                    return answer
                self._silent.add(node)
        return None

    async def _ask(self, node: object, request: MetadataRequest) -> Any:
        """The answer of one node to a metadata request; None when it gave none, which is noted and logged."""
        group = ConnectionGroup.DEFAULT if node == _BOOTSTRAP else _QUESTIONS
        if (standing := self._conns.get((node, group))) is not None and standing.muted_s:
            await asyncio.sleep(standing.muted_s)  # a quota of requests, at most a second
        self.contacts.asked(node)
        connection = await self._get_conn(node, group=group)
        if connection is None:
            return None
        try:
            answer = await connection.send(request)
        except (kafka_errors.KafkaError, TimeoutError) as error:
            forget_frames(error)
            self.contacts.failed(node, error)
            log.warning("metadata_failed", broker=node, error=words(error), repeat_key=node)
            return None

        self.contacts.answered(node)
        return answer

    def _asked(self, node: object, _task: asyncio.Task[Any]) -> None:
        del self._asking[node]

    # --- probes ------------------------------------------------------------------------------------

    def connected(self, node: int) -> bool:
        """Whether there is a connection to a broker. The broker may be silent."""
        found = (self._conns.get((node, group)) for group in (ConnectionGroup.DEFAULT, _QUESTIONS))
        return any(connection is not None and connection.connected() for connection in found)

    def probe(self, contact: Contact) -> None:
        """Send a small request to a broker, so that the contacts know whether it answers. Does not block."""
        if contact.broker not in self._probing:
            task = asyncio.get_running_loop().create_task(self._probe(contact))
            self._probing[contact.broker] = task
            task.add_done_callback(lambda _: self._probing.pop(contact.broker))

    async def _probe(self, contact: Contact) -> None:
        """Send a broker a small request, and note for the contacts whether it answered."""
        node, own = contact.broker, None
        connection = self._conns.get((node, _QUESTIONS))
        if connection is not None and connection.muted_s:
            return
        self.contacts.asked(node)
        try:
            if connection is None or not connection.connected():
                await self._knock(contact)
                # A connection of its own. The next metadata request opens the one for questions if needed.
                connection = own = await self._open_at(contact.host, contact.port)
            await connection.send(MetadataRequest([]))
        except (OSError, TimeoutError, kafka_errors.KafkaError, GatewayError) as error:
            forget_frames(error)
            self.contacts.failed(node, error)
        else:
            self.contacts.answered(node)
        finally:
            if own is not None:
                own.close()

    async def close(self) -> None:
        """Close every connection, and end the tasks of probes, questions and renewals."""
        renewals = list(self._renewals.values())
        self._renewals.clear()
        for renewal in renewals:
            renewal.cancel()
        for connection in self._retiring.values():
            connection.close()
        renewing = [one for one in renewals if isinstance(one, asyncio.Task)]
        await end_tasks(*self._asking.values(), *self._probing.values(), *self._retiring, *renewing)
        await super().close()


def _ends_ns(connection: SessionConnection) -> int | None:
    """When the broker may end a connection's session: as it reported, or when the token expires."""
    expires_ns = connection.credential.expires_at_ns if connection.credential is not None else None
    ends = [moment for moment in (connection.session_ends_ns, expires_ns) if moment is not None]
    return min(ends, default=None)

"""A member of a consumer group, with commits that carry a text.

The group's protocol is our own, on aiokafka's client; aiokafka's consumer only fetches. What aiokafka 0.14's own group
lacks, each with a contract test of this one (tests/integration/test_kafka_group.py):

- It is eager: every rebalance takes all partitions from all members. Here only partitions that move stop (KIP-429).
- Its heartbeats and commits have no instance id, so a rival with the same id looks like an expired session.
- Its ``committed()`` drops the text of a commit, and its commits do not say which partition's text was too large.
- It swallows a listener's errors. Here they end ``read``.
- It leaves the group when nothing is fetched for 300 s, and everything may be paused for longer.
- It goes on silently at the first record left when Kafka deleted records unread. The listener is told here.

kafka-python 3.0.12 is cooperative and sends its instance id. Its commit does not say which text was too large either,
and its connections know neither our tokens nor their renewal. In a thread beside this loop it takes 29 CPU seconds for
a million records of 200 bytes, and 620 at 1,000 records a second. aiokafka's group takes 1.8 and 240 to 300. This one,
with its records made ours, takes 3.4 to 4.3 and 246. Latencies were alike: 0.5 to 1.3 ms in the median. (Four
partitions, one Kafka on the same two cores.) At 1,000 a second nearly every record is a request of its own. A pause of
2 ms between two reads halved that, and raised the median to 5.6 ms, so there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import aiokafka.errors as kafka_errors
import structlog
from aiokafka import TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

from bridge.commands.ports import Committed
from bridge.errors import BridgeError, RefusedError, TopicMissingError, UnreachableError
from bridge.kafka.client import Client
from bridge.kafka.connection import (
    REFUSED,
    connection_options,
    make_consumer,
    read_failure,
    stop_consumer,
    why_unreachable,
)
from bridge.kafka.group_admin import FIRST_LOOKUP_S, OVER, RETRY_S, find_coordinator, group_refused
from bridge.kafka.group_protocol import (
    PROTOCOL,
    Heartbeat,
    LeaveGroup,
    OffsetCommit,
    Question,
    assignment,
    by_topic,
    read_assignment,
    read_subscription,
    share,
    subscription,
)
from bridge.kafka.login import KafkaLogin
from bridge.kafka.reader import FETCH_BYTES, POLL_MS, POLL_RECORDS, logged
from bridge.waiting import end_tasks, until_set
from config.error_words import words

if TYPE_CHECKING:
    from bridge.commands.ports import Partition, PartitionListener
    from bridge.dead_letters.reading import LoggedRecord
    from config.settings import KafkaSettings

log = structlog.get_logger("kafka")

SESSION_S: Final = 15.0  # without a heartbeat for so long the partitions are another member's
REBALANCE_S: Final = 15.0  # for each member to join again; above REVOKED_S
REVOKED_S: Final = 6.0  # for the listener, which promised 5
HEARTBEAT_S: Final = 1.0  # also how soon a member notices a rebalance
READ_S: Final = 60.0  # a member whose ``read`` was not called for so long sends no more heartbeats
TROUBLE_S: Final = 15.0  # without an error for so long all partitions can be read
FETCH_WAIT_MS: Final = 200  # a partition that was paused or assigned waits for the broker's answer to the last fetch
_JOINS: Final = "joins"  # their own connection: a broker answers JoinGroup late, and until then nothing else on it


class _AgainError(Exception):
    """The group's coordinator cannot do it now."""


class GroupMember:
    """A static member of a consumer group (KIP-345). Belongs to the event loop's thread. Kafka 2.3 or newer.

    ``revoked`` is called for the partitions that move, the others go on. ``lost`` may be called while ``revoked`` is
    awaited. A partition is ``assigned`` after its last owner has committed.

    Args:
        instance: the member's name in the group. It keeps its partitions over a restart within SESSION_S.
        table: the settings' table, for sentences.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        client_id: str,
        *,
        group: str,
        instance: str,
        topics: Sequence[str],
        listener: PartitionListener,
        table: str = "commands",  # of the settings, for sentences
        login: KafkaLogin | None = None,  # None: that of the settings
    ) -> None:
        self._options = connection_options(settings, client_id)
        self._login = login or KafkaLogin(settings)
        self._patience_s = settings.request_timeout.total_seconds()
        self._group, self._instance, self._topics = group, instance, tuple(topics)
        self._listener, self._table = listener, table
        self._consumer: Any = None
        self._coordinator: int | None = None  # node id; None: unknown
        self._member = ""  # the id that the coordinator gave; empty before
        self._generation = -1  # -1: in none
        self._owned: frozenset[Partition] = frozenset()
        # Of what is read: what is owned and not about to be revoked. None: not known yet, the first record's.
        self._positions: dict[TopicPartition, int | None] = {}
        self._assignments = 0  # how often what is read has changed
        self._paused: frozenset[Partition] = frozenset()
        self._counts: dict[str, int] = {}  # the topics' partitions when this member last joined
        self._has_joined = False
        self._rejoin = asyncio.Event()  # set when this member has to join
        self._settled = asyncio.Event()  # not while joining, or giving partitions up
        self._changed = asyncio.Event()  # there is something to read, or an error
        self._committing = asyncio.Lock()  # an earlier commit, tried again, must not follow a later one
        self._expiry: asyncio.TimerHandle | None = None  # calls ``_lose`` when the session ends
        self.trouble = ""  # why some partition cannot be read, as a sentence
        self._trouble_s = 0.0  # when that was last seen
        self._read_s = 0.0  # when ``read`` was last called, by the loop's clock
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = asyncio.Lock()  # a stop during another one waits for it
        self._error: BaseException | None = None  # ended the membership; ``read`` raises it

    @property
    def owned(self) -> frozenset[Partition]:
        return self._owned

    @property
    def positions(self) -> dict[Partition, int]:
        """Where reading goes on, as far as is known: behind what ``read`` returned, ends of transactions that follow,
        and what was taken back. Without what is about to be revoked."""
        return {(at.topic, at.partition): offset for at, offset in self._positions.items() if offset is not None}

    def leaderless(self) -> list[Partition]:
        """This member's partitions that have no leader: nothing of them is read until they have."""
        return sorted(one for one in self._owned if not self._consumer._client.has_leader(TopicPartition(*one)))

    @property
    def is_alive(self) -> bool:
        """Whether the partitions are this member's, as far as time tells: a process that was stopped for SESSION_S
        knows it by this before ``lost`` is called."""
        expiry = self._expiry
        return self._generation >= 0 and expiry is not None and asyncio.get_running_loop().time() < expiry.when()

    async def start(self) -> None:
        """Connect and begin to join. Raises UnreachableError, RefusedError or TopicMissingError."""
        # One sentence of ours says why Kafka cannot be reached, instead of a line for each attempt of the library.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self._consumer = make_consumer(
            self._options,
            self._login,
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        try:
            try:
                await self._consumer.start()
            except kafka_errors.KafkaError as error:
                raise await why_unreachable(self._options, self._login) from error
            await self._look_for_topics()
            await self._look_for_coordinator()
        except BaseException:
            await stop_consumer(self._consumer)
            self._consumer = None
            raise
        self._read_s = asyncio.get_running_loop().time()
        self._rejoin.set()
        for work in (self._stay_joined, self._beat):
            self._tasks.append(asyncio.create_task(self._guarded(work), name=f"group-{work.__name__}"))

    async def stop(self) -> None:
        """Await ``revoked``, then end. The partitions wait SESSION_S for this member to come back. Never raises."""
        async with self._closing:
            await self._leave_and_close(leave=False)

    async def retire(self) -> None:
        """As ``stop``, but the partitions go to other members at once. Never raises."""
        async with self._closing:
            await self._leave_and_close(leave=True)

    # --- reading -----------------------------------------------------------------------------------

    async def read(self) -> Sequence[LoggedRecord]:
        """The next records of all partitions that are not paused, in order within each; waits up to 200 ms, and may be
        empty. Call it again and again, also while all is paused: a member that does not is put out of its group.
        Partitions that were assigned since the call are left to the next one, so that they can be paused before.

        Raises RefusedError when the group cannot go on without an operator."""
        self._read_s = asyncio.get_running_loop().time()
        if self._read_s > self._trouble_s + TROUBLE_S:
            self.trouble = ""
        for at in self._positions:  # also behind ends of transactions and what was taken back, which are never returned
            state = self._consumer._subscription.subscription.assignment.state_value(at)
            if state.has_valid_position:
                self._positions[at] = state.position
        if not self._positions and self._error is None:
            self._changed.clear()
            await until_set(self._changed, POLL_MS / 1000)
            return ()
        batches: Mapping[TopicPartition, list[Any]] = {}
        assignments = self._assignments
        try:
            if self._error is None:
                batches = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
        except kafka_errors.OffsetOutOfRangeError as error:
            if assignments == self._assignments:
                await self._out_of_range(error.args[0])
        except kafka_errors.KafkaError as error:
            if isinstance(error, REFUSED):
                raise read_failure(error, ", ".join(self._topics)) from error
            self.trouble = str(read_failure(error, ", ".join(self._topics)))
            self._trouble_s = self._read_s
            self._note(words(error))
            self._seek()  # aiokafka drops what it had gathered of all partitions when it meets a damaged batch of one
            await asyncio.sleep(RETRY_S)
            batches = await self._read_each()
        if self._error is not None:
            raise self._error
        if assignments != self._assignments:
            # Fetched before, or of partitions that the caller could not pause yet: they are fetched again.
            self._seek()
            return ()
        found: list[LoggedRecord] = []
        for at, records in batches.items():
            if at in self._positions:
                self._positions[at] = records[-1].offset + 1
                found += [logged(record) for record in records]
        return found

    async def _read_each(self) -> Mapping[TopicPartition, list[Any]]:
        """What has been fetched of each partition, but for those that cannot be read."""
        found: dict[TopicPartition, list[Any]] = {}
        for at in list(self._positions):
            try:
                found |= await self._consumer.getmany(at, timeout_ms=0, max_records=POLL_RECORDS)
            except kafka_errors.KafkaError:
                self._seek(at)
        return found

    def pause(self, partitions: Collection[Partition]) -> None:
        """Read only the partitions that are not among these, until the next call."""
        self._paused = frozenset(partitions)
        for at in self._positions:
            if at in self._consumer.paused():
                if at not in self._paused:
                    self._consumer.resume(at)
            elif at in self._paused:
                self._consumer.pause(at)

    async def _out_of_range(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on at the first record that Kafka has, and tell the listener what it deleted before."""
        try:
            firsts = await self._consumer.beginning_offsets(list(positions))
        except kafka_errors.KafkaError:
            return  # the next fetch ends here again
        for at, position in positions.items():
            partition, first = (at.topic, at.partition), firsts[at]
            if self._positions.get(at) != position or partition in self._paused:  # the listener may not know it yet
                continue
            self._positions[at] = first
            self._consumer.seek(at, first)
            if first > position:
                log.error("records_deleted_unread", partition=f"{at.topic}/{at.partition}", records=first - position)
                self._listener.missed(partition, position, first)
            else:
                # Kafka lost its end, in an election of a replica behind the others, or the topic was made anew.
                log.error("offset_beyond_the_end", partition=f"{at.topic}/{at.partition}", offset=position)
                self._listener.lost([partition])
                self._listener.assigned({partition: None})

    def _assign(self) -> None:
        """Fetch what is to be read. Records that were fetched and not read are fetched again."""
        self._assignments += 1
        self._consumer.assign(list(self._positions))
        self._consumer._client.set_topics(self._topics)  # assign() forgets topics of which this member has nothing
        self._seek()
        self.pause(self._paused)
        self._changed.set()

    def _seek(self, only: TopicPartition | None = None) -> None:
        """Fetch from ``_positions`` on, of one partition or all. The fetcher looks for first records, by leader: one
        that is missing holds up no other partition."""
        for at, offset in self._positions.items():
            if only is not None and at != only:
                continue
            if offset is None:
                self._consumer._fetcher.request_offset_reset([at], OffsetResetStrategy.EARLIEST)
            else:
                self._consumer.seek(at, offset)

    # --- committing --------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[Partition, Committed]) -> Collection[Partition]:
        """Commit; returns the partitions whose metadata the broker found too large. Raises UnreachableError when it
        is not known whether Kafka has all, and RefusedError when this member's generation is over, or its partitions
        have changed meanwhile."""
        async with self._committing:
            return await self._commit(offsets)

    async def _commit(self, left: Mapping[Partition, Committed]) -> Collection[Partition]:
        """Commit ``left``. Returns the partitions whose metadata are too large for Kafka."""
        too_large: set[Partition] = set()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience_s
        why = "no answer in time"
        assignments = self._assignments
        while left:
            # One that went and came back may have a later commit, of its owner in between.
            if assignments != self._assignments or not left.keys() <= self._owned:
                raise RefusedError(f"Some partitions are no longer this member's in group {self._group}.")
            topics = [
                (topic, [(number, left[topic, number].offset, -1, left[topic, number].metadata) for number in numbers])
                for topic, numbers in by_topic(left)
            ]
            generation = self._generation
            try:
                answer = await self._ask(
                    Question(OffsetCommit, self._group, generation, self._member, self._instance, topics)
                )
                codes = {(topic, number): code for topic, rows in answer.topics for number, code in rows}
                too_large |= {at for at, code in codes.items() if code in _TOO_LARGE}
                left = {at: left[at] for at, code in codes.items() if code not in {0, *_TOO_LARGE}}
                if any(codes[at] == _UNKNOWN for at in left):
                    until_s = loop.time() - 1  # the next commits of the others do not wait for that topic
                for at in left:
                    self._check(codes[at], generation)
            except (_AgainError, kafka_errors.KafkaError) as error:
                why = words(error)
            if left:
                if loop.time() > until_s:
                    raise UnreachableError(f"Kafka did not take a commit of group {self._group}: {why}.")
                await asyncio.sleep(RETRY_S / 2)
        return too_large

    async def _committed(self, partitions: Collection[Partition]) -> dict[Partition, Committed | None]:
        """What the group has committed of these partitions, None for nothing. Raises as ``_ask`` and ``_check``."""
        answer = await self._ask(OffsetFetchRequest(self._group, by_topic(partitions)))
        self._check(getattr(answer, "error_code", 0), self._generation)
        found: dict[Partition, Committed | None] = {}
        for topic, rows in answer.topics:
            for number, offset, metadata, code in rows:
                self._check(code, self._generation)
                found[topic, number] = None if offset < 0 else Committed(offset, metadata or "")
        return found

    # --- membership --------------------------------------------------------------------------------

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something until the end. Its error ends ``read`` and the membership."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - ``read`` raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the membership with an error, the first of which ``read`` raises."""
        if self._error is None:
            self._error = error
            self._changed.set()
            self._settled.set()
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            self._lose(words(error))

    async def _stay_joined(self) -> None:
        """Join whenever ``_rejoin`` is set, again after an error. Waits while ``read`` is not called."""
        loop = asyncio.get_running_loop()
        while True:
            await self._rejoin.wait()
            if loop.time() - self._read_s > READ_S:
                await asyncio.sleep(RETRY_S)
                continue
            self._rejoin.clear()
            self._settled.clear()
            try:
                await self._join()
            except (_AgainError, kafka_errors.KafkaError):
                self._rejoin.set()
                await asyncio.sleep(RETRY_S)
            finally:
                self._settled.set()

    async def _join(self) -> None:
        counts = self._partition_counts()
        claim = subscription(self._topics, self._owned)
        session_ms, rebalance_ms = round(SESSION_S * 1000), round(REBALANCE_S * 1000)
        joined = await self._ask(
            JoinGroupRequest(
                self._group, session_ms, rebalance_ms, self._member, self._instance, "consumer", [(PROTOCOL, claim)]
            ),
            joining=True,
        )
        if joined.error_code in OVER:
            self._member = ""
            self._lose("the coordinator does not know this member")
            raise _AgainError
        self._check(joined.error_code, -1)
        self._member, self._generation, self._counts = joined.member_id, joined.generation_id, counts
        generation = self._generation
        shares = []
        if joined.members:  # the leader alone gets them; not one that came back and changed nothing
            members = {member: read_subscription(metadata) for member, _, metadata in joined.members}
            shares = [(member, assignment(got)) for member, got in share(members, counts).items()]
        sent_s = asyncio.get_running_loop().time()
        synced = await self._ask(
            SyncGroupRequest(self._group, generation, self._member, self._instance, shares), joining=True
        )
        if synced.error_code in OVER:
            self._lose("the coordinator has begun another generation")
        self._check(synced.error_code, -1)
        self._is_alive(sent_s)
        granted = read_assignment(synced.member_assignment)
        if gone := self._owned - granted:
            await self._give_up(gone)
            self._rejoin.set()  # now they can be another member's
        if new := granted - self._owned:
            committed = await self._committed(new)
            if self._generation != generation:
                raise _AgainError  # lost meanwhile
            self._owned |= new
            for partition in new:
                before = committed.get(partition)
                self._positions[TopicPartition(*partition)] = None if before is None else before.offset
            self._listener.assigned({partition: committed.get(partition) for partition in sorted(new)})
            self._assign()
        if not self._has_joined:
            # A member that comes back gets its last share, without a rebalance. What it was about to give up when it
            # crashed is nobody's until there is one.
            self._has_joined = True
            self._rejoin.set()
        log.info("group_joined", group=self._group, generation=generation, partitions=len(self._owned))

    async def _give_up(self, partitions: frozenset[Partition]) -> None:
        """Let the listener finish with partitions, for REVOKED_S at most; after that they are not owned."""
        self._positions = {at: offset for at, offset in self._positions.items() if at not in partitions}
        self._assign()
        try:
            async with asyncio.timeout(REVOKED_S) as limit:
                await self._listener.revoked(sorted(partitions))
        except TimeoutError:
            if not limit.expired():
                raise
            log.error("partitions_not_given_up_in_time", group=self._group, limit_s=REVOKED_S)  # noqa: TRY400
            if left := partitions & self._owned:
                self._listener.lost(sorted(left))
        self._owned -= partitions

    def _lose(self, why: str) -> None:
        """Note that this member's generation is over: its partitions are lost."""
        self._generation = -1
        if self._expiry is not None:
            self._expiry.cancel()
        self._rejoin.set()
        owned, self._owned = self._owned, frozenset()
        if owned:
            self._positions = {}
            self._assign()
            log.warning("partitions_lost", group=self._group, partitions=len(owned), reason=why)
            try:
                self._listener.lost(sorted(owned))
            except Exception as error:  # noqa: BLE001 - ``read`` raises it
                self._fail(error)

    def _is_alive(self, sent_s: float) -> None:
        """Note that the coordinator answered a request sent at ``sent_s``: the session ends SESSION_S later."""
        if self._expiry is not None:
            self._expiry.cancel()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_at(sent_s + SESSION_S, self._lose, f"no heartbeat was answered for {SESSION_S:g} s")

    async def _beat(self) -> None:
        """Send heartbeats, and ask to join again when the group or a topic's partitions change."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._generation < 0 or loop.time() - self._read_s > READ_S:
                continue
            if self._partition_counts() != self._counts:
                self._rejoin.set()
            sent_s, generation = loop.time(), self._generation
            with contextlib.suppress(_AgainError, kafka_errors.KafkaError):
                answer = await self._ask(Question(Heartbeat, self._group, generation, self._member, self._instance))
                if answer.error_code in {0, _REBALANCING} and self._generation == generation:
                    self._is_alive(sent_s)
                if answer.error_code == _REBALANCING and self._settled.is_set():
                    self._rejoin.set()
                elif answer.error_code != _REBALANCING:
                    self._check(answer.error_code, generation)

    def _partition_counts(self) -> dict[str, int]:
        """The topics' partitions. They never get fewer: metadata leave a topic out when its leader is just changing."""
        cluster = self._consumer._client.cluster
        found = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in self._topics}
        return {topic: max(count, self._counts.get(topic, 0)) for topic, count in found.items()}

    # --- the coordinator ---------------------------------------------------------------------------

    async def _ask(self, request: Any, *, joining: bool = False) -> Any:
        """The coordinator's answer. Raises aiokafka's KafkaError, and RefusedError."""
        client: Client = self._consumer._client
        if self._coordinator is None:
            self._coordinator = await find_coordinator(client, self._group)
        node, group = self._coordinator, _JOINS if joining else ConnectionGroup.COORDINATION
        try:
            if joining and await client.ready(node, group=group):
                client._conns[node, group]._patience_s = REBALANCE_S + self._patience_s
            return await client.send(node, request, group=group)
        except kafka_errors.KafkaError as error:
            self._coordinator = None
            self._note(words(error))
            raise

    def _note(self, error: str) -> None:
        log.warning("group_request_failed", group=self._group, error=error, repeat_key=self._group)

    def _check(self, code: int, generation: int) -> None:
        """Raises _AgainError or RefusedError unless ``code`` is 0. ``generation`` is the request's, -1 if it joins."""
        if code == 0:
            return
        if code in OVER and generation == self._generation and self._settled.is_set():
            self._lose("the coordinator has begun another generation")
        if code in _MOVED:
            self._coordinator = None
        if (sentence := self._refusal(code)) is not None:
            error = RefusedError(sentence)
            self._fail(error)
            raise error
        text = f"{kafka_errors.for_code(code).__name__} ({code})"
        if code != _REBALANCING:
            self._note(text)
        raise _AgainError(text)

    def _refusal(self, code: int) -> str | None:
        """The sentence for an error code that only an operator can cure; None for others."""
        group, table = self._group, self._table
        match code:
            case 82:
                return (
                    f"Another process has joined group {group} as {self._instance}, so this one must stop. Two "
                    f"gateways have the same instance name, or an earlier worker still runs. Check the instance names "
                    f"of all gateways that have {table} with this group."
                )
            case 23:
                return (
                    f"Group {group} has members of another kind. Give {table} a group that no other application uses."
                )
            case 26:
                return (
                    f"Kafka does not allow a session timeout of {SESSION_S:g} s in group {group}. Check the brokers' "
                    "group.min.session.timeout.ms and group.max.session.timeout.ms."
                )
            case 24 | 81:
                return f"Kafka does not take this member into group {group}: {kafka_errors.for_code(code).__name__}."
            case 29:
                return f"Kafka does not let us commit offsets of {', '.join(self._topics)}. Check the ACLs: Read on it."
            case 30:
                return group_refused(group)
        return None

    async def _look_for_topics(self) -> None:
        """Return once metadata have all topics. Raises UnreachableError, RefusedError, TopicMissingError."""
        client: Client = self._consumer._client
        update = client.set_topics(self._topics)
        await asyncio.wait([update], timeout=4 * self._patience_s)
        if not (update.done() and update.result()):
            raise UnreachableError("Kafka gave no metadata; are all brokers down?")
        if refused := sorted(client.cluster.unauthorized_topics.intersection(self._topics)):
            raise RefusedError(
                f"Kafka does not let us describe topic {', '.join(refused)}. Check the ACLs: Describe and Read on it."
            )
        if missing := sorted(topic for topic, count in self._partition_counts().items() if not count):
            raise TopicMissingError(
                f"Kafka has no topic {', '.join(missing)}. Check its name, and that the addresses are those of the "
                "right cluster."
            )

    async def _look_for_coordinator(self) -> None:
        """Find the group's coordinator; tries for a while. Raises UnreachableError or RefusedError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max(FIRST_LOOKUP_S, self._patience_s)
        while True:
            try:
                self._coordinator = await find_coordinator(self._consumer._client, self._group)
            except kafka_errors.KafkaError as error:
                if loop.time() > until_s:
                    raise UnreachableError(
                        f"Kafka names no coordinator of group {self._group}: {words(error)}."
                    ) from error
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _leave_and_close(self, *, leave: bool) -> None:
        """Give partitions up and close; with ``leave`` tell the group. Kafka's errors are only logged."""
        if self._consumer is None:
            return
        settled = asyncio.ensure_future(self._settled.wait())
        try:
            try:
                await asyncio.wait([settled], timeout=REVOKED_S if self._owned else 0)
            finally:  # also when the caller's time is over: a heartbeat would keep the partitions from others
                await end_tasks(settled, *self._tasks)
                self._settled.set()
            if self._owned:
                await self._give_up(self._owned)
            if leave and self._member:
                await self._ask(Question(LeaveGroup, self._group, [(self._member, self._instance)]))
        except (BridgeError, kafka_errors.KafkaError) as error:
            log.warning("group_not_left", group=self._group, error=words(error))
        except Exception:
            log.exception("group_end_defect", group=self._group)
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            consumer, self._consumer, self._owned = self._consumer, None, frozenset()
            await stop_consumer(consumer)


_REBALANCING: Final = 27
_MOVED: Final = frozenset({14, 15, 16})  # the coordinator is loading, not available, or another broker
_UNKNOWN: Final = 3  # UNKNOWN_TOPIC_OR_PARTITION
_TOO_LARGE: Final = frozenset({12, 28})  # OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE

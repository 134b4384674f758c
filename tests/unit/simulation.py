"""A world for the data path: an MQTT broker and a Kafka in memory, everything between them real, time that jumps.

A seed decides what is published and what goes wrong: Kafka freezes, refuses, loses leaders, answers and incarnations,
is away when a producer starts; topics grow; clocks differ; connections break in mid-packet; the spool's disk fails, is
full or slow; the gateway is killed, or stopped, and starts again on what is left, the disk and the broker's sessions,
perhaps with other settings. Invariants are checked at every acknowledgement and at every look.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from bridge import wire
from bridge.errors import BridgeError, IncarnationError, PoisonedError, TimestampError
from bridge.routing.router import Router
from bridge.wire import DeadLetterReason
from config.settings import RouteSettings
from tests.unit.fake_kafka import DOWN, FakeBatch, FakeKafka, FakePartition, FakeTopic
from tests.unit.fake_spool import FakeDisk
from tests.unit.simulated_gateway import DEAD_LETTERS, PARTS, Gateway, Plan
from tests.unit.simulated_mqtt import MAX_RECORD, Message, Session

if TYPE_CHECKING:
    from bridge.ports import StoredRecord

    Wrong = Callable[[], object]

ROUTES = (
    {"name": "slow", "filters": ["devices/+/event"], "topic": "events", "key": "${payload.id}"},
    {"name": "keyless", "filters": ["devices/+/log"], "topic": "logs", "key": "", "metadata_headers": ["topic"]},
    {"name": "state", "filters": ["devices/+/state"], "topic": "state", "empty_payload": "tombstone"},
    {"name": "split", "filters": ["devices/+/multi"], "topic": "parts"},
    {"name": "made", "filters": ["sites/#"], "topic": "site-${topic[1]}", "allowed_topics": "site-[a-z]+"},
    {"name": "fast", "filters": ["devices/#"], "topic": "telemetry", "metadata_headers": ["topic"]},
)
_NUMBER = re.compile(rb"\d{7}")


def number_of(record: StoredRecord) -> int:
    """Which message a record came from."""
    value = dict(record.headers).get("mqtt.user.n")
    if value is None:
        found = _NUMBER.search(record.value or b"")
        assert found, record
        value = found[0]
    return int(value)


def part_of(record: StoredRecord) -> bytes | None:
    """Which of how many records of its message it is; None where it is the only one."""
    headers = dict(record.headers)
    return headers.get(wire.DLQ_PART) or headers.get(PARTS)


class World:
    """Everything, made from a seed. ``misfortune`` False: nothing goes wrong, and each record is there exactly once.

    ``beside``: topics whose records are no messages."""

    beside: frozenset[str] = frozenset()

    def __init__(self, seed: int, *, misfortune: bool = True) -> None:
        self.random = random.Random(seed)
        self.misfortune = misfortune
        kafka = self.kafka = FakeKafka(batch_bytes=4000, request_timeout_s=2.0)
        for name, partitions in (
            ("telemetry", 4), ("events", 2), ("logs", 3), ("state", 1), ("site-oslo", 2), ("parts", 3),
        ):  # fmt: skip
            kafka.topic(name, partitions, reject=self.reject)
        kafka.topic(DEAD_LETTERS, 2, reject=self.reject_dead_letters)
        if misfortune:
            kafka.latency_s = lambda: self.random.choice((0.001, 0.005, 0.05))
            kafka.lose = lambda: self.unlucky(0.005)
            kafka.late = lambda: self.unlucky(0.5)
        self.disk = FakeDisk()
        self.disk_fails = False
        self.fsync_s = 0.0
        self.clock_wrong = False
        self.spool_bytes = self.random.choice((30_000, 1 << 30))
        self.remembered: dict[str, int] = {}  # partitions of topics, on disk
        self._plan = self._make_plan() if misfortune else Plan(after_ns=1 << 62)
        self.lives = 0
        self.restarts = 0
        self.end_wanted = ""  # how the gateway is to end: "crash" or "restart"
        self.messages: list[Message] = []
        self._read: dict[tuple[str, int], int] = defaultdict(int)  # records of each partition looked at so far
        self._durable: dict[str, set[int]] = defaultdict(set)
        self._parts: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        self._rows = 0  # of the disk, looked at so far
        self._spooled: set[int] = set()
        self._spooled_parts: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        self.router = Router(
            [RouteSettings.model_validate(route) for route in ROUTES], instance="gw", reserved_topics=[DEAD_LETTERS]
        )
        self.fatal: list[BaseException] = []
        self._begin_life()
        self.sessions = [Session(self, number) for number in range(3)]

    def _make_plan(self) -> Plan:
        choose = self.random.choice
        return Plan(
            after_ns=choose((1_000_000_000, 1_000_000_000, 0)),
            acknowledges=choose((True, True, False)),
            memory_bytes=choose((300_000, 60_000)),
            ceiling=choose((True, False)),
        )

    def _begin_life(self) -> None:
        """Everything that one process has, made anew: what an earlier one had is gone with it. Settings may have
        changed meanwhile, and topics grown."""
        self.lives += 1
        plan = self._plan if self.lives == 1 else replace(
            self._plan, takes=self.random.random() < 0.9, batch_bytes=self.random.choice((4000, 1500)),
            acknowledges=self.random.choice((True, True, False)),
        )  # fmt: skip
        self.kafka.batch_bytes = plan.batch_bytes
        self.gateway = Gateway(self, plan)
        if self.misfortune:
            self.gateway.spool.latency_s = lambda: self.random.choice((0.0005, 0.002, 0.05))
            self.gateway.spool.fails = lambda: self.disk_fails
            self.gateway.spool.fsync_s = self.fsync_s
        self._seen = self.gateway.ledger.snapshot()

    async def _start_life(self) -> None:
        await self.gateway.start()
        for session in self.sessions:
            session.connect()

    async def _end_life(self, patience_s: float = 0.0) -> None:
        await self.gateway.end(patience_s)

    async def crash(self) -> None:
        """The process is killed, and started again: nothing of it is left but the disk."""
        self.end_wanted = ""
        self.gateway.spool.crashed = True
        await self._live_again(0.0)

    async def restart(self) -> None:
        """The process is told to stop, and started again: what was read goes where it goes, if that takes no time."""
        self.end_wanted = ""
        self.restarts += 1
        await self.gateway.drain(self.random.choice((0.05, 2.0)))
        await self._live_again(0.2)

    async def _live_again(self, patience_s: float) -> None:
        for session in self.sessions:
            session.cut()
        await self._end_life(patience_s)
        self.look()
        self._begin_life()
        for session in self.sessions:
            session.begin_life()
        await self._start_life()

    # --- what is published

    def unlucky(self, chance: float) -> bool:
        return self.misfortune and self.random.random() < chance

    def make_message(self) -> Message:
        number, rnd = len(self.messages), self.random
        device, qos = rnd.randrange(6), rnd.choice((0, 1, 1, 1, 2))
        body = b"%07d:" % number * rnd.choice((1, 1, 1, 5, 30))
        kind = rnd.choices(
            ("telemetry", "event", "log", "state", "tombstone", "site", "poison", "huge", "nowhere", "no route",
             "no id", "multi", "nothing"),
            (30, 10, 10, 5, 3, 10, 2, 1, 2, 3, 1, 8, 2),
        )[0]  # fmt: skip
        topic, payload, fate = {
            "telemetry": (f"devices/{device}/telemetry", body, "telemetry"),
            "event": (f"devices/{device}/event", b'{"id": "%d", "n": "%07d"}' % (device, number), "events"),
            "log": (f"devices/{device}/log", body, "logs"),
            "state": (f"devices/{device}/state", body, "state"),
            "tombstone": (f"devices/{device}/state", b"", "state"),
            "site": (f"sites/oslo/{device}", body, "site-oslo"),
            "poison": (f"devices/{device}/telemetry", b"poison " + body, DEAD_LETTERS),
            "huge": (f"devices/{device}/telemetry", b"%07d:" % number * (MAX_RECORD // 8 + 100), DEAD_LETTERS),
            "nowhere": (f"sites/nowhere/{device}", body, DEAD_LETTERS),
            "no route": (f"elsewhere/{device}", body, None),
            "no id": (f"sites/NOT-ALLOWED/{device}", body, DEAD_LETTERS),
            "multi": (f"devices/{device}/multi", b"%07d|%d" % (number, rnd.randint(1, 4)) + b"." * len(body), "parts"),
            "nothing": (f"devices/{device}/multi", b"%07d|0" % number, None),
        }[kind]
        message = Message(number, topic, qos, payload, fate)
        self.messages.append(message)
        return message

    def reject(self, records: list[StoredRecord]) -> BridgeError | None:
        poison = tuple(n for n, record in enumerate(records) if (record.value or b"").startswith(b"poison"))
        if poison:
            named = poison if self.unlucky(0.5) else ()
            return PoisonedError("Kafka will not take it.", DeadLetterReason.INVALID_RECORD, named)
        if self.clock_wrong and self.unlucky(0.7):
            named = tuple(n for n in range(len(records)) if self.unlucky(0.5))
            return TimestampError("A timestamp is out of range.", named)
        if self.unlucky(0.005):
            return IncarnationError("UnknownProducerId")
        return None

    def reject_dead_letters(self, records: list[StoredRecord]) -> BridgeError | None:
        if self.clock_wrong and self.unlucky(0.7):
            return TimestampError("A timestamp is out of range.", (0,) if len(records) > 1 else ())
        return None

    # --- what goes wrong

    def misfortune_of(self, topic: FakeTopic, partition: FakePartition, session: Session) -> tuple[Wrong, Wrong]:
        """Something that goes wrong, and how it comes right again."""
        kafka = self.kafka
        which = self.random.choice((
            "frozen", "leaderless", "refused", "unreachable", "broken", "broken", "disk", "slow", "clock",
            "killed", "stopped", "grown",
        ))  # fmt: skip
        match which:
            case "frozen":
                return kafka.freeze, kafka.thaw
            case "leaderless":
                return partial(setattr, partition, "has_leader", False), partial(setattr, partition, "has_leader", True)
            case "refused":
                return partial(setattr, topic, "refused", True), partial(setattr, topic, "refused", False)
            case "unreachable":
                return partial(setattr, kafka, "unreachable", DOWN), partial(setattr, kafka, "unreachable", None)
            case "disk":
                return partial(setattr, self, "disk_fails", True), partial(setattr, self, "disk_fails", False)
            case "slow":
                return partial(self.slow_down, self.random.choice((0.3, 1.0, 3.0))), partial(self.slow_down, 0.0)
            case "clock":
                return partial(setattr, self, "clock_wrong", True), partial(setattr, self, "clock_wrong", False)
            case "killed":
                return partial(setattr, self, "end_wanted", "crash"), lambda: None
            case "stopped":
                return partial(setattr, self, "end_wanted", "restart"), lambda: None
            case "grown":
                names = sorted(self.kafka.topics.keys() - self.beside)
                return partial(kafka.topics[self.random.choice(names)].partitions.append, FakePartition()), lambda: None
            case _:
                return session.break_off, lambda: None

    def slow_down(self, fsync_s: float) -> None:
        self.fsync_s = fsync_s
        self.gateway.spool.fsync_s = fsync_s

    async def go_wrong(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            topic = self.random.choice(list(self.kafka.topics.values()))
            wrong, right = self.misfortune_of(
                topic, self.random.choice(topic.partitions), self.random.choice(self.sessions)
            )
            wrong()
            try:
                await asyncio.sleep(self.random.choice((0.01, 0.1, 1.0, 12.0)))
            finally:
                right()

    # --- what must hold

    def look(self) -> None:
        """Take note of what Kafka has got since the last look."""
        for name, topic in self.kafka.topics.items():
            for at, partition in enumerate(topic.partitions if name not in self.beside else ()):
                for record in partition.log[self._read[name, at] :]:
                    number = number_of(record)
                    part = part_of(record)
                    if part is None:
                        self._durable[name].add(number)
                    else:
                        count = int(part.split(b"/")[1])
                        self._parts[number, count].add(part)
                        if len(self._parts[number, count]) == count:
                            self._durable[name].add(number)
                self._read[name, at] = len(partition.log)
        for row_id, row in self.disk.since(self._rows):
            self._rows = row_id
            for record in FakeBatch.restored(row.data).stored:
                number = number_of(record)
                assert self.gateway.plan.acknowledges or row.qos == 0, "on disk, although only Kafka acknowledges"
                part = part_of(record)
                if part is None:
                    self._spooled.add(number)
                else:
                    self._spooled_parts[number, int(part.split(b"/")[1])].add(part)

    def check_durable(self, message: Message) -> None:
        if message.fate is None:
            return
        self.look()
        if message.number in self._durable[message.fate] or message.number in self._spooled:
            return
        for (number, count), parts in self._spooled_parts.items():
            if number == message.number and len(parts | self._parts[number, count]) == count:
                return
        raise AssertionError(f"acknowledged before Kafka or the disk had it: {message}")

    def check(self) -> None:
        assert not self.fatal, self.fatal
        snapshot = self.gateway.ledger.snapshot()
        assert snapshot.imbalance == 0, snapshot
        for term in ("received", "recovered", "delivered", "filtered", "dead_lettered", "copies", "returned"):
            assert getattr(snapshot, term) >= getattr(self._seen, term), f"{term} fell: {self._seen}, then {snapshot}"
        self._seen = snapshot
        # The window, and QoS 0 that is read before reading pauses, are what may come on top.
        for group in self.gateway.groups:
            assert group.accumulator.buffered_bytes < self._plan.memory_bytes + 3 * 60_000, "memory"
        assert len(self.kafka.live) <= 1

    def drained(self) -> bool:
        waiting = any(s.queued or s.unacked or s.received for s in self.sessions)
        return not waiting and self.gateway.in_flight() == 0 and not self.disk.batches()

    # --- the run

    async def run(self, count: int) -> None:
        """Publish so many messages, and come to a verdict when all of them have drained."""
        loop = asyncio.get_running_loop()
        jumping = SimpleNamespace(monotonic_ns=lambda: round(loop.time() * 1e9), time_ns=time.time_ns)
        # The functions of the module ``time`` itself: compiled modules take no other.
        with patch("time.monotonic_ns", jumping.monotonic_ns), patch("time.time_ns", jumping.time_ns):
            await self._run(count)

    async def _run(self, count: int) -> None:
        await self._start_life()
        troubles = [asyncio.create_task(self.go_wrong()) for _ in range(2 if self.misfortune else 0)]
        published = 0
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 3600
        while published < count or not self.drained():
            if published < count:
                # A device stays with its session, as a partitioned distribution or hash_topic has it.
                for _ in range(min(self.random.choice((0, 0, 1, 5, 40)), count - published)):
                    message = self.make_message()
                    self.sessions[sum(message.topic.encode()) % 3].queued.append(message)
                    published += 1
            elif loop.time() > deadline_s - 3000:
                for trouble in troubles:
                    trouble.cancel()  # in the end all goes well, and everything drains
            if self.end_wanted:
                await (self.crash() if self.end_wanted == "crash" else self.restart())
            for session in self.sessions:
                if session.connection is None:
                    session.connect()
                session.fill()
            await asyncio.sleep(self.random.choice((0.001, 0.02, 0.3)))
            self.check()
            assert loop.time() < deadline_s, f"does not drain: {self.gateway.ledger}"
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        await self._end_life()
        self.verdict()

    def verdict(self) -> None:
        self.look()
        self.check()
        for accumulator in (self.gateway.spooler.accumulator, *(group.accumulator for group in self.gateway.groups)):
            assert accumulator.buffered_bytes == 0
            assert accumulator.parked_messages == 0
        assert not any(group.flow.paused for group in self.gateway.groups)
        for message in self.messages:
            if message.fate is not None and message.qos:
                assert message.number in self._durable[message.fate], f"missing: {message}"
            for name, numbers in self._durable.items():
                assert name == message.fate or message.number not in numbers, f"{message} is in {name}"
        self.check_order()
        ledger = self.gateway.ledger.snapshot()
        assert min(ledger.as_dict().values()) >= 0, ledger

    def check_order(self) -> None:
        """First occurrences of an MQTT topic's messages are in the order published, except where no key keeps it."""
        for name, topic in self.kafka.topics.items():
            if name in {"logs", DEAD_LETTERS, *self.beside}:
                continue
            for partition in topic.partitions:
                firsts: dict[str, dict[int, None]] = defaultdict(dict)
                for record in partition.log:
                    number = number_of(record)
                    message = self.messages[number]
                    if message.qos:  # QoS 0 and the others are queued apart by many brokers, and by none promised
                        firsts[f"{message.topic} {record.key!r} QoS {message.qos}"][number] = None
                for which, numbers in firsts.items():
                    assert list(numbers) == sorted(numbers), f"{which} out of order in {name}: {list(numbers)}"

    def copies(self) -> int:
        """Records beyond the first of each message, and of each part of one."""
        topics = [topic for name, topic in self.kafka.topics.items() if name not in self.beside]
        records = [record for topic in topics for record in topic.records()]
        return len(records) - len({(number_of(record), part_of(record)) for record in records})

"""The simulation's gateway: everything one process has, wired as a worker wires it, on a Kafka and a disk in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bridge.dead_letters.limit import DeadLetterLimit
from bridge.dead_letters.route_stops import RouteStops
from bridge.errors import TopicMissingError, UnreachableError
from bridge.interceptors import Chain, Chains, Drop, Stage
from bridge.kafka.topic_watch import TopicWatch
from bridge.ledger import Ledger
from bridge.produce.dead_letter import DeadLetterPlan
from bridge.produce.partitions import Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.produce.sender import SenderPolicy
from bridge.produce.spooler import SpoolPolicy
from config.settings import Settings
from gateway.mqtt.flow import Flow
from gateway.mqtt.properties import parse_properties
from tests.unit.data_path import Observer
from tests.unit.fake_spool import FakeSpool
from tests.unit.simulated_mqtt import MAX_RECORD

if TYPE_CHECKING:
    from bridge.produce.batch import Span
    from bridge.record import Record
    from tests.unit.simulation import World

DEAD_LETTERS = "dead-letters"
PARTS = "sim.part"
S = 1_000_000_000
SETTINGS = Settings.model_validate(
    {
        "instance": "gw",
        "routes": [{"name": "another", "filters": ["another"], "topic": "another"}],
        "dead_letter": {"topic": DEAD_LETTERS},
        "kafka": {"max_record_bytes": MAX_RECORD},
        "flow": {"route_cache_entries": 20, "property_cache_entries": 50},
    }
)


@dataclass(frozen=True)
class Plan:
    """The settings of one life."""

    after_ns: int = S
    acknowledges: bool = True
    takes: bool = True
    batch_bytes: int = 4000
    memory_bytes: int = 300_000
    ceiling: bool = False  # on dead letters


class Splitter:
    """An interceptor: a message ``number|count`` becomes so many records with keys of their own, or none."""

    drop_reasons = ("empty",)

    def on_send(self, record: Record) -> Record | list[Record] | Drop:
        number, _, rest = (record.value or b"").partition(b"|")
        count = int(rest[:1])
        if not count:
            return Drop("empty")
        return [
            record.replace(
                key=b"%s-%d" % (record.key or b"", one),
                value=number + rest[1:],
                headers=[*record.headers, (PARTS, b"%d/%d" % (one, count))],
            )
            for one in range(1, count + 1)
        ]


class Group:
    """A session group."""

    def __init__(self, gateway: Gateway) -> None:
        path = gateway.pipeline.group(SETTINGS, gateway.world.router, self._complete, group=None, chains=gateway.chains)
        self.accumulator, self.dispatcher = path.accumulator, path.dispatcher
        self.dead_letters = path.dead_letters
        self.flow = Flow(
            self.accumulator, gateway.sender, gateway.ledger, linger_ns=5_000_000, pacing_ns=1_000_000,
            memory_bytes=gateway.plan.memory_bytes,
        )  # fmt: skip

    def _complete(self, span: Span) -> None:
        self.flow.completed(span)

    def taken(self, route: str) -> int:
        return sum(slot.taken for slot in self.accumulator.slots if slot.route == route)


class Gateway:
    """One life. ``world.remembered`` outlives it, as the disk does: topics, and how many partitions they had."""

    def __init__(self, world: World, plan: Plan) -> None:
        loop = asyncio.get_running_loop()
        self.world, self.plan = world, plan
        self.partitions = Partitions()
        self.ledger = Ledger(self.in_flight)
        self.observer = Observer()
        hooks = PipelineHooks(
            topics=self, parse_properties=parse_properties, filtered=lambda _route, _reason: None,
            failed=world.fatal.append, observer=self.observer, clock_ns=self._now_ns,
            dead_letter_made=lambda route, reason, error, _topic: self.stops.made(route, reason, error),
        )  # fmt: skip
        self.pipeline = Pipeline(self.partitions, self._make_producer, SenderPolicy(10 * S, 3 * S), hooks)
        self.sender = self.pipeline.sender
        self.topics = TopicWatch(
            lambda: self.sender.producer, None, self._now_ns, world.fatal.append, interval_s=1.0, pinned=self._remember
        )  # type: ignore[arg-type]
        limit = DeadLetterLimit(1e6, 0.15 if plan.ceiling else 1.0, 10 * S, 10, 20 * S)
        self.stops = RouteStops(limit, self._now_ns, world.fatal.append)
        self.spool = FakeSpool(world.disk, max_bytes=world.spool_bytes)
        policy = SpoolPolicy(plan.after_ns, plan.acknowledges, 1_000_000, plan.batch_bytes, takes=plan.takes)
        self.spooler = self.pipeline.spool(self.spool, policy, self.ledger)
        self.pipeline.dead_letters(self.spooler.accumulator, DeadLetterPlan.from_settings(SETTINGS))
        stage = Stage(Splitter(), label="split", where="split", policy="dead_letter")
        self.chains = Chains({"split": Chain("split", [stage])})
        self.groups = [Group(self), Group(self)]
        for route in world.router.routes:
            for group in self.groups:
                self.stops.watch(route.name, group.dispatcher, partial(group.taken, route.name))
        self._used = {topic for topic, _ in self.spool.partitions()}
        for topic in self._used:
            self.topics.preset(topic, world.remembered[topic])
        self._loop = loop

    def _now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def _remember(self, topic: str, count: int) -> None:
        if topic not in self._used:
            self.world.remembered[topic] = count

    async def start(self) -> None:
        while True:
            try:
                await self.sender.start()
                break
            except UnreachableError:
                await asyncio.sleep(0.5)
        await self.stops.start()
        self.spooler.opened()
        for queue in list(self.partitions.queues.values()):
            self.sender.resume(queue)

    async def drain(self, patience_s: float) -> None:
        """Read nothing more, and wait a while for what was read to be where it goes."""
        for group in self.groups:
            group.flow.stop_reading()
        try:
            async with asyncio.timeout(patience_s):
                for group in self.groups:
                    await group.flow.drained()
        except TimeoutError:
            pass

    async def end(self, patience_s: float = 0.0) -> None:
        await self.stops.stop(0)
        await self.spooler.close(patience_s=patience_s)
        for group in self.groups:
            group.flow.close()
            await group.dispatcher.close()
        await self.sender.close(patience_s=1)

    def in_flight(self) -> int:
        held = self.partitions.messages() + sum(group.accumulator.settled() for group in self.groups)
        return held + self.spooler.messages()

    def _make_producer(self) -> object:
        made = {topic for topic, _ in self.partitions.queues}
        return self.world.kafka.make_producer(
            {*self.world.router.kafka_topics, DEAD_LETTERS, *self.world.beside, *made}
        )

    # --- bridge.produce.parking.TopicLocator

    def partition_count(self, topic: str) -> int | None:
        return self.topics.partition_count(topic)

    async def locate(self, topic: str) -> int:
        await asyncio.sleep(self.world.random.random())
        if self.world.unlucky(0.3):
            raise UnreachableError("not now")
        producer = self.sender.producer
        producer.watch_topic(topic)
        if not await producer.refresh_metadata():
            raise UnreachableError("no metadata")
        count = self.partition_count(topic)
        if count is None:
            raise TopicMissingError(f"Kafka has no topic {topic}.")
        return count

"""Routes change again and again while messages flow: each message is written once, each device's in order, and the
account balances at every moment. The parts are the worker's own, on a Kafka in memory."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from bridge.dead_letters.limit import DeadLetterLimit
from bridge.dead_letters.route_stops import RouteStops
from bridge.errors import RetriableError
from bridge.intercept.loading import load_chains
from bridge.interceptors import Chains, Drop
from bridge.ledger import Ledger
from bridge.message import MessageView
from bridge.produce.batch import Span
from bridge.produce.partitions import Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.record import Record
from bridge.routing.router import Router
from config.settings import Settings
from gateway.base.lifecycle import State
from gateway.base.metrics import Metrics
from gateway.components.mqtt_side import MqttSide
from gateway.components.session_group import SessionGroup, Shared
from gateway.mqtt.ingest import Ingest
from gateway.mqtt.properties import parse_properties
from gateway.worker.reload import FORMER_S, Reloader, _same_chain
from tests.brokers import packets
from tests.unit.data_path import POLICY, Observer
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import ManualLoop, at_end, in_manual_time

DEVICES = 5
WINDOW = 60


class LoggingKafka(FakeKafka):
    """Tells of each value in the order in which it was written, whatever its partition."""

    told: Callable[[bytes], None]

    def _write(self, request: Any, partition: Any) -> Any:
        before = len(partition.log)
        error = super()._write(request, partition)
        for record in partition.log[before:]:
            self.told(record.value)
        return error


class Topics:
    """The Kafka side of a worker, as a reload sees it: every topic exists."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.locate = AsyncMock(side_effect=RetriableError("not needed"))
        self.try_login = AsyncMock()
        self.missing = AsyncMock(return_value=None)
        self.ensure = AsyncMock(return_value=False)
        self.settle = Mock()

    def partition_count(self, topic: str) -> int | None:
        return self._site.sender.producer.partition_count(topic)

    def routed_topics(self) -> list[str]:
        return sorted({*self._site.mqtt.router.kafka_topics, *self._site.settings.dead_letter_topics})

    def seal(self) -> None:
        self._site.partitions.seal_open()
        self._site.sender.pump()


class Site:
    """One session group on a Kafka in memory; what a reload needs of a ``Worker``."""

    state = State.RUNNING

    def __init__(self, settings: Settings, kafka: LoggingKafka) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualLoop)
        self.settings = settings
        self.written: list[tuple[str, int]] = []  # device and number, in the order in which Kafka took them
        self.fatal: list[BaseException] = []
        self.partitions = Partitions()
        self.ledger = Ledger(self._in_flight)
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
        limit = DeadLetterLimit.from_settings(settings.dead_letter)
        self.route_stops = RouteStops(limit, loop.time_ns, self.fatal.append)
        self.kafka = Topics(self)
        hooks = PipelineHooks(
            topics=self.kafka, parse_properties=parse_properties, filtered=lambda *_: None, failed=self.fatal.append,
            observer=Observer(), clock_ns=loop.time_ns,
            dead_letter_made=lambda route, reason, error, _topic: self.route_stops.made(route, reason, error),
        )  # fmt: skip
        pipeline = Pipeline(self.partitions, lambda: kafka.make_producer(kafka.topics), POLICY, hooks)
        self.sender = pipeline.sender
        kafka.told = self._note
        shared = Shared(
            router, pipeline, self.ledger, Metrics(settings), verb=Mock(), failed=self.fatal.append, registry=Mock(),
            login=Mock(), siblings=Mock(), lost=Mock(), chains=load_chains(settings),
        )  # fmt: skip
        self.mqtt = MqttSide(settings, shared, self.route_stops, retiring=True)
        (self.group,) = self.mqtt.groups
        self.reloader = Reloader(self)
        self._ingest = Ingest(
            self.group.dispatcher, self.group.accumulator, self.group.dead_letters, v5=True, max_packet=10_000,
            max_record=1000,
        )  # fmt: skip
        self._numbers = dict.fromkeys(range(DEVICES), 0)
        self._ids: list[bytes] = []
        self.pace_ns = self.idle_ticks = 0
        self.handshaking = False
        self.acknowledged = 0
        self.group.flow.add(self)

    def adopt(self, settings: Settings, router: Router, chains: Chains) -> None:
        self.settings = settings
        self.route_stops.begin_anew(DeadLetterLimit.from_settings(settings.dead_letter))
        self.mqtt.adopt(settings, router, chains)

    async def finish_reload(self, before: Settings) -> None: ...

    def _in_flight(self) -> int:
        return self.partitions.messages() + self.mqtt.settled()

    def _note(self, value: bytes) -> None:
        device, number = value.decode().split()
        self.written.append((device, int(number)))

    # --- a session, as the flow sees it ---

    def listen(self) -> None: ...

    def ignore(self) -> None: ...

    def read(self) -> None: ...

    def hand_over(self, span: Span) -> None:
        ids, self._ingest.ids = self._ingest.ids, []
        if ids:
            span.owed.append((self, ids, []))

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        self.acknowledged += len(ids) + len(ids2)

    def send_acknowledgements(self) -> None: ...

    # --- the test's side ---

    @property
    def published(self) -> int:
        return sum(self._numbers.values())

    def publish(self, rng: random.Random) -> None:
        """Some messages in one read, as far as the window lets a broker send."""
        if self.published - self.acknowledged <= WINDOW:
            self.take([rng.randrange(DEVICES) for _ in range(rng.randint(1, 6))], pressed=rng.random() < 0.2)

    def take(self, devices: Sequence[int], *, pressed: bool = False) -> None:
        """One message of each device, in one read."""
        data = bytearray()
        for device in devices:
            body = b"d%d %d" % (device, self._numbers[device])
            data += packets.publish(
                f"devices/d{device}/t", body, qos=1, packet_id=1 + self.published % 60_000, properties=b""
            )
            self._numbers[device] += 1
        used, count = self._ingest.feed(bytes(data))
        assert used == len(data)
        self.group.flow.took(count, used, pressed=pressed)

    async def reload(self, settings: Settings) -> list[str]:
        remarks = await self.reloader.prepare(settings)
        remarks += await self.reloader.commit()
        return [*remarks, *await self.reloader.finish()]

    async def close(self) -> None:
        await self.group.close()
        await self.sender.close(patience_s=1.0)

    def check(self) -> None:
        assert not self.fatal, self.fatal
        assert self.ledger.imbalance() == 0, self.ledger


def settings_of(rng: random.Random) -> Settings:
    """Routes that take everything, each time in another way."""
    keys = ("${topic}", "${topic[1]}", "fixed", "${payload.nothing}-${topic}", "${qos}-${topic[1]}")
    whole = {"name": "all", "filters": ["#"], "topic": rng.choice(("one", "two")), "key": rng.choice(keys[:3])}
    some = {
        "name": rng.choice(("some", "all-too")), "filters": [rng.choice(("devices/+/t", "devices/d1/#", "devices/#"))],
        "topic": rng.choice(("one", "two")), "key": rng.choice((*keys[:3], keys[4])),
    }  # fmt: skip
    if rng.random() < 0.3:
        some["interceptors"] = [{"use": "headers", "add": {"x": rng.choice("ab")}}]
    routes = [whole] if rng.random() < 0.3 else [some, whole]
    return Settings(
        routes=routes, dead_letter={"topic": "dead"}, ledger={"topic": ""},
        flow={"route_cache_entries": rng.choice((2, 1000)), "linger_max": rng.choice(("10ms", "50ms"))},
    )  # fmt: skip


def made_of(*routes: dict[str, Any], **dead_letter: Any) -> Settings:
    return Settings(routes=routes, dead_letter={"topic": "dead", **dead_letter}, ledger={"topic": ""})


def one_route(*filters: str, **route: Any) -> Settings:
    return made_of({"name": "all", "filters": filters, "topic": "one", **route})


async def test_a_batch_of_former_routes_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition is busy, so it is open still when its route takes over again: its next messages are younger than
    those that another route has put into the same partition meanwhile."""

    def made(*names: str) -> Settings:
        filters = {"all": "#", "some": "devices/d0/#"}
        return made_of(*({"name": n, "filters": [filters[n]], "topic": "one", "key": "fixed"} for n in names))

    kafka = LoggingKafka()
    kafka.latency_s = lambda: 1.0
    site = await site_of(made("all"), kafka, monkeypatch)
    site.take([1], pressed=True)  # under way
    site.take([1], pressed=True)  # waits for that in an open batch
    await site.reload(made("some", "all"))
    site.take([0], pressed=True)
    await site.reload(made("all"))
    site.take([0], pressed=True)
    await site.group.flow.drained()
    site.check()
    assert [number for device, number in site.written if device == "d0"] == [0, 1]


async def test_topics_that_leave_a_route_with_interceptors_do_not_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both routes say the same key, and the interceptors of one, which stay, make another of it."""

    def made(filter_: str) -> Settings:
        table = {"topic": "one", "key": "${topic}"}
        mask = {"use": "mask", "method": "redact", "key": True}
        masked = {"name": "masked", "filters": [filter_], "interceptors": [mask], **table}
        return made_of(masked, {"name": "rest", "filters": ["#"], **table})

    await nothing_overtakes(made("devices/d1/#"), made("devices/d2/#"), monkeypatch=monkeypatch)


async def test_what_the_broker_had_queued_for_a_removed_route_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The route comes back with another key while late messages of it are on their way."""
    await nothing_overtakes(
        one_route("devices/#", key="${topic}"), one_route("meters/#"), one_route("devices/#", key="${topic[1]}"),
        monkeypatch=monkeypatch,
    )  # fmt: skip


async def nothing_overtakes(first: Settings, *later: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message waits for Kafka at the last reload. A later one of its device, to another partition, waits too."""
    kafka = LoggingKafka()
    site = await site_of(first, kafka, monkeypatch)
    for settings in later[:-1]:
        await site.reload(settings)
    kafka.latency_s = lambda: 1.0
    site.take([1], pressed=True)
    await asyncio.sleep(0.1)
    kafka.latency_s = lambda: 0.001
    reload = asyncio.create_task(site.reload(later[-1]))
    await asyncio.sleep(0.1)
    site.take([1], pressed=True)
    await reload
    await site.group.flow.drained()
    assert site.written == [("d1", 0), ("d1", 1)]


async def test_reloads_by_the_minute_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that sends SIGHUP after each of its runs: more often than former routes are forgotten, and for ever."""
    site = await site_of(one_route("devices/#"), LoggingKafka(batch_bytes=400), monkeypatch)
    routers = [weakref.ref(site.mqtt.router)]
    for number in range(1200):
        await site.reload(one_route("devices/#", f"meters/{number % 3}/#"))
        routers.append(weakref.ref(site.mqtt.router))
    assert site.mqtt.router.match("nobody/asked") is None, "not once for each reload"
    for number in range(3):
        assert site.mqtt.router.match(f"meters/{number}/x") is not None, "what the broker has queued still has a route"
    gc.collect()
    assert sum(router() is not None for router in routers) == 3


async def test_former_routes_are_forgotten_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from when each was left, however often settings are read again."""
    now_s = 0.0
    monkeypatch.setattr("gateway.worker.reload.time", Mock(monotonic=lambda: now_s))
    site = await site_of(one_route("meters/#"), LoggingKafka(batch_bytes=400), monkeypatch)
    await site.reload(one_route("devices/#"))
    while now_s <= FORMER_S:
        assert site.mqtt.router.match("meters/x") is not None, f"after {now_s} s"
        now_s += 600
        await site.reload(one_route("devices/#"))
    assert site.mqtt.router.match("meters/x") is None


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_lost_nor_overtaken_while_routes_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    kafka = LoggingKafka(batch_bytes=400)
    kafka.latency_s = lambda: rng.choice((0.001, 0.005, 0.05))
    site = await site_of(settings_of(rng), kafka, monkeypatch)
    for _ in range(15):
        reload = asyncio.create_task(site.reload(settings_of(rng)))
        while not reload.done():
            site.publish(rng)
            site.check()
            await asyncio.sleep(rng.choice((0, 0.0005, 0.01)))
        await reload
        for _ in range(rng.randrange(8)):
            site.publish(rng)
            await asyncio.sleep(rng.choice((0, 0.001)))
            site.check()
    await site.group.flow.drained()
    site.check()
    assert site.ledger.delivered == site.published == site.acknowledged
    assert not site.ledger.dead_lettered
    numbers: dict[str, list[int]] = {}
    for device, number in site.written:
        numbers.setdefault(device, []).append(number)
    for device, found in numbers.items():
        assert found == list(range(len(found))), f"{device}, seed {seed}"
    assert len(site.written) == site.published


async def site_of(settings: Settings, kafka: LoggingKafka, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(asyncio, "to_thread", _at_once)
    monkeypatch.setattr(
        SessionGroup, "_make_session", lambda _self, _number: Mock(plan=Mock(subscriptions=()), established=set())
    )
    for name in ("one", "two", "dead"):
        kafka.topic(name, 3)
    site = Site(settings, kafka)
    await site.sender.start()
    at_end(site.close)
    return site


@pytest.mark.parametrize("name", ["mended", "broken"])
async def test_a_stopped_route_goes_on_at_once_by_what_has_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was held of it is written by the new routes, in order, under whatever name."""
    rng = random.Random(1)

    def made(name: str, topic: str) -> Settings:
        return made_of({"name": name, "filters": ["#"], "topic": topic}, max_per_second=0)

    site = await site_of(made("broken", "${topic[7]}"), LoggingKafka(), monkeypatch)
    for _ in range(10):
        site.publish(rng)
        await asyncio.sleep(0.01)
    assert list(site.route_stops.stopped) == ["broken"]
    began_s = asyncio.get_running_loop().time()
    remarks = await site.reload(made(name, "one"))
    assert not [remark for remark in remarks if "not all written" in remark]
    assert asyncio.get_running_loop().time() - began_s < 1, "no waiting for what is itself held"
    assert not site.route_stops.stopped
    for _ in range(10):
        site.publish(rng)
        await asyncio.sleep(0.01)
    await site.group.flow.drained()
    site.check()
    assert site.ledger.dead_lettered > 0
    assert site.ledger.delivered + site.ledger.dead_lettered == site.published == site.acknowledged
    for device in {device for device, _ in site.written}:
        numbers = [number for one, number in site.written if one == device]
        assert numbers == sorted(numbers), device


async def test_what_is_held_goes_before_what_came_later_under_other_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped route is mended and loses devices to new routes, all of which are held for a moment."""

    def made(topic: str, *devices: int) -> Settings:
        table = {"topic": topic, "key": "fixed"}
        routes = [{"name": f"own-{d}", "filters": [f"devices/d{d}/#"], **table} for d in devices]
        return made_of(*routes, {"name": "rest", "filters": ["#"], **table}, max_per_second=0)

    kafka = LoggingKafka()
    site = await site_of(made("${topic[7]}"), kafka, monkeypatch)
    kafka.latency_s = lambda: 1.0
    site.take([4], pressed=True)
    assert list(site.route_stops.stopped) == ["rest"]
    site.take(range(DEVICES), pressed=True)
    reload = asyncio.create_task(site.reload(made("one", *range(DEVICES - 1))))
    await asyncio.sleep(0.1)
    assert not reload.done(), "the dead letter is not written yet"
    site.take(range(DEVICES), pressed=True)
    await reload
    await site.group.flow.drained()
    site.check()
    for device in range(DEVICES - 1):
        assert [number for one, number in site.written if one == f"d{device}"] == [0, 1], f"d{device}"


async def test_a_roll_back_waits_for_the_commit_that_it_undoes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that was told nothing in time: the worker is slow, not dead."""

    kafka = LoggingKafka()
    site = await site_of(one_route("#", key="${topic}"), kafka, monkeypatch)
    kafka.latency_s = lambda: 1.0
    site.take(range(DEVICES), pressed=True)
    await site.reloader.step("prepare", one_route("#", key="fixed"))
    ended: list[str] = []

    async def step(name: str) -> None:
        assert not await site.reloader.step(name, None), name
        ended.append(name)

    commit = asyncio.create_task(step("commit"))
    await asyncio.sleep(0.1)
    site.take(range(DEVICES), pressed=True)
    back = asyncio.create_task(step("roll back"))
    await asyncio.sleep(0.1)
    site.take(range(DEVICES), pressed=True)
    await asyncio.gather(commit, back)
    assert ended == ["commit", "roll back"]
    assert site.settings == one_route("#", key="${topic}")
    assert site.kafka.settle.called, "topics of the failed settings are watched no longer"
    await site.group.flow.drained()
    site.check()
    for device in range(DEVICES):
        assert [number for one, number in site.written if one == f"d{device}"] == [0, 1, 2], f"d{device}"


def test_counts_go_on_when_chains_are_replaced_and_come_back() -> None:
    """A counter that fell would be read as a restart, and all it had counted be counted again."""

    def made(*names: str) -> Chains:
        table = {"use": "sample", "share": 0.5}
        routes = [{"name": name, "filters": [f"{name}/#"], "topic": "t", "interceptors": [table]} for name in names]
        return load_chains(Settings(routes=routes))

    def use(chains: Chains, route: str) -> None:
        chain = chains.get(route)
        for _ in range(4):
            if isinstance(chain.run(Record(MessageView("a"), "t", None, b"", [], 0)), Drop):
                chain.filtered[0] += 1

    first = made("a", "b")
    use(first, "a")
    use(first, "b")
    second = made("a")
    assert [chain.route for chain in second.succeed(first, keep=("b",))] == ["a"]
    assert second.get("b") is first.get("b"), "for what the broker still has for it"
    assert (second.rows(), second.filtered_rows()) == (first.rows(), first.filtered_rows())
    use(second, "a")
    assert second.rows()["sample", "drop"] == 6
    first.succeed(second, keep=())
    assert first.rows()["sample", "drop"] == 6, "back again"
    assert first.filtered_rows()["a", "0"] == 4


async def _at_once(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


SCHEMA = {"use": "json_schema", "schema_file": "schema.json"}
MASKED = {"use": "headers", "add": {"x": "y"}}


@pytest.mark.parametrize(("before", "after", "stays"), [
    ({"interceptors": [MASKED]}, {"interceptors": [MASKED]}, True),
    ({"interceptors": [MASKED]}, {"interceptors": [MASKED], "key": ""}, True),
    ({"interceptors": [MASKED]}, {"interceptors": [MASKED, MASKED]}, False),
    ({"interceptors": [MASKED]}, {"interceptors": [MASKED], "device": "${topic[1]}"}, False),
    ({"interceptors": [SCHEMA]}, {"interceptors": [SCHEMA]}, False),
])  # fmt: skip
def test_interceptors_stay_if_nothing_has_changed(before: dict[str, Any], after: dict[str, Any], stays: bool) -> None:
    """A file that they name may have."""

    def made(route: dict[str, Any]) -> Settings:
        return Settings(routes=[{"name": "r", "filters": ["a/#"], "topic": "t", **route}])

    assert _same_chain(made(before), made(after), "r") is stays


in_manual_time(globals())

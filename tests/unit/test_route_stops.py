"""A route over its ceiling is stopped, not drained: nothing of it is dead-lettered or acknowledged until it is good."""

import asyncio
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Self
from unittest.mock import Mock

import structlog

from bridge.dead_letters.limit import DeadLetterLimit
from bridge.dead_letters.route_stops import TRIAL_MESSAGES, RouteStops
from bridge.errors import PoisonedError
from bridge.produce.dispatch import NO_CHAINS, DispatchLimits
from bridge.produce.holding import CHUNK
from bridge.routing.router import Router
from bridge.wire import DeadLetterReason
from config.settings import RouteSettings, Settings
from gateway.base.lifecycle import StopRequest
from gateway.data_dir.session_registry import SessionRecord
from gateway.worker.worker import Worker
from tests.brokers.rig import make_rig
from tests.unit.data_path import DEAD_LETTERS, Path
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time
from tests.unit.test_dispatch import Rig
from tests.unit.test_intercepted_dispatch import Rig as InterceptedRig
from tests.waiting import until

SECOND = 1_000_000_000
RETRY_S = 300
# Of any five messages more than two bad ones are too many.
LIMIT = DeadLetterLimit(1e6, 0.4, 60 * SECOND, 5, RETRY_S * SECOND)
MADE = {"topic": "site-${topic[1]}", "allowed_topics": "site-[a-z]+"}
FAST = {"name": "fast", "filters": ["fast/#"], "topic": "t"}
POISON = PoisonedError("no", DeadLetterReason.INVALID_RECORD)
BAD, GOOD = b"devices/NOT-ALLOWED", b"devices/oslo"


class Site:
    """A path, a dispatcher and the ceiling, as a worker wires them."""

    def __init__(self, path: Path, *routes: dict[str, object], limit: DeadLetterLimit = LIMIT) -> None:
        self.path = path
        self.kafka = path.kafka
        self.rig = Rig(path, *routes)
        self.stops = RouteStops(limit, path.clock_ns, self.rig.defects.append)
        path.made = self.stops.made
        for route in self.rig.router.routes:
            self.stops.watch(route.name, self.rig.dispatcher, self.counter(route.name))

    def counter(self, route: str) -> Callable[[], int]:
        return lambda: sum(slot.taken for slot in self.path.accumulator.slots if slot.route == route)

    async def __aenter__(self) -> Self:
        await self.path.__aenter__()
        await self.stops.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stops.stop(0)
        await self.rig.dispatcher.close()
        await self.path.__aexit__(*error)
        assert not self.rig.defects, self.rig.defects

    def take(self, topic: bytes, *payloads: bytes, **options: object) -> None:
        for payload in payloads:
            self.rig.take(topic, payload, **options)  # type: ignore[arg-type]

    async def taken(self, topic: bytes, *payloads: bytes) -> None:
        self.take(topic, *payloads)
        await self.settle()

    async def settle(self) -> None:
        self.path.flush()
        await asyncio.sleep(1)
        assert self.path.balanced(), self.path.ledger

    @property
    def held(self) -> int:
        return self.rig.dispatcher.holding.messages("route")


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % n for n in range(first, first + count)]


def make(
    kafka: FakeKafka | None = None, *, routes: tuple[dict[str, object], ...] = (MADE, FAST), **options: object
) -> Site:
    kafka = FakeKafka() if kafka is None else kafka
    kafka.topic("site-oslo", 2)
    kafka.topic("t", 2)
    return Site(Path(kafka), *routes, **options)  # type: ignore[arg-type]


async def test_a_stopped_route_is_neither_dead_lettered_nor_acknowledged_and_others_go_on() -> None:
    async with make() as site:
        with structlog.testing.capture_logs() as logs:
            await site.taken(BAD, *numbers(20))
            await site.taken(GOOD, *numbers(20, 100))
        path, dead = site.path, site.kafka.topics[DEAD_LETTERS]
        assert len(dead.records()) == 5, "what made the ceiling exceeded, and not one more"
        assert site.kafka.topics["site-oslo"].records() == [], "good messages are held behind the bad ones"
        assert path.owner.released == [], "the first span waits for its held messages"
        assert (site.held, path.accumulator.parked_messages) == (35, 35)
        assert path.accumulator.buffered_bytes > 0
        await site.taken(b"fast/1", b"x")
        assert site.kafka.topics["t"].values() == [b"x"]
        (alarm,) = [entry for entry in logs if entry["event"] == "route_stopped"]
        assert alarm["log_level"] == "error"
        sentence = site.stops.stopped["route"]
        assert alarm["alarm"] == sentence
        for words in (
            "'route' is stopped: 5 of 5 messages", "dead_letter.max_share allows 0.4", "invalid_topic",
            "gateway dlq list --route route", "run: gateway reload", "10 messages are tried every 5m",
        ):  # fmt: skip
            assert words in sentence
        assert list(site.stops.stopped) == ["route"]


async def test_a_trial_lets_a_few_through_and_stops_again_at_the_first_bad_one() -> None:
    async with make() as site:
        await site.taken(BAD, *numbers(30))
        dead = site.kafka.topics[DEAD_LETTERS]
        with structlog.testing.capture_logs() as logs:
            for trial in range(1, 4):
                await asyncio.sleep(RETRY_S)
                assert len(dead.records()) == 5 + trial, "one dead letter a trial, which ends with it"
                assert site.held == 25 - trial
                assert "route" in site.stops.stopped
        events = [entry["event"] for entry in logs]
        assert events.count("route_trial_failed") == 3
        assert "route_stopped" not in events, "the alarm is told once"
        assert "route_resumed" not in events
        assert site.path.balanced()


async def test_when_the_trial_is_good_the_route_goes_on_with_what_was_held_in_its_order() -> None:
    async with make() as site:
        site.take(BAD, *numbers(5))
        await site.taken(GOOD, *numbers(2 * CHUNK + 100, 100))
        assert site.held == 2 * CHUNK + 100
        topic = site.kafka.topics["site-oslo"]
        site.kafka.freeze()  # the trial's records are on their way, and nobody knows yet whether they are good
        await asyncio.sleep(RETRY_S)
        assert site.held == 2 * CHUNK + 100 - TRIAL_MESSAGES
        site.kafka.thaw()
        site.take(GOOD, b"newer")
        await site.path.until(lambda: not site.stops.stopped, "the route goes on")
        site.take(GOOD, b"newest")
        await site.path.drained()
        assert topic.values() == [*numbers(2 * CHUNK + 100, 100), b"newer", b"newest"]
        assert len(site.path.owner.released) == 2 * CHUNK + 107
        assert site.path.owner.released == [b"%d" % n for n in range(2 * CHUNK + 107)], "in MQTT order"
        assert site.path.accumulator.parked_messages == 0
        assert site.path.ledger.dead_lettered == 5


async def test_with_fewer_held_than_a_trial_takes_those_that_arrive_are_tried_too() -> None:
    async with make() as site:
        site.take(BAD, *numbers(5))
        await site.taken(GOOD, *numbers(3, 100))
        await asyncio.sleep(RETRY_S)
        assert site.held == 0
        assert "route" in site.stops.stopped, "three are no trial yet"
        site.take(GOOD, *numbers(TRIAL_MESSAGES - 3, 200))
        site.take(GOOD, b"held")
        assert site.held == 1
        for partition in site.kafka.topics["t"].partitions:
            partition.has_leader = False
        site.take(b"fast/1", b"another route's")
        site.path.flush()
        await site.path.until(lambda: not site.stops.stopped, "what waits of another route keeps it from nothing")
        for partition in site.kafka.topics["t"].partitions:
            partition.has_leader = True
        await site.path.drained()
        values = [*numbers(3, 100), *numbers(TRIAL_MESSAGES - 3, 200), b"held"]
        assert site.kafka.topics["site-oslo"].values() == values


async def test_a_fast_route_stopped_by_what_kafka_refuses_leaves_the_fast_lane_and_comes_back() -> None:
    kafka = FakeKafka()
    kafka.topic("fast", reject=lambda records: POISON if any(b"bad" in (r.value or b"") for r in records) else None)
    async with make(kafka, routes=({"topic": "fast"},)) as site:
        await site.taken(b"devices/1", *[b"bad %d" % n for n in range(5)])
        assert len(kafka.topics[DEAD_LETTERS].records()) == 5
        assert "route" in site.stops.stopped
        await site.taken(b"devices/1", *numbers(20))
        assert site.held == 20
        await site.path.until(lambda: not site.stops.stopped, "it goes on")
        await site.path.drained()
        assert kafka.topics["fast"].values() == numbers(20)
        await site.taken(b"devices/1", b"fast again")
        site.take(b"devices/1", b"and again")
        slot, *_ = site.rig.dispatcher.caches[2][b"devices/1"]
        assert slot is not None, "its topics are settled afresh"
        await site.path.drained()


async def test_a_trial_that_kafka_refuses_is_no_success() -> None:
    kafka = FakeKafka()
    kafka.topic("fast", reject=lambda records: POISON if any(b"bad" in (r.value or b"") for r in records) else None)
    async with make(kafka, routes=({"topic": "fast"},)) as site:
        await site.taken(b"devices/1", *[b"bad %d" % n for n in range(5)])
        await site.taken(b"devices/1", *numbers(9), b"bad", *numbers(9))
        await asyncio.sleep(RETRY_S + 5)
        assert "route" in site.stops.stopped
        assert site.held == 9
        assert kafka.topics["fast"].values() == numbers(9)
        assert len(kafka.topics[DEAD_LETTERS].records()) == 6


async def test_a_route_that_turns_bad_while_its_held_messages_leave_stops_in_the_middle_of_them() -> None:
    async with make() as site:
        site.take(BAD, *numbers(5))
        site.take(GOOD, *numbers(TRIAL_MESSAGES, 100))
        site.take(BAD, *numbers(50, 200))
        await site.taken(GOOD, *numbers(50, 300))
        await asyncio.sleep(RETRY_S + 5)
        assert "route" in site.stops.stopped
        assert len(site.kafka.topics[DEAD_LETTERS].records()) == 10, "five more, which is what the ceiling takes"
        assert site.held == 95
        assert site.path.balanced()
        await asyncio.sleep(RETRY_S)
        assert site.held == 94


async def test_a_message_for_a_topic_that_must_be_found_first_waits_for_it_after_it_was_held() -> None:
    kafka = FakeKafka("t")
    path = Path(kafka, topics=["t", DEAD_LETTERS])
    async with Site(path, MADE) as site:
        site.take(BAD, *numbers(5))
        await site.taken(b"devices/rome", *numbers(TRIAL_MESSAGES + 3, 100))
        assert site.held == TRIAL_MESSAGES + 3
        kafka.topic("site-rome")
        await path.until(lambda: not site.stops.stopped, "it goes on")
        await path.drained()
        assert kafka.topics["site-rome"].values() == numbers(TRIAL_MESSAGES + 3, 100)


async def test_dead_letters_of_no_route_stop_nothing() -> None:
    async with make() as site:
        for _ in range(100):
            site.stops.made("", DeadLetterReason.INVALID_TOPIC, ValueError("a topic that MQTT forbids"))
        assert not site.stops.stopped


async def test_a_defect_while_looking_is_told() -> None:
    async with make() as site:
        broken = ZeroDivisionError()

        def count() -> int:
            raise broken

        told: list[BaseException] = []
        stops = RouteStops(LIMIT, site.path.clock_ns, told.append)
        stops.watch("route", site.rig.dispatcher, iter([0]).__next__)
        stops._routes["route"].counters = [count]
        await stops.start()
        await asyncio.sleep(2)
        await stops.stop(0)
        assert told == [broken]


async def test_held_messages_of_a_route_with_interceptors_go_through_them_when_they_are_let_go() -> None:
    """They become several records or none, in the spans they came in; a span of which nothing is left is durable."""
    async with Path(FakeKafka("t", 3)) as path:
        rig = InterceptedRig(path, {"use": "split", "path": "r", "key": "n"})
        rig.take({"r": [{"n": "before"}]})  # known to the intercepted lane
        path.flush()
        rig.dispatcher.stop("route")
        rig.take({"r": []})
        path.flush()  # a span with nothing but a message that will be dropped
        for number in range(30):
            rig.take({"r": [{"n": f"{number}-{part}"} for part in range(number % 4)]})
            if number % 3 == 2:
                path.flush()
        path.flush()
        await asyncio.sleep(1)
        assert rig.dispatcher.holding.messages("route") == 31
        assert len(path.topic.records()) == 1
        assert path.balanced(), path.ledger
        rig.dispatcher.release("route")
        await path.until(lambda: not rig.dispatcher.holding, "all let go")
        await rig.done()
        rig.chains.close()
    written = {(record.key or b"").decode() for record in path.topic.records()}
    assert written == {"before", *(f"{n}-{part}" for n in range(30) for part in range(n % 4))}
    assert (path.ledger.delivered, path.ledger.filtered) == (23, 9)
    assert path.owner.released == [b"%d" % n for n in range(32)], "in MQTT order"


async def test_held_messages_wait_behind_their_new_route_when_routes_change() -> None:
    """Otherwise a later message of their topic would pass them."""
    first, second = {"name": "first", "filters": ["devices/#"]}, {"name": "second", "filters": ["sites/#"]}
    async with Path() as path:
        rig = Rig(path, first, second)
        holding = rig.dispatcher.holding
        for route in ("first", "second"):
            rig.dispatcher.stop(route)
        rig.take(b"devices/moved", b"1")
        rig.take(b"devices/stays", b"2")
        changed = [{**second, "filters": ["sites/#", "devices/moved"]}, first]
        routes = [RouteSettings.model_validate({"topic": "t", **route}) for route in changed]
        router = Router(routes, instance="gw", reserved_topics=[DEAD_LETTERS])
        rig.dispatcher.adopt(router, NO_CHAINS, DispatchLimits(4096, 1000, 100))
        rig.dispatcher.sort_held()
        rig.take(b"devices/moved", b"3")
        assert (holding.messages("first"), holding.messages("second")) == (1, 2)
        rig.dispatcher.release("second")
        await path.until(lambda: "second" not in holding, "all released")
        path.flush()
        await asyncio.sleep(1)
        assert path.topic.values() == [b"1", b"3"]
        rig.dispatcher.release("first")
        await rig.done()


async def test_a_message_that_comes_as_a_trial_begins_waits_behind_those_held() -> None:
    async with Path() as path:
        rig = Rig(path, {"topic": "t"})
        rig.dispatcher.stop("route")
        rig.take(b"devices/1", b"1")
        rig.take(b"devices/1", b"2")
        rig.dispatcher.admit("route", 10)
        rig.take(b"devices/1", b"3")
        await rig.done()
        assert path.topic.values() == [b"1", b"2", b"3"]


def told(gate: Mock) -> list[str]:
    """What a dispatcher was told of the route."""
    return [" ".join((name, *map(str, words[1:]))) for name, words, _ in gate.method_calls if name != "tried"]


def test_a_route_whose_messages_come_two_ways_is_stopped_on_both() -> None:
    """As where a session of earlier settings brings some of them."""
    now_ns = 1
    stops = RouteStops(LIMIT, lambda: now_ns, lambda _error: None)
    gates = [Mock(**{"tried.return_value": False}) for _ in range(3)]
    taken = [30, 0]
    stops.watch("route", gates[0], lambda: taken[0])
    stops.watch("route", gates[1], lambda: taken[1])
    for _ in range(5):
        stops.made("route", DeadLetterReason.INVALID_RECORD, POISON)
        assert not stops.stopped
        taken[1] += 1
        now_ns += 1
    taken[1] = 0
    stops.tick()
    now_ns += 61 * SECOND
    stops.tick()
    for _ in range(5):
        taken[1] += 1
        stops.made("route", DeadLetterReason.INVALID_RECORD, POISON)
    assert stops.stopped
    stops.watch("route", gates[2], lambda: 0)
    assert [told(gate) for gate in gates] == [["stop"]] * 3
    now_ns += RETRY_S * SECOND
    stops.tick()
    stops.tick()
    assert [told(gate) for gate in gates] == [["stop", f"admit {TRIAL_MESSAGES}"]] * 3
    gates[1].tried.return_value = True  # nothing comes through the others
    stops.tick()
    assert not stops.stopped
    assert [told(gate)[2:] for gate in gates] == [["release"]] * 3


in_manual_time(globals())
# What follows has real connections, and runs in real time.


async def test_what_a_connection_leaves_behind_at_its_end_is_not_held_beside_its_redelivery() -> None:
    """Hours of a stopped route may see many reconnections, each of which brings the whole window again."""
    async with make_rig() as rig:
        path, dispatcher = rig.path, rig.path.dispatcher
        dispatcher.stop("telemetry")
        rig.send(rig.publish("devices/1", b"qos 0"), rig.publish("devices/1", b"qos 2", qos=2, packet_id=99))
        window = [(b"%02d" % number, number) for number in range(1, 21)]
        sizes = set()
        for connection in range(6):
            again = [rig.publish("devices/1", b"qos 2", qos=2, packet_id=99, dup=True)] if connection else []
            rig.send(
                *again, *[rig.publish("devices/1", b, qos=1, packet_id=n, dup=bool(connection)) for b, n in window]
            )
            await rig.settle()
            path.check()
            assert dispatcher.holding.messages("telemetry") == 22
            sizes.add(path.accumulator.buffered_bytes)
            if connection < 5:
                rig.hang_up()
                path.check()
                assert dispatcher.holding.messages("telemetry") == 2, "QoS 0 and 2 do not come again"
                rig.connect()
        assert len(sizes) == 1, "no more memory after six connections than after one"
        dispatcher.release("telemetry")
        await until(lambda: not path.ledger.in_flight(), "everything is written")
        path.check()
        assert path.values == [b"qos 0", b"qos 2", *(payload for payload, _ in window)], "each once, in order"
        assert path.accumulator.buffered_bytes == 0


async def test_properties_that_mqtt_forbids_end_the_connection_when_they_come_not_when_the_route_goes_on() -> None:
    async with make_rig() as rig:
        rig.path.dispatcher.stop("telemetry")
        good = rig.publish("devices/1", b"good", qos=1, packet_id=1)
        rig.send(good, rig.publish("devices/1", b"x", qos=1, packet_id=2, properties=b"\xff"))
        assert rig.connection.ended.done(), "the broker broke MQTT's rules"
        rig.connect()
        rig.send(good)
        rig.path.dispatcher.release("telemetry")
        await until(lambda: rig.path.values == [b"good"], "the route goes on")
        rig.path.check()


async def test_the_sessions_of_earlier_settings_take_no_routes_ceiling_from_its_own(tmp_path: FilePath) -> None:
    routes = [{"name": "a", "filters": ["a/#"], "topic": "t"}]
    routes.append({"name": "b", "filters": ["b/#"], "topic": "t", "group": "alarms"})
    settings = Settings.model_validate(
        {"data_dir": tmp_path, "mqtt": {"groups": [{"name": "alarms"}]}, "routes": routes}
    )
    worker = Worker(settings, StopRequest())
    record = SessionRecord("client", "9", ("$share/g/a/#",), "5", ("mqtt://127.0.0.1:1",))
    worker.mqtt.make_orphan(record, asyncio.Semaphore(), lambda: None)
    main, alarms, orphans = (group.dispatcher.holding for group in worker.mqtt.groups)
    for name in ("a", "b"):
        for gate in worker.route_stops._routes[name].gates:
            gate.stop(name)
    assert [("a" in held, "b" in held) for held in (main, alarms, orphans)] == [
        (True, False), (False, True), (True, True),
    ]  # fmt: skip
    worker.mqtt.chains.close()

"""The canary against the scripted EMQX and a real Kafka: it comes through, and says at which leg it does not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from structlog.testing import capture_logs

from bridge.kafka.login import KafkaLogin
from bridge.routing.router import Router
from config.settings import Settings
from gateway.base.metrics import Metrics
from gateway.health.canary.canary import Canary
from gateway.local.embedded.kafka import KafkaCluster
from gateway.mqtt.login import Login
from tests.brokers.fixtures import MakeTopic
from tests.brokers.packets import connack
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Rules
from tests.brokers.topics import consumer_groups
from tests.chaos.fixtures import MakeGateway
from tests.chaos.threaded import ThreadedBroker
from tests.waiting import until, wait_until


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker(Rules()) as broker:
        yield broker


# --- the canary alone: the test is the gateway ---


def settings_for(broker: ScriptedBroker, kafka: KafkaCluster, topic: str, **canary: Any) -> Settings:
    return Settings.model_validate(
        {
            "instance": "gw",
            "mqtt": {"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "connect_timeout": "10s"},
            "kafka": {"bootstrap_servers": kafka.bootstrap.split(","), "request_timeout": "20s"},
            "canary": {"enabled": True, "interval": "100ms", "timeout": "1s", **canary},
            "routes": [{"name": "canary", "filters": ["canary/+"], "topic": topic}],
        }
    )


@asynccontextmanager
async def canary(settings: Settings, routers: list[Router] | None = None) -> AsyncIterator[Canary]:
    """A canary whose routes are those of the last of ``routers``."""
    go = asyncio.Event()
    go.set()
    now = routers or [Router(settings.routes, instance=settings.instance)]
    made = Canary(
        settings,
        router=lambda: now[-1],
        metrics=Metrics(settings),
        mqtt_login=Login(settings.mqtt),
        kafka_login=KafkaLogin(settings.kafka),
        go=go,
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop(0)


@asynccontextmanager
async def carrier(broker: ScriptedBroker, kafka: KafkaCluster, topic: str) -> AsyncIterator[Callable[[int], Any]]:
    """A gateway by hand: write the messages so far to Kafka, each so many times."""
    done = 0
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    try:
        async with RawClient(broker.port, "gw-0-0") as client:
            await client.subscribe("canary/+")

            async def carry(copies: int) -> None:
                nonlocal done
                for message, packet_id, _ in client.received[done:]:
                    for _ in range(copies):
                        await producer.send_and_wait(topic, message.payload)
                    client.acknowledge(packet_id)
                    done += 1

            yield carry
    finally:
        await producer.stop()


async def until_carried(carry: Any, condition: Callable[[], bool], what: str, copies: int = 1) -> None:
    async def carried() -> bool:
        await carry(copies)
        return condition()

    await until(carried, what)


async def until_told(bird: Canary, what: str) -> None:
    """The problem is of the last lost message: where the machine stops, another leg's may come between."""
    await until(lambda: any(what in problem.text for problem in bird.problems()), what)


async def test_messages_come_back_late_twice_or_not_at_all(
    broker: ScriptedBroker, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = await make_topic(partitions=3)
    settings = settings_for(broker, kafka, topic, timeout="4s")
    with capture_logs() as logs:
        async with carrier(broker, kafka, topic) as carry, canary(settings) as bird:
            account = bird.account
            await until_carried(carry, lambda: account.received >= 3, "three have come back")
            assert account.success
            assert bird.problems() == ()
            await until_carried(carry, lambda: account.duplicates >= 2, "copies are seen as such", copies=2)
            await until(lambda: account.lost["kafka"] >= 2, "what nobody writes to Kafka is lost there")
            await until_told(bird, f"not in Kafka topic {topic} within 4s")
            await until_carried(carry, lambda: account.late >= 2, "what comes after all is late")
            await until_carried(carry, lambda: account.success is True, "it is well again")
            assert bird.problems() == ()
            await until_carried(carry, lambda: account.received >= 10, "and goes on")
            facts = bird.facts()
            assert facts["kafka_topic"] == topic
            assert facts["mqtt_topic"] == "canary/gw"
            assert account.sent == account.received + sum(account.lost.values()) + account.waiting
    events = [line["event"] for line in logs if line["event"].startswith("canary")]
    # Each time once; and more often than this once, where the machine stops.
    assert events == ["canary_lost", "canary_well"] * (len(events) // 2) != []


async def test_a_broker_that_takes_nothing_and_one_that_is_away(
    broker: ScriptedBroker, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = await make_topic()
    async with canary(settings_for(broker, kafka, topic)) as bird:
        account = bird.account
        await until_told(bird, "says that the topic has no subscriber (0x10)")
        async with RawClient(broker.port, "gw-0-0") as client:
            await client.subscribe("canary/+")
            broker.rules.puback = 0x87
            await until_told(bird, "it answers 0x87")
            broker.rules.puback, broker.rules.disconnects_publishers = None, 0x87
            await until_told(bird, "not authorised")
            broker.rules.connack = connack(properties=b"\x27" + (50).to_bytes(4))  # of the next connection
            await until_told(bird, "the broker takes 50 at most (its Maximum Packet Size)")
            broker.rules.disconnects_publishers = None
            broker.rules.connack = None
        await broker.stop()
        await until(lambda: account.lost["publish"] >= 2, "there is no broker")
        await until_told(bird, "cannot publish to MQTT topic canary/gw")
        await until_told(bird, "refused")
        await broker.start()
        async with carrier(broker, kafka, topic) as carry:
            await until_carried(carry, lambda: account.success is True, "it is well again")


async def test_a_broker_that_answers_pings_alone_is_left_for_another_connection(broker: ScriptedBroker) -> None:
    broker.rules.answers_publishers = False
    settings = settings_for(broker, cast("KafkaCluster", SimpleNamespace(bootstrap="127.0.0.1:1")), "t")
    async with canary(settings) as bird:
        await until_told(bird, "no acknowledgement within 1s")
        await until(lambda: len(broker.connects) >= 3, "each time another connection is tried")


async def test_a_topic_that_the_first_message_makes_is_read_from_its_beginning(
    broker: ScriptedBroker, kafka: KafkaCluster, make_topic: MakeTopic, unique: str
) -> None:
    async with (
        carrier(broker, kafka, unique) as carry,
        canary(settings_for(broker, kafka, unique, timeout="20s", interval="500ms")) as bird,
    ):
        await until(lambda: bird.account.sent >= 1, "it does not wait for the topic")
        await make_topic(unique)
        await until_carried(carry, lambda: bird.account.received >= 2, "the first ones are found too")
        assert bird.account.lost == {"publish": 0, "acknowledge": 0, "kafka": 0, "read": 0}


async def test_after_a_reload_it_looks_where_its_route_leads_now(
    broker: ScriptedBroker, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topics = [await make_topic() for _ in range(2)]
    before, after = (settings_for(broker, kafka, topic) for topic in topics)
    routers = [Router(before.routes, instance="gw")]
    async with canary(before, routers) as bird:
        account = bird.account
        async with carrier(broker, kafka, topics[0]) as carry:
            await until_carried(carry, lambda: account.received >= 2, "by the first route")
        routers.append(Router(after.routes, instance="gw"))
        async with carrier(broker, kafka, topics[1]) as carry:
            received = account.received
            await until_carried(
                carry, lambda: account.received >= received + 3 and bird.kafka_topic == topics[1], "by the second"
            )
        other = after.routes[0].model_copy(update={"filters": ("devices/#",)})
        routers.append(Router([other], instance="gw"))
        async with RawClient(broker.port, "gw-0-0") as client:
            await client.subscribe("canary/+")
            await until_told(bird, "No route takes canary/gw")


# --- in a gateway ---


def test_a_gateway_s_canary_goes_the_whole_way_and_leaves_no_group(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        routes = [
            {"name": "telemetry", "filters": ["devices/#"], "topic": unique},
            {"name": "canary", "filters": ["canary/+"], "topic": f"{unique}-canary"},
        ]
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, routes=routes,
            canary={"enabled": True, "interval": "200ms", "timeout": "20s"}, emqx={},
        )  # fmt: skip
        gateway.start()
        wait_until(lambda: gateway.metric("gateway_canary_received_total") >= 5, "canaries come back")
        assert gateway.metric("gateway_canary_success") == 1
        assert gateway.metric("gateway_canary_enabled") == 1
        assert gateway.metric("gateway_canary_seconds_count") >= 5
        assert gateway.metric("gateway_canary_lost_total") == 0
        status = gateway.status()
        assert status["canary"]["success"]
        assert status["canary"]["kafka_topic"] == f"{unique}-canary"
        assert status["emqx"] is None
        wait_until(lambda: not gateway.problems(), "what a stall of the machine raised is over")
        assert status["routes"]["canary"]["delivered"] >= 5, "ordinary messages in the account"
        broker.call(lambda: setattr(broker.broker.rules, "puback", 0x87))
        wait_until(lambda: [problem["id"] for problem in gateway.problems()] == ["canary-failing"], "it is named")
        broker.call(lambda: setattr(broker.broker.rules, "puback", None))
        wait_until(lambda: not gateway.problems(), "and well again")
        assert gateway.imbalance() == 0
        assert gateway.stop() == -15
    groups = consumer_groups(kafka.bootstrap)
    assert not [group for group in groups if unique in group or "canary" in group]

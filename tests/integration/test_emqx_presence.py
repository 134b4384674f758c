"""Devices that come and go: EMQX's event messages are an ordinary route's, and no wildcard's."""

import json

from tests.brokers.data_path import one_session
from tests.brokers.packets import Message
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Rules
from tests.waiting import until

PRESENCE = {
    "name": "presence",
    "filters": ["$SYS/brokers/+/clients/#"],
    "topic": "devices.presence",
    "device": "${payload.clientid}",
    "key": "${device}",
}
EVERYTHING = {"name": "all", "filters": ["#"], "topic": "everything"}


async def test_connected_and_disconnected_come_to_their_route_alone() -> None:
    """MQTT 5.0 section 4.7.2: a filter that begins with a wildcard matches no topic that begins with `$`; so a route of
    all messages, although first, takes none of them, neither at the broker nor here."""
    async with (
        ScriptedBroker(Rules(sys_events=True)) as broker,
        one_session(broker, routes=[EVERYTHING, PRESENCE]) as (path, _),
    ):
        subscribed = [text for text, _ in broker.subscribes[-1].filters]
        assert subscribed == ["$share/gateway/#", "$share/gateway/$SYS/brokers/+/clients/#"]
        async with RawClient(broker.port, "pump/7", expiry=0):  # a client id with a level of its own
            broker.publish(Message("devices/pump", b"telemetry", 1, publisher="pump/7"))
            await until(lambda: len(path.log) >= 2, "it came, and sent")
        await until(lambda: len(path.log) >= 3, "it went")
    found = {
        topic: [stored.record for stored in path.log if stored.topic == topic]
        for topic in ("everything", "devices.presence")
    }
    assert [record.value for record in found["everything"]] == [b"telemetry"]
    presence = found["devices.presence"]
    assert [record.key for record in presence] == [b"pump/7", b"pump/7"]
    assert [json.loads(record.value or b"")["clientid"] for record in presence] == ["pump/7", "pump/7"]
    topics = [dict(record.headers)["mqtt.topic"] for record in presence]
    assert topics == [
        b"$SYS/brokers/emqx@127.0.0.1/clients/pump/7/connected",
        b"$SYS/brokers/emqx@127.0.0.1/clients/pump/7/disconnected",
    ]

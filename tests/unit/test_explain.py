"""What ``gateway explain`` says of a message, and that it is what the data path does."""

import base64
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.interceptors import Interceptor
from bridge.message import Properties
from bridge.produce.partitioner import partition_for
from bridge.record import Record
from config.settings import Settings
from gateway.cli.records import explain_text
from gateway.tools.explain import Explanation, Message, explain
from tests.command_line import Cli

ROUTES = [
    {"name": "alarms", "filters": ["devices/+/alarm"], "topic": "alarms", "group": "fast", "qos": 2},
    {
        "name": "telemetry", "filters": ["devices/+/t", "plant/#"], "topic": "telemetry", "device": "${topic[1]}",
        "key": "${device}", "message_id": "${device}-${payload.seq}",
        "metadata_headers": ["topic", "properties", "message_id"],
        "interceptors": [
            {"use": "filter", "expression": "json.seq >= 0", "reason": "negative"},
            {"use": "headers", "add": {"site": "north"}},
        ],
    },
    {"name": "dynamic", "filters": ["dynamic/+"], "topic": "d-${topic[1]}"},
]  # fmt: skip
SETTINGS = Settings(routes=ROUTES, mqtt={"groups": [{"name": "fast"}]}, instance="plant-7", workers=0)


def told(topic: str, payload: bytes = b"{}", count: int | None = 12, **more: Any) -> Explanation:
    return explain(SETTINGS, Message(topic, payload, **more), lambda _topic: count)


def test_the_whole_way() -> None:
    found = told("devices/d7/t", b'{"seq": 3}', properties=Properties(user=(("unit", "C"),)), qos=2)
    assert [(view.name, view.matched) for view in found.routes] == [("alarms", None), ("telemetry", "devices/+/t")]
    assert found.routes[0].why == {"devices/+/alarm": "level 2 is 't', not 'alarm'"}
    (delivery,) = found.deliveries
    assert (delivery.filter, delivery.qos, delivery.group) == ("$share/gateway/devices/+/t", 1, "")
    assert delivery.sessions == tuple(f"plant-7-0-{number}" for number in range(4))
    assert (found.device, found.message_id, found.message_id_kind) == (b"d7", b"d7-3", "device")
    assert [(step.interceptor, step.outcome) for step in found.steps] == [("filter", "pass"), ("headers", "change")]
    assert found.steps[1].changes == (("header site", "not there", "north"),)
    (record,) = found.written
    assert (record.topic, record.key, record.value) == ("telemetry", b"d7", b'{"seq": 3}')
    assert (record.partition, record.partitions) == (partition_for(b"d7", 12), 12)
    assert dict(record.headers)["mqtt.user.unit"] == b"C"
    assert not record.dead_letter


def test_dropped_broken_and_unplaceable_messages() -> None:
    assert told("devices/d7/t", b'{"seq": -1}').filtered == "negative"
    broken = told("devices/d7/t", b"no json")
    assert broken.steps[0].outcome == "error"
    (letter,) = broken.written
    assert letter.dead_letter
    assert letter.topic == "gateway-dead-letters"
    assert dict(letter.headers)["dlq.reason"] == b"interceptor_error"
    (letter,) = told("dynamic/not allowed").written
    assert dict(letter.headers)["dlq.reason"] == b"invalid_topic"
    large = explain(
        SETTINGS.model_copy(update={"kafka": SETTINGS.kafka.model_copy(update={"max_record_bytes": 3})}),
        Message("devices/d7/alarm", b"long"), lambda _topic: None,
    )  # fmt: skip
    assert dict(large.written[0].headers)["dlq.reason"] == b"too_large"


class Stamp(Interceptor):
    """Sets a record's timestamp, and adds a header of a name that it has."""

    def on_send(self, record: Record) -> Record:
        return record.replace(timestamp_ms=1_700_000_000_000, headers=[*record.headers, ("mqtt.topic", b"again")])


def test_a_timestamp_is_told_as_it_is_written() -> None:
    assert "timestamp: the time of receipt;" in explain_text.text(told("devices/d7/alarm"), SETTINGS)
    route = {**ROUTES[0], "group": "", "interceptors": [{"use": f"{__name__}:Stamp"}]}
    settings = Settings(routes=[route])
    found = explain(settings, Message("devices/d7/alarm"), lambda _topic: None)
    assert "timestamp: 2023-11-14T22:13:20.000Z;" in explain_text.text(found, settings)
    assert ("header mqtt.topic", "devices/d7/alarm", "devices/d7/alarm, again") in found.steps[0].changes


def test_what_nobody_fetches_and_what_emqx_does_first() -> None:
    nowhere = told("elsewhere")
    assert nowhere.route is None
    assert not nowhere.deliveries
    assert nowhere.filtered == "no_route"
    delayed = told("$delayed/30/devices/d1/alarm", retain=True)
    assert delayed.route == "alarms"
    assert len(delayed.before) == 2
    assert told("$SYS/x").before
    assert told("gateways/plant-7/status").routes[0].name == "(the gateways' own messages)"


def test_an_unknown_number_of_partitions_and_a_missing_key() -> None:
    (record,) = told("devices/d7/t", b'{"seq": 3}', count=None).written
    assert (record.partition, record.partitions) == (None, None)
    keyless = told("plant", b'{"seq": 3}')
    assert keyless.written[0].key is None
    assert keyless.written[0].partition is None
    assert any("'${device}' has no value" in note for note in keyless.notes)


def test_a_message_that_two_filters_bring() -> None:
    settings = Settings(routes=[{"name": "a", "filters": ["a/+/c", "a/b/+"], "topic": "t"}])
    found = explain(settings, Message("a/b/c"), lambda _topic: 1)
    assert len(found.deliveries) == 2
    assert any("delivers it 2 times" in note for note in found.notes)


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "gateway.toml"
    route = '[[routes]]\nname = "a"\nfilters = ["a/+"]\ntopic = "t"\nkey = "${property.k}"\n'
    file.write_text(f'{route}[flow]\nprofile = "economy"\n')
    always = ["--config", str(file), "--partitions", "6"]
    raw = base64.b64encode(b"\xff\x00").decode()
    properties = ["k=v", "content_type=x/y", "correlation_data=\udcff"]
    out = cli("explain", "a/b", raw, "--encoding", "base64", "--properties", *properties, *always).out
    assert "key: v" in out
    assert f"partition: {partition_for(b'v', 6)} of 6" in out
    assert "mqtt.content_type = x/y" in out
    assert "flow.profile = economy: flow.linger_max = 60ms" in out
    document = json.loads(cli("explain", "a/b", "ff00", "--encoding", "hex", "--json", *always).out)
    assert document["written"][0]["value"] == {"base64": raw}
    assert "no route takes it" in cli("explain", "b", "--offline", "--config", str(file), status=1).out


@pytest.mark.parametrize("create", [True, False])
def test_a_record_for_a_topic_that_nobody_makes_is_not_written(
    create: bool, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.toml"
    route = '[[routes]]\nname = "a"\nfilters = ["a/+"]\ntopic = "t"\n'
    file.write_text(f"{route}[kafka]\ntopics.create = {str(create).lower()}\n")
    admin = contextlib.nullcontext(SimpleNamespace(topics=lambda _names: ()))
    monkeypatch.setattr("gateway.cli.records.explain.require_kafka", lambda *_: None)
    monkeypatch.setattr("gateway.cli.records.explain.KafkaAdmin", lambda *_, **__: admin)
    said = cli("explain", "a/b", "--config", file, status=int(not create)).out
    assert "Kafka shows us no topic 't'." in said
    assert ("kafka.topics.create is off" in said) is not create


@pytest.mark.parametrize(("words", "says"), [
    (["a/+"], "is no topic of a message"),
    (["a", "xyz", "--encoding", "hex"], "The payload is no hex"),
    (["a", "@nowhere"], "The payload cannot be read from nowhere: No such file or directory."),
    (["a", "@/dev/zero"], "from /dev/zero: it has more than 1 MiB; is it the right file?"),
    (["a", "--properties", "site"], "write NAME=VALUE"),
    (["a\udcff"], "is no UTF-8 text"),
    (["d\udcff", "--command"], "is no UTF-8 text"),
    (["a", "--properties", "site=\udcff"], "is no UTF-8 text"),
    (["a", "--properties", "payload_format=2"], "payload_format is a number from 0 to 1"),
    (["a", "--properties", "message_expiry=4294967296"], "message_expiry is a number from 0 to 4294967295"),
])  # fmt: skip
def test_wrong_arguments_say_what_is_right(
    words: list[str], says: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.arguments._LARGEST_INPUT", 1 << 20)
    assert says in cli("explain", *words, status=2).err

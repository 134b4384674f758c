"""What ``gateway explain --command`` says of a command, and that it is what the dispatcher does."""

import json
from pathlib import Path
from typing import Any

from bridge.produce.partitioner import partition_for
from config.settings import Settings
from gateway.tools.explain_command import CommandExplanation, explain_command
from tests.command_line import Cli

ROUTES = [
    {"name": name, "filters": [filter_], "topic": name, "device": "${topic[1]}",
     "metadata_headers": ["topic", "properties", "device"]}
    for name, filter_ in (("answers", "devices/+/res/#"), ("events", "events/+/acked"))
]  # fmt: skip
SIGNED = {"answers": "answers", "secret": "s" * 32}


def told(*headers: tuple[str, bytes], device: str = "pump-7", **commands: Any) -> CommandExplanation:
    table = {"name": "switches", "topics": ["commands"], "status_topic": "statuses", **commands}
    settings = Settings(routes=ROUTES, commands=[table])
    return explain_command(settings, settings.commands[0], device, b"on", headers, lambda _topic: 12)


def statuses(found: CommandExplanation) -> tuple[list[str], list[str]]:
    return [str(one.status) for one in found.after_sent], [str(one.status) for one in found.after_nobody]


def test_a_command_without_an_answer_ends_as_sent() -> None:
    found = told(("subject", b"switch"), ("site", b"oslo"), ("content-type", b"text/plain"))
    assert found.record.place.partition == partition_for(b"pump-7", 12)
    assert (found.sent.topic, found.sent.qos, found.sent.expiry_s) == ("devices/pump-7/req/switch", 1, 60)
    assert (found.sent.content_type, found.sent.response_topic) == ("text/plain", None)
    user = dict(found.sent.user)
    assert user.pop("expires-at") == str(found.deadline_ms)
    assert user == {"site": "oslo", "command-id": "TOPIC/PARTITION:OFFSET"}
    assert found.deadline_ms == found.record.timestamp_ms + 60_000
    assert found.awaited == ["nothing: it ends as sent once the broker has it"]
    assert statuses(found) == (["sent"], ["waiting"])
    assert found.after_sent[0].terminal


def test_an_answer_is_awaited_by_its_route() -> None:
    found = told(("response-required", b"true"), ("correlation-id", b"one"), mqtt_topic="to/${device}/${id}", **SIGNED)
    assert (found.sent.topic, found.sent.response_topic) == ("to/pump-7/${id}", "devices/pump-7/res")
    assert dict(found.sent.user)["command-id"] == "one"
    assert "by route 'answers' (devices/+/res/#); without one: timed_out" in found.awaited[0]
    assert statuses(found) == (["sent"], ["waiting"])
    assert not found.after_sent[0].terminal
    assert found.notes == []


def test_an_answer_that_another_route_takes_is_noted() -> None:
    first = {**ROUTES[0], "name": "first", "filters": ["devices/pump-7/#"], "topic": "first"}
    settings = Settings(
        routes=[first, *ROUTES],
        commands=[{"name": "s", "topics": ["c"], "status_topic": "st", "mqtt_topic": "to/${device}", **SIGNED}],
    )
    found = explain_command(
        settings, settings.commands[0], "pump-7", b"", [("response-required", b"true")], lambda _topic: None
    )
    assert "route 'first' takes a message on 'devices/pump-7/res'" in found.notes[0]
    assert found.partitions is None


def test_a_delivery_is_awaited_by_the_route_of_the_events() -> None:
    found = told(confirm="delivered", delivered_by="events", when_offline="fail", **SIGNED)
    (awaited,) = found.awaited
    assert "by route 'events' (events/+/acked) within 30s; then it is delivered, else timed_out" in awaited
    assert statuses(found) == (["sent"], ["undeliverable"])


def test_what_is_never_sent() -> None:
    found = told(device="pump/7")
    assert found.sent is None
    assert found.dead_letter[0] == "invalid_topic"
    found = told(("expires-at", b"1000"))
    assert found.sent is None
    assert found.notes == ["It has expired already, so it is never sent."]
    found = told(("device_id", b"pump-8"))
    assert (found.sent.topic, found.is_ordered) == ("devices/pump-8/req", False)


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "gateway.toml"
    route = '[[routes]]\nname = "r"\nfilters = ["r"]\ntopic = "r"\n'
    file.write_text(f'{route}[[commands]]\nname = "a"\ntopics = ["c"]\nstatus_topic = "s"\n')
    always = ["--config", str(file), "--partitions", "6"]
    out = cli("explain", "--command", "d", "on", "--properties", "subject=switch", *always).out
    for line in (
        "record of commands a:", f"  partition: {partition_for(b'd', 6)} of 6", "  topic: devices/d/req/switch",
        "  user property command-id = TOPIC/PARTITION:OFFSET", "  the broker takes it: sent (the end)",
        "  nobody subscribes: waiting, by when_offline 'wait'",
    ):  # fmt: skip
        assert line in out.splitlines()
    never = json.loads(cli("explain", "--command", "d/e", "--json", *always, status=1).out)
    assert never["dead_letter"][0] == "invalid_topic"
    cli("explain", "d", "--commands", "b", *always, status=2)
    cli("explain", "--command", "d", "--properties", "x", *always, status=2)
    with file.open("a") as more:
        more.write('[[commands]]\nname = "b"\ntopics = ["e"]\nstatus_topic = "s"\n')
    assert "several [[commands]] (a, b): choose one" in cli("explain", "--command", "d", *always, status=2).err
    cli("explain", "--commands", "b", "d", *always)
    file.write_text(route)
    cli("explain", "--command", "d", *always, status=78)

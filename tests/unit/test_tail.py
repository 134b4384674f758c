"""``gateway tail``: which records it shows, and that what devices wrote cannot move a terminal's cursor."""

import base64
import json
from typing import Any

import pytest

from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.intercept.expression import Expression
from config.errors import ExitStatus
from gateway.cli.main import main
from gateway.cli.records.tail import TailFilter, as_letter
from gateway.cli.records.tail_text import LinePrinter, as_json_line

NOW_MS = 1_763_683_200_123


def record(value: bytes | None = b'{"t":1}', key: bytes | None = b"k", **headers: bytes) -> LoggedRecord:
    named = [(name.replace("__", "."), content) for name, content in headers.items()]
    return LoggedRecord(Place("telemetry", 3, 1042), NOW_MS, key, value, named)


@pytest.mark.parametrize(("wanted", "expected"), [
    ({}, True),
    ({"keys": (b"k", b"other")}, True),
    ({"keys": (b"other",)}, False),
    ({"devices": ("d1",)}, True),
    ({"devices": ("k",)}, False),  # the header says another one
    ({"mqtt_filters": ("devices/+/x",)}, True),
    ({"mqtt_filters": ("other/#",)}, False),
    ({"headers": (("mqtt.user.site", b"north"),)}, True),
    ({"headers": (("mqtt.user.site", b"north"), ("mqtt.user.site", b"south"))}, False),
    ({"where": Expression("json.t == 1 and properties['site'] == 'north' and topic == 'devices/d1/x'")}, True),
    ({"where": Expression("qos == 2")}, True),
    ({"where": Expression("json.t > 1")}, False),
    ({"keys": (b"k",), "devices": ("d2",)}, False),
])  # fmt: skip
def test_filters(wanted: dict[str, Any], expected: bool) -> None:
    one = record(mqtt__topic=b"devices/d1/x", gateway__device=b"d1", mqtt__qos=b"2", mqtt__user__site=b"north")
    assert TailFilter(**wanted).takes(as_letter(one)) is expected


def test_without_a_device_header_the_key_is_the_device() -> None:
    assert TailFilter(devices=("k",)).takes(as_letter(record()))
    assert not TailFilter(devices=("k",)).takes(as_letter(record(key=None)))
    wanted = TailFilter(mqtt_filters=("#",))
    assert not wanted.takes(as_letter(record())), "no MQTT topic is known"
    assert wanted.unnamed == 1


@pytest.mark.parametrize("value", [b"no json", b'{"t":"text"}', b"{}", None, b"[1]"])
def test_what_cannot_be_judged_is_not_shown_but_counted(value: bytes | None) -> None:
    wanted = TailFilter(where=Expression("json.t > 1"))
    assert not wanted.takes(as_letter(record(value)))
    assert wanted.unjudged == 1
    assert wanted.why


HOSTILE = [
    b"\x1b]0;owned\x07\x1b[2J",
    "\u202etxt.exe".encode(),
    b"a\r\nb\x08\x7f",
    "\x9b31m".encode(),
    b"\xff\xfe\x00\x1b",
    "x" * 100_000,
    "\U0001f4a9\u200b".encode() * 5000,
]


@pytest.mark.parametrize("value", HOSTILE)
def test_nothing_that_a_device_wrote_moves_the_cursor(value: bytes | str) -> None:
    content = value.encode() if isinstance(value, str) else value
    letter = as_letter(record(content, key=content, mqtt__topic=content, gateway__device=content))
    for width in (None, 80):
        line = LinePrinter(width, topics=True).line(letter, 12)
        assert line.isprintable()
        assert width is None or len(line) <= width
    text = as_json_line(letter, 12)
    assert text.isascii()
    assert text.isprintable()
    payload = json.loads(text)["payload"]
    assert payload == {"base64": base64.b64encode(content).decode()} or payload == content.decode()


def test_a_time_that_is_none_ends_nothing() -> None:
    """Another writer of the topic may give nanoseconds for milliseconds."""
    odd = as_letter(record()._replace(timestamp_ms=NOW_MS * 1_000_000))
    assert LinePrinter(None, topics=False).line(odd, None).startswith("1763683200123000000 ms  3:1042")
    assert json.loads(as_json_line(odd, None))["time"] == "1763683200123000000 ms"


@pytest.mark.parametrize("value", ['{"t":1e999}', "-1e999", "9" * 5000, "NaN"])
def test_a_number_that_json_has_not_is_shown_as_its_text(value: str) -> None:
    line = as_json_line(as_letter(record(value.encode())), None)
    assert json.loads(line, parse_constant=pytest.fail)["payload"] == value


def test_a_line_says_when_where_who_and_what() -> None:
    letter = as_letter(record(mqtt__topic=b"devices/d1/x", gateway__device=b"d1"))
    assert (
        LinePrinter(None, topics=False).line(letter, 7) == '00:00:00.123  3:1042  devices/d1/x  d1  7 B  7 ms  {"t":1}'
    )
    assert LinePrinter(None, topics=True).line(as_letter(record(None)), None).split("  ")[1:] == [
        "telemetry/3:1042", "-", "key k", "0 B", "-", "(null)",
    ]  # fmt: skip


def test_columns_stay_in_place() -> None:
    printer = LinePrinter(None, topics=False)
    first = printer.line(as_letter(record(mqtt__topic=b"a/long/topic")), None)
    second = printer.line(as_letter(record(mqtt__topic=b"a")), None)
    assert first.index("{") == second.index("{")


def test_json_has_everything() -> None:
    letter = as_letter(record(b'{"t":1.5,"big":12345678901234567890}', mqtt__topic=b"a", x=b"\xff"))
    letter = as_letter(
        LoggedRecord(letter.place, NOW_MS, None, letter.value, [*letter.headers, ("x", b"2"), ("n", None)])
    )
    document = json.loads(as_json_line(letter, None))
    assert document == {
        "topic": "telemetry", "partition": 3, "offset": 1042, "time": "2025-11-21T00:00:00.123Z", "latency_ms": None,
        "key": None, "mqtt_topic": "a", "device": None, "bytes": 36,
        "headers": {"mqtt.topic": "a", "x": [{"base64": "/w=="}, "2"], "n": None},
        "payload": {"t": 1.5, "big": 12345678901234567890},
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [
    ["--route", "nobody"],
    ["--dead-letters", "--topic", "x"],
    ["--topic", "x", "--where", "nonsense +"],
    ["--topic", "x", "--where", "unknown > 1"],
    ["--topic", "x", "--mqtt-topic", "a/#/b"],
    [],
])  # fmt: skip
def test_arguments_that_cannot_be(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tail", *arguments]) == ExitStatus.USAGE


def test_a_route_that_makes_its_topics_needs_them_named(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[routes]]\nname = "r"\nfilters = ["a/+"]\ntopic = "t-${topic[1]}"\n')
    assert main(["tail", "--config", str(file)]) == ExitStatus.USAGE
    assert "name them with --topic" in capsys.readouterr().err

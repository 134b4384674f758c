"""What ``gateway dlq`` takes for a moment, a place and a match, and how it writes what it found."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.dead_letters.reading import DeadLetter, LoggedRecord, Place
from bridge.dead_letters.replay_marks import Marks
from bridge.kafka.reader import Partition, TopicFacts
from config.errors import ExitStatus
from gateway.base.moments import parse_moment
from gateway.cli.dead_letters import text as dlq_text
from gateway.cli.dead_letters.reader import DeadLetterReader
from gateway.cli.dead_letters.replay import Outcome, Result
from gateway.cli.dead_letters.selection import Filter, find, parse_place
from gateway.cli.main import main

NOW_MS = 1_763_683_200_000


def letter(**changes: object) -> DeadLetter:
    fields: dict[str, object] = {
        "places": (Place("dead", 1, 42),), "parts": 1, "timestamp_ms": NOW_MS, "key": b"k", "value": b"x", "size": 1,
        "headers": (("mqtt.topic", b"devices/7/state"), ("gateway.device", b"d7")),
        "said": {"dlq.reason": b"too_large", "dlq.route": b"telemetry", "dlq.first_seen_ms": b"%d" % NOW_MS},
    }  # fmt: skip
    return DeadLetter(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "ms"), [
    ("2h", NOW_MS - 7_200_000),
    ("1d12h", NOW_MS - 129_600_000),
    ("1.5s", NOW_MS - 1_500),
    ("2025-11-21", round(datetime(2025, 11, 21, tzinfo=UTC).timestamp() * 1000)),
    ("2025-11-21T08:30", round(datetime(2025, 11, 21, 8, 30, tzinfo=UTC).timestamp() * 1000)),
    ("2025-11-21T08:30+02:00", round(datetime(2025, 11, 21, 6, 30, tzinfo=UTC).timestamp() * 1000)),
    ("2025-11-21T08:30:00.250Z", round(datetime(2025, 11, 21, 8, 30, tzinfo=UTC).timestamp() * 1000) + 250),
])  # fmt: skip
def test_a_moment(text: str, ms: int) -> None:
    assert parse_moment(text, NOW_MS) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "2025-13-01", "-2h", "1700000000"])
def test_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match=r"2h|moment|month"):
        parse_moment(text, NOW_MS)


def test_a_place() -> None:
    assert parse_place("3:17", "dead") == Place("dead", 3, 17)
    assert parse_place("plant-7.dead/0:0", "dead") == Place("plant-7.dead", 0, 0)
    for text in ("", "3", "3:", ":3", "a/b:1", "/3:1", "3:-1", "t/3/1"):
        with pytest.raises(ValueError, match="PARTITION:OFFSET"):
            parse_place(text, "dead")
    parts = letter(places=(Place("dead", 1, 42), Place("dead", 1, 44)), parts=2)
    assert find([letter(), parts], Place("dead", 1, 44)) is parts
    assert find([letter()], Place("dead", 0, 42)) is None


@pytest.mark.parametrize(("wanted", "takes"), [
    (Filter(), True),
    (Filter(reasons=("too_large",), routes=("telemetry", "x"), devices=("d7",)), True),
    (Filter(reasons=("missing_value",)), False),
    (Filter(routes=("x",)), False),
    (Filter(devices=("d8",)), False),
    (Filter(mqtt_filters=("devices/+/state",)), True),
    (Filter(mqtt_filters=("devices/#", "x")), True),
    (Filter(mqtt_filters=("devices/+",)), False),
    (Filter(since_ms=NOW_MS, until_ms=NOW_MS + 1), True),
    (Filter(since_ms=NOW_MS + 1), False),
    (Filter(until_ms=NOW_MS), False),
])  # fmt: skip
def test_a_filter(wanted: Filter, takes: bool) -> None:
    assert wanted.takes(letter()) is takes


def test_without_an_mqtt_topic_no_filter_of_topics_takes_it() -> None:
    assert not Filter(mqtt_filters=("#",)).takes(letter(headers=()))


def test_the_table_is_cut_to_the_terminal_and_shows_no_control_characters() -> None:
    nasty = letter(headers=(("mqtt.topic", b"devices/\x1b[2J\n"),))
    rows = list(dlq_text.table([letter(), nasty], Marks(), "dead", 60))
    assert all(len(row) <= 60 for row in rows)
    assert rows[1].startswith("1:42 ")
    wide = list(dlq_text.table([nasty], Marks(), "other", None))
    assert wide[1].startswith("dead/1:42 ")
    assert r"devices/\x1b[2J\n" in wide[1]


def test_an_interceptor_s_words_cannot_write_on_the_terminal_of_a_replay() -> None:
    line = Result(letter(), Outcome.REFUSED, "interceptor_error: no temperature: \x1b]0;owned\x07").line("dead")
    assert line == r"1:42  refused: interceptor_error: no temperature: \x1b]0;owned\x07"


def test_one_odd_command_does_not_hide_the_others() -> None:
    """Headers and times of commands are what their writers chose, such as nanoseconds."""
    odd = letter(headers=(("mqtt.qos", b"urgent"),), said={"dlq.first_seen_ms": b"1763683200000000000"})
    rows = list(dlq_text.table([odd, letter()], Marks(), "dead", None))
    assert "2025-11-21" in rows[2]
    assert dlq_text.as_json(odd, Marks())["received"] == "1763683200000000000 ms"
    assert dlq_text.as_json(odd, Marks())["qos"] == 0
    assert list(dlq_text.describe(odd, Marks()))


def test_a_payload_that_is_not_whole_is_not_written_as_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    names = ("dlq.reason", b"too_large"), ("dlq.part_id", b"7"), ("dlq.first_seen_ms", b"%d" % NOW_MS)

    class Reader(DeadLetterReader):
        """A partition whose first record, of the first part of three, has expired; and a tombstone."""

        def __init__(self) -> None:
            pass

        async def beginnings(self) -> dict[Partition, int]:
            return {("dead", 0): 1}

        async def ends(self) -> dict[Partition, int]:
            return {("dead", 0): 4}

        async def read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Any:
            parts = [[*names, ("dlq.part", b"%d/3" % number)] for number in (2, 3)]
            for offset, headers in enumerate([*parts, [names[0]]], 1):
                if starts["dead", 0] <= offset < ends["dead", 0]:
                    value = None if offset == 3 else b"x"
                    yield LoggedRecord(Place("dead", 0, offset), NOW_MS, b"k", value, headers)

    @contextlib.asynccontextmanager
    async def reader(_settings: object) -> AsyncIterator[DeadLetterReader]:
        yield Reader()

    monkeypatch.setattr("gateway.cli.dead_letters.dlq._reader", reader)
    file = tmp_path / "gateway.toml"
    file.write_text('[dead_letter]\ntopic = "dead"\n')
    assert main(["dlq", "show", "0:1", "--payload", "--config", str(file)]) == ExitStatus.NOT_FOUND
    printed = capfdbinary.readouterr()
    assert printed.out == b""
    assert b"2 of 3 parts are there" in printed.err
    assert main(["dlq", "show", "0:3", "--payload", "--config", str(file)]) == 0, "a tombstone is whole"


def test_the_table_says_when_parts_are_missing() -> None:
    rows = list(dlq_text.table([letter(parts=3)], Marks(), "dead", None))
    assert "1 (1/3)" in rows[1]
    described = "\n".join(dlq_text.describe(letter(parts=3, value=None), Marks()))
    assert "1 of 3 parts are there" in described
    assert "payload: 1 bytes" in described


def test_retention_is_said_for_each_topic() -> None:
    facts = [("a", 604_800_000, "delete"), ("b", -1, None), ("c", None, None), ("d", 1000, "compact,delete")]
    said = list(dlq_text.retention([TopicFacts(name, 1, kept_ms, policy) for name, kept_ms, policy in facts]))
    assert said[0] == "a: dead letters expire 7d after receipt (retention.ms = 604800000), replayed or not."
    assert "for ever" in said[1]
    assert "DescribeConfigs" in said[2]
    assert "COMPACTED" in said[3]

"""What ``gateway dlq`` takes for a moment, a place and a match, and how it writes what it found."""

from datetime import UTC, datetime

import pytest

from bridge.dead_letters.reading import DeadLetter, Place
from bridge.dead_letters.replay_marks import Marks
from bridge.kafka.reader import TopicFacts
from gateway.base.moments import parse_moment
from gateway.cli.dead_letters import text as dlq_text
from gateway.cli.dead_letters.selection import Filter, find, parse_place

NOW_MS = 1_763_683_200_000


def letter(**changes: object) -> DeadLetter:
    headers = ((name, b"%s" % value) for name, value in (("mqtt.topic", b"devices/7/state"), ("gateway.device", b"d7")))
    fields: dict[str, object] = {
        "places": (Place("dead", 1, 42),),
        "parts": 1,
        "timestamp_ms": NOW_MS,
        "key": b"k",
        "value": b"x",
        "size": 1,
        "headers": tuple(headers),
        "said": {"dlq.reason": b"too_large", "dlq.route": b"telemetry", "dlq.first_seen_ms": b"%d" % NOW_MS},
    }
    return DeadLetter(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        ("1d12h", NOW_MS - 129_600_000),
        ("1.5s", NOW_MS - 1_500),
        ("2025-11-21", round(datetime(2025, 11, 21, tzinfo=UTC).timestamp() * 1000)),
        ("2025-11-21T08:30", round(datetime(2025, 11, 21, 8, 30, tzinfo=UTC).timestamp() * 1000)),
        ("2025-11-21T08:30+02:00", round(datetime(2025, 11, 21, 6, 30, tzinfo=UTC).timestamp() * 1000)),
        ("2025-11-21T08:30:00.250Z", round(datetime(2025, 11, 21, 8, 30, tzinfo=UTC).timestamp() * 1000) + 250),
    ],
)
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


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
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
    ],
)
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


def test_the_table_says_when_parts_are_missing() -> None:
    rows = list(dlq_text.table([letter(parts=3)], Marks(), "dead", None))
    assert "1 (1/3)" in rows[1]
    described = "\n".join(dlq_text.describe(letter(parts=3, value=None), Marks()))
    assert "1 of 3 parts are there" in described
    assert "payload: 1 bytes" in described


def test_retention_is_said_for_each_topic() -> None:
    said = list(
        dlq_text.retention(
            [
                TopicFacts("a", 1, 604_800_000, "delete"),
                TopicFacts("b", 1, -1, None),
                TopicFacts("c", 1, None, None),
                TopicFacts("d", 1, 1000, "compact,delete"),
            ]
        )
    )
    assert said[0] == "a: dead letters expire 7d after receipt (retention.ms = 604800000), replayed or not."
    assert "for ever" in said[1]
    assert "DescribeConfigs" in said[2]
    assert "COMPACTED" in said[3]

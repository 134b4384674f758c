"""What is computed from Kafka's answers: where a group is kept, how far it is behind, leaders, moves, tables."""

import io
import json
from unittest.mock import Mock

import pytest

from gateway.admin.errors import AdminRefusedError
from gateway.admin.groups import java_hash, offsets_partition
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.lag import GroupLag, Look, group_lag
from gateway.admin.leadership import leadership, not_preferred
from gateway.admin.model import (
    Answers,
    Broker,
    Cluster,
    Group,
    LogDir,
    Member,
    Partition,
    Reassignment,
    ReplicaLog,
    Topic,
    TopicPartition,
)
from gateway.admin.progress import moving
from gateway.cli.kafka.cluster import _ask_all, _data, _text
from gateway.cli.table import as_data, as_json, harmless, mention, print_json, severity, table, worst
from tests.terminal import Terminal

# --- where a group is kept ---


@pytest.mark.parametrize(("text", "hashed"), [
    ("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -2147483648), ("группа", 1749938458),
    ("\N{GRINNING FACE}", 1772899),  # two code units: 0xD83D, 0xDE00
])  # fmt: skip
def test_the_hash_is_java_s(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_the_partition_is_kafka_s() -> None:
    """``Utils.abs`` makes the smallest integer 0, where Java's own leaves it negative."""
    assert offsets_partition("polygenelubricants", 50) == 0
    assert offsets_partition("hello", 50) == 22
    assert offsets_partition("группа", 50) == 8
    assert offsets_partition("hello", 3) == 99162322 % 3


# --- lag ---

PLACE = TopicPartition("t", 0)
MEMBER = Member("m-1", "reader", "/10.0.0.1", None, (PLACE,))


def look_of(
    at_s: float, committed: int | None, end: int | None, *members: Member, start: int = 0, state: str = "Stable"
) -> Look:
    return Look(
        at_s,
        Group("g", "classic", state, "range", 1, 0, 50, members),
        {} if committed is None else {PLACE: committed},
        {} if end is None else {PLACE: end},
        {PLACE: start},
    )


def lag_of(now: Look, before: Look | None = None, *, written_s_ago: float | None = None) -> GroupLag:
    times = {} if written_s_ago is None else {PLACE: round(1e12 - written_s_ago * 1000)}
    return group_lag(now, before, times, 1e12)


def test_lag_is_what_is_not_finished() -> None:
    found = lag_of(look_of(0, 40, 100, MEMBER), written_s_ago=90)
    (one,) = found.partitions
    assert (one.lag, one.lost, one.age_seconds, one.member, one.state) == (60, 0, 90, MEMBER, "behind")
    assert (found.lag, found.age_seconds) == (60, 90)


def test_without_a_commit_everything_that_is_there_is_unread() -> None:
    (one,) = lag_of(look_of(0, None, 100, MEMBER, start=30)).partitions
    assert (one.committed, one.lag) == (None, 70)


def test_a_commit_from_before_the_topic_was_made_anew_is_not_caught_up() -> None:
    """By its auto.offset.reset the reader may leave out all that the new topic has."""
    (one,) = lag_of(look_of(0, 5000, 100, MEMBER)).partitions
    assert (one.lag, one.state) == (None, "unknown")
    assert "5000 > 100" in one.problem


def test_records_that_were_deleted_are_lost_and_no_lag() -> None:
    found = lag_of(look_of(0, 40, 100, MEMBER, start=70))
    assert (found.partitions[0].lost, found.lag, found.partitions[0].state) == (30, 30, "lost records")
    assert found.bad == found.partitions


@pytest.mark.parametrize(("before", "now", "age_s", "state"), [
    (look_of(0, 100, 100, MEMBER), look_of(5, 200, 200, MEMBER), None, "caught up"),
    (look_of(0, 0, 900, MEMBER), look_of(5, 500, 1000, MEMBER), 60, "catching up"),
    (look_of(0, 0, 1000, MEMBER), look_of(5, 50, 2000, MEMBER), 60, "slow"),
    (look_of(0, 0, 1000, MEMBER), look_of(5, 50, 2000, MEMBER), None, "slow"),
    (look_of(0, 0, 1000, MEMBER), look_of(5, 800, 2000, MEMBER), None, "moving"),
    (look_of(0, 0, 1000, MEMBER), look_of(5, 800, 2000, MEMBER), 5, "moving"),  # commits come in steps
    (look_of(0, 0, 1000, MEMBER), look_of(5, 1000, 2000, MEMBER), 60, "moving"),
    (look_of(0, 50, 1000, MEMBER), look_of(5, 50, 2000, MEMBER), 60, "stopped"),
    (look_of(0, 50, 1000), look_of(5, 50, 1000), 60, "nobody reads it"),
    (look_of(0, 50, 1000, MEMBER), look_of(5, 50, 1000, MEMBER, state="Assigning"), 60, "rebalancing"),
    (None, look_of(5, 50, 1000), 60, "nobody reads it"),
    (None, look_of(5, 50, 1000, MEMBER), 60, "behind"),
    (None, look_of(5, 50, None, MEMBER), None, "unknown"),
    (look_of(0, 500, 100, MEMBER), look_of(5, 500, 100, MEMBER), None, "unknown"),
    (look_of(0, None, 1000, MEMBER), look_of(5, 10, 1000, MEMBER), 60, "behind"),  # its first commit
])  # fmt: skip
def test_stopped_is_told_from_slow(before: Look | None, now: Look, age_s: float | None, state: str) -> None:
    assert lag_of(now, before, written_s_ago=age_s).partitions[0].state == state


def test_a_reader_that_keeps_up_with_a_spool_s_replay_is_not_slow() -> None:
    """What comes is ten minutes old by its own time stamps; a commit of the reader is due."""
    found = lag_of(look_of(6, 1350, 1600, MEMBER), look_of(0, 900, 1000, MEMBER), written_s_ago=600)
    assert found.partitions[0].state == "moving"
    assert found.age_seconds == 6, "all that is unread has come since the earlier look"
    behind = lag_of(look_of(6, 900, 1600, MEMBER), look_of(0, 500, 1000, MEMBER), written_s_ago=600)
    assert behind.partitions[0].state == "moving", "seven seconds' worth"
    slow = lag_of(look_of(6, 100, 1600, MEMBER), look_of(0, 0, 1000, MEMBER), written_s_ago=600)
    assert slow.partitions[0].state == "slow"
    assert slow.age_seconds == 600


def test_the_time_to_catch_up_is_at_the_pace_between_the_looks() -> None:
    found = lag_of(look_of(10, 1000, 1500, MEMBER), look_of(0, 0, 1000, MEMBER))
    assert found.partitions[0].seconds_to_catch_up == pytest.approx(500 / (100 - 50))
    assert lag_of(look_of(10, 100, 1500, MEMBER), look_of(0, 0, 1000, MEMBER)).partitions[0].seconds_to_catch_up is None


# --- leaders ---


def partition(number: int, leader: int | None, *replicas: int, isr: tuple[int, ...] | None = None) -> Partition:
    return Partition("t", number, leader, 0, replicas, replicas if isr is None else isr)


def test_the_imbalance_is_the_controller_s() -> None:
    """Of the partitions that prefer a broker, the share that it does not lead."""
    topic = Topic(
        "t", "1", False, (partition(0, 2, 1, 2), partition(1, 2, 2, 1), partition(2, None, 1), partition(3, 1, 1, 2))
    )
    found = leadership([topic], [Broker(1, "a", 1), Broker(2, "a", 2), Broker(7, "a", 7)])
    assert [(one.broker, one.leads, one.preferred, one.elsewhere, one.replicas) for one in found] == [
        (1, 1, 3, 2, 4),
        (2, 2, 1, 0, 3),
        (7, 0, 0, 0, 0),
    ]
    assert [one.imbalance for one in found] == [pytest.approx(2 / 3), 0.0, 0.0]
    assert [place for place, _ in not_preferred([topic])] == [TopicPartition("t", 0), TopicPartition("t", 2)]


# --- moves ---


def folder(topic: str, number: int, size: int, *, future: bool = False) -> LogDir:
    return LogDir("/d", None, None, None, (ReplicaLog(topic, number, size, 0, future),))


def test_a_move_is_as_far_as_its_slowest_copy() -> None:
    topic = Topic("t", "1", False, (partition(0, 1, 1, 2, 3, isr=(1, 3)),))
    running = Reassignment("t", 0, (1, 2, 3), (2, 3), (1,))
    dirs = {
        1: [folder("t", 0, 1000)],
        2: [folder("t", 0, 250)],
        3: [folder("t", 0, 1500), folder("t", 0, 9, future=True)],
    }
    (one,) = moving([running], [topic], dirs)
    assert (one.bytes, one.copied, one.in_sync, one.share) == (1000, {2: 250, 3: 1500}, (3,), 0.25)
    (one,) = moving([running], [topic], {1: dirs[1], 2: dirs[2]})
    assert (one.copied, one.share) == ({2: 250, 3: None}, None)
    (one,) = moving([running], [topic], {1: dirs[1], 2: [], 3: []})
    assert one.share == 0.0
    (one,) = moving([running], [Topic("t", "1", False, (partition(0, None, 1),))], dirs)
    assert (one.leader, one.bytes, one.share) == (None, None, None)


# --- tables ---


def test_columns_are_aligned() -> None:
    rows = [("a", 5, None), ("long name", 1234, "x")]
    assert table(("NAME", "COUNT", "WORD"), rows, indent="  ") == (
        "  NAME       COUNT  WORD\n"
        "  a              5  -\n"
        "  long name   1234  x\n"
    )  # fmt: skip
    assert table(("NAME",), []) == ""


def test_a_severity_is_a_word_and_a_colour_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert severity("FAIL", io.StringIO()) == "FAIL"
    coloured = severity("FAIL", Terminal())
    assert "FAIL" in coloured
    assert coloured != "FAIL"
    assert table(("S",), [(coloured,), ("ok",)]).splitlines()[1] == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert severity("FAIL", Terminal()) == "FAIL"
    assert worst(["ok", "FAIL", "warn"]) == "FAIL"
    assert worst([]) == "ok"


def test_everything_told_becomes_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(Answers({1: (PLACE, Broker(1, "a", 9092))}))
    assert json.loads(capsys.readouterr().out) == {
        "by_broker": {
            "1": [{"topic": "t", "partition": 0}, {"id": 1, "host": "a", "port": 9092, "rack": None, "fenced": None}]
        },
        "unanswered": [],
    }
    assert as_data({"a": (1, None, {2})}) == {"a": [1, None, [2]]}


def test_a_name_from_outside_cannot_write_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client id that conceals what stands behind it, or clears the screen, as text and as JSON; our own stay."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = table(("NAME",), [("a\x1b[2Jb",), ("two\nlines",), ("組",)])
    assert text.splitlines() == ["NAME", "a?[2Jb", "two?lines", "組"]
    ours = severity("warn", Terminal())
    for hostile in ("\x1b[8mhidden", "\x1b[2J", "\x9b2J", "\x1b]0;title\x07", "a\rb", "\u202egpj"):
        (shown,) = table(("NAME",), [(f"{ours}: {hostile}",)]).splitlines()[1:]
        assert shown.startswith(f"{ours}: ")
        assert shown.removeprefix(ours).isprintable(), repr(hostile)
        assert harmless(f"{ours}\n{hostile}").removeprefix(f"{ours}\n").isprintable()
        text = as_json({"name": hostile}, indent=None)
        assert text.isprintable(), repr(hostile)
        assert json.loads(text) == {"name": hostile}
    assert as_json({"name": "组 ü"}, indent=None) == '{"name": "组 ü"}'


def test_an_error_cannot_write_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers' own words stand in errors."""
    mention("Kafka says: \x1b[2J\nand more")
    assert capsys.readouterr().err == "gateway: Kafka says: ?[2J\nand more\n"


def test_of_what_kafka_does_not_show_nothing_is_said_to_be_well() -> None:
    admin = Mock(spec=KafkaAdmin)
    admin.cluster.return_value = Cluster("c", (), 1, None)
    admin.versions.return_value = admin.log_dirs.return_value = Answers({})
    admin.topics.side_effect = admin.reassignments.side_effect = AdminRefusedError("no right")
    view = _ask_all(admin)
    assert view.problems == ["no right", "no right"]
    text = _text(view)
    assert "partitions: FAIL: unknown" in text
    assert "reassignments: FAIL: unknown" in text
    assert [_data(view)[name] for name in ("leaderless", "under_replicated", "reassignments")] == [None] * 3

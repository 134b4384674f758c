"""What the settings' topics should be, the steps to it, and steps that go on after every kind of interruption."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.errors import ExitStatus
from config.settings import Settings
from gateway.admin.audit import AuditError, AuditLog
from gateway.admin.changes import NewTopic
from gateway.admin.deletion import deletion_forbidden, deletion_warnings, kafka_s_own
from gateway.admin.errors import AdminError, AdminMissingError, AdminRefusedError, AdminRetriableError
from gateway.admin.model import Answers, Broker, Cluster, ConfigEntry, Partition, Topic, Unanswered
from gateway.admin.topic_apply import act, apply, delete, refusals
from gateway.admin.topic_plan import plan, templated, wanted_topics
from gateway.cli.main import main
from tests.command_line import Cli
from tests.unit.access_parts import ManualClock

NOT_THERE = AdminRetriableError("The controller did not answer.")


def topic_of(name: str, partitions: int, replication: int = 1, *, id: str = "1", led: bool = True) -> Topic:  # noqa: A002
    replicas = tuple(range(1, replication + 1))
    return Topic(
        name, id, False,
        tuple(Partition(name, number, 1 if led else None, 0, replicas, replicas) for number in range(partitions)),
    )  # fmt: skip


def settings_of(*declare: dict[str, object], routes: Iterable[dict[str, object]] = (), **topics: object) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {"topics": {"declare": declare, **topics}},
            "routes": [{"filters": ["a/#"], **route} for route in routes],
            "ledger": {"topic": ""},
            "dead_letter": {"topic": "dead"},
        }
    )


def steps_of(settings: Settings, *there: Topic, **configs: Mapping[str, str]) -> list[tuple[str, str]]:
    entries = {
        name: {key: ConfigEntry(key, value, "default") for key, value in values.items()}
        for name, values in configs.items()
    }
    found = plan(wanted_topics(settings), {"dead": topic_of("dead", 12)} | {one.name: one for one in there}, entries)
    return [(step.kind, step.text) for step in found if step.topic != "dead"]


# --- the plan ---


def test_every_topic_that_settings_name_is_wanted() -> None:
    settings = Settings.model_validate(
        {
            "instance": "edge",
            "routes": [
                {"name": "one", "filters": ["a/#"], "topic": "t"},
                {"name": "two", "filters": ["b/#"], "topic": "t", "dead_letter_topic": "own-dead"},
                {"name": "three", "filters": ["c/#"], "topic": "${instance}-made"},
                {"name": "four", "filters": ["d/+"], "topic": "x-${topic[1]}"},
                {"name": "five", "filters": ["e/+"], "topic": "y-${device}", "device": "${topic[1]}"},
            ],
            "kafka": {"topics": {"declare": [{"name": "x-1", "partitions": 3}]}},
        }
    )
    assert {one.name: one.used_by for one in wanted_topics(settings)} == {
        "t": ("route one", "route two"), "edge-made": ("route three",), "gateway-dead-letters": ("dead letters",),
        "own-dead": ("dead letters",), "gateway-ledger": ("ledger",), "x-1": ("declared",),
    }  # fmt: skip
    assert templated(settings) == (("four", "x-${topic[1]}"), ("five", "y-${device}"))


def test_topics_of_commands_are_made_as_their_use_asks() -> None:
    settings = Settings.model_validate(
        {
            "commands": [{"name": "switches", "topics": ["cmd"], "status_topic": "told", "status_retention": "2h"}],
            "ledger": {"topic": ""},
            "dead_letter": {"topic": "dead"},
        }
    )
    told = "cleanup.policy=compact,delete, retention.ms=7200000"
    assert steps_of(settings) == [
        ("create", "12 partitions, the broker's default replication, cleanup.policy=delete"),
        ("create", f"12 partitions, the broker's default replication, {told}"),
    ]
    well = {
        "cmd": {"cleanup.policy": "delete"},
        "told": {"cleanup.policy": "delete,compact", "retention.ms": "7200000"},
    }
    there = (topic_of("cmd", 3), topic_of("told", 3))
    assert [kind for kind, _ in steps_of(settings, *there, **well)] == ["nothing", "nothing"]
    compacted = well | {"cmd": {"cleanup.policy": "compact"}}
    assert [kind for kind, _ in steps_of(settings, *there, **compacted)] == ["configure", "nothing"]


@pytest.mark.parametrize(
    ("declare", "there", "partitions"),
    [([{"name": "cmd", "partitions": 24}], (), 24), ([], (topic_of("cmd", 20),), 20), ([], (topic_of("cmd", 3),), 12),
     ([{"name": "told", "retention": "1h"}], (topic_of("cmd", 20),), 20),
     ([{"name": "told", "partitions": 4}], (topic_of("cmd", 20),), 4)],
)  # fmt: skip
def test_a_topic_of_statuses_is_made_with_the_partitions_of_its_commands(
    declare: list[dict[str, Any]], there: tuple[Topic, ...], partitions: int
) -> None:
    """The start refuses one with fewer, as long as nobody has asked for them."""
    commands = [{"name": "switches", "topics": ["cmd"], "status_topic": "told"}]
    settings = Settings.model_validate({"commands": commands, "kafka": {"topics": {"declare": declare}}})
    wanted = wanted_topics(settings)
    steps = plan(wanted, {topic.name: topic for topic in there}, {})
    (step,) = (one for one in steps if one.topic == "told")
    assert (step.kind, step.after["partitions"]) == ("create", partitions)
    kafka: Any = FakeKafka(*there)
    act(kafka, step, {one.name: one for one in wanted})
    assert len(kafka.truth["told"].partitions) == partitions


ROUTE = {"routes": [{"name": "r", "topic": "t"}]}


@pytest.mark.parametrize(("declared", "more", "there", "kind", "says"), [
    ({}, ROUTE, (), "create", "12 partitions, the broker's default replication"),
    ({"partitions": 1, "replication": 3, "retention": "1d"}, {}, (), "create",
        "1 partition, replication 3, retention.ms=86400000"),
    ({"partitions": 4}, {}, (1,), "grow", ""),
    ({"partitions": 4}, {}, (3,), "grow", ""),
    ({"partitions": 4}, {}, (4,), "nothing", ""),
    ({"partitions": 4}, {}, (5,), "differs", "partitions cannot be removed"),
    ({}, ROUTE, (3,), "nothing", ""),  # 12 is the default, and for topics that are made
    ({}, {**ROUTE, "partitions": 6}, (3,), "differs", "name it in kafka.topics.declare"),
    ({"replication": 3}, {}, (3, 1), "differs", "kafka-reassign-partitions.sh"),
    ({"replication": -1}, {}, (3, 1), "nothing", ""),
])  # fmt: skip
def test_a_topic_becomes_what_the_settings_say_in_so_many_words(
    declared: dict[str, object], more: dict[str, Any], there: tuple[int, ...], kind: str, says: str
) -> None:
    settings = settings_of(*([{"name": "t", **declared}] if declared else []), **more)
    ((found, text),) = steps_of(settings, *([topic_of("t", *there)] if there else []))
    assert found == kind
    assert text == says if kind == "create" else says in text


def test_configuration_is_compared_by_what_it_means() -> None:
    settings = settings_of({"name": "t", "cleanup_policy": "compact,delete", "retention": "1h"})
    same = {"cleanup.policy": "delete,compact", "retention.ms": "3600000"}
    assert steps_of(settings, topic_of("t", 3), t=same)[0][0] == "nothing"
    other = {"cleanup.policy": "delete", "retention.ms": "-1"}
    found = plan(wanted_topics(settings), {"t": topic_of("t", 3)}, {"t": {
        key: ConfigEntry(key, value, "topic") for key, value in other.items()}})  # fmt: skip
    (step,) = (one for one in found if one.topic == "t")
    assert step.text == "retention.ms: -1 → 3600000, cleanup.policy: delete → compact,delete"
    assert "Kafka deletes records older" in step.warning
    assert (step.before["retention.ms"], step.after["retention.ms"]) == ("-1", "3600000")


# --- applying ---


class FakeKafka:
    """Two brokers that learn of a change some looks later; ``breaks`` are raised, one by one, instead of an answer."""

    def __init__(self, *topics: Topic, brokers: int = 2) -> None:
        self.truth = {topic.name: topic for topic in topics}
        self.retention: dict[str, str] = {}
        self.lags = dict.fromkeys(range(1, brokers + 1), 0)
        self.views = {number: dict(self.truth) for number in self.lags}
        self.fenced: set[int] = set()
        self.silent: set[int] = set()
        self.breaks: dict[str, list[AdminError]] = {}
        self.done_before_it_broke = False
        self.asked: list[str] = []
        self.made_anew = False

    def _break(self, what: str) -> None:
        self.asked.append(what)
        if waiting := self.breaks.get(what):
            raise waiting.pop(0)

    def cluster(self) -> Cluster:
        self._break("cluster")
        brokers = tuple(Broker(number, "k", 9092, None, number in self.fenced) for number in self.lags)
        return Cluster("c", brokers, 1, 30)

    def topics(self, names: Iterable[str] | None = None) -> tuple[Topic, ...]:
        self._break("topics")
        return tuple(self.truth[name] for name in names or self.truth if name in self.truth)

    def topics_by_broker(self, names: Iterable[str]) -> Answers[tuple[Topic, ...]]:
        told = {}
        for number in self.lags:
            if number in self.silent:
                continue
            if self.lags[number]:
                self.lags[number] -= 1
            else:
                self.views[number] = dict(self.truth)
            told[number] = tuple(self.views[number][name] for name in names if name in self.views[number])
        unanswered = tuple(Unanswered(number, "k:9092", f"broker {number} is silent", True) for number in self.silent)
        return Answers(told, unanswered)

    def configs(self, kind: str, names: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        assert kind == "topic"
        key = "retention.ms"
        return {name: {key: ConfigEntry(key, self.retention.get(name, "1"), "topic")} for name in names}

    def create_topic(self, topic: NewTopic, *, validate_only: bool = False) -> bool:
        self._act("create", lambda: self.truth.setdefault(topic.name, topic_of(topic.name, topic.partitions)))
        self.retention[topic.name] = topic.configs.get("retention.ms", "1")
        return True

    def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        self._act("grow", lambda: self.truth.update({topic: topic_of(topic, count)}))

    def alter_topic(self, topic: str, configs: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        self._act("alter", lambda: self.retention.update({topic: str(configs["retention.ms"])}))

    def delete_topic(self, topic: str) -> None:
        if topic not in self.truth:
            raise AdminMissingError("gone")
        self._act("delete", lambda: self.truth.pop(topic))
        if self.made_anew:
            self.truth[topic] = topic_of(topic, 1, id="2")

    def _act(self, what: str, change: Any) -> None:
        if self.done_before_it_broke and self.breaks.get(what):
            change()
        self._break(what)
        change()


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "logs" / "admin.log", "gateway topics apply", "c")


def lines_of(audit: AuditLog) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.path.read_text().splitlines()]


SETTINGS = settings_of({"name": "t", "partitions": 4, "retention": "1h"})
DEAD = topic_of("dead", 12)


def applied(kafka: FakeKafka, audit: AuditLog, timeout_s: float = 30) -> Any:
    clock = ManualClock()
    return apply(kafka, wanted_topics(SETTINGS), audit, timeout_s, monotonic=clock.now_s, sleep=clock.forward)  # type: ignore[arg-type]


def test_what_is_as_it_should_be_is_left_alone(audit: AuditLog) -> None:
    kafka = FakeKafka(topic_of("t", 4), DEAD)
    kafka.retention["t"] = "3600000"
    result = applied(kafka, audit)
    assert (result.done, result.left, result.behind) == ([], {}, ())
    assert not audit.path.exists()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("what", ["create", "grow", "alter", "topics", "cluster"])
def test_an_interruption_costs_a_repetition_and_nothing_else(audit: AuditLog, what: str, done: bool) -> None:
    """Whether Kafka did what it gave no answer to, or did not."""
    kafka = FakeKafka(DEAD) if what == "create" else FakeKafka(topic_of("t", 2), DEAD)
    kafka.breaks[what] = [NOT_THERE] * 3
    kafka.done_before_it_broke = done
    result = applied(kafka, audit)
    assert (result.left, result.behind) == ({}, ())
    assert {step.kind for step in result.done} >= ({"create"} if what == "create" else {"grow", "configure"})
    assert len(kafka.truth["t"].partitions) == 4
    assert kafka.retention["t"] == "3600000"
    lines = lines_of(audit)
    assert [line["id"] for line in lines[::2]] == [line["id"] for line in lines[1::2]]
    assert {line["phase"] for line in lines[::2]} == {"intent"}
    if what in {"create", "grow", "alter"}:
        assert any("unknown, it may have been done" in line["result"] for line in lines[1::2])


def test_it_ends_when_its_time_is_over(audit: AuditLog) -> None:
    kafka = FakeKafka(DEAD)
    kafka.breaks["create"] = [NOT_THERE] * 1000
    result = applied(kafka, audit, timeout_s=5)
    assert [(step.topic, why) for step, why in result.left.items()] == [("t", str(NOT_THERE))]
    kafka.breaks = {"topics": [NOT_THERE] * 1000}
    assert applied(kafka, audit, timeout_s=5).behind == (str(NOT_THERE),)


@pytest.mark.parametrize("breaks", [0, 3, 1000])
def test_a_refusal_is_told_once_and_keeps_nothing_else_back_also_when_kafka_then_goes_away(
    audit: AuditLog, breaks: int
) -> None:
    class Away(FakeKafka):
        def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
            self.breaks["topics"] = [NOT_THERE] * breaks
            self.asked.append("grow")
            raise AdminError("Topic t cannot be grown.")

    kafka = Away(topic_of("t", 2), DEAD)
    result = applied(kafka, audit)
    assert [(step.kind, why) for step, why in result.left.items()] == [("grow", "Topic t cannot be grown.")]
    assert [step.kind for step in result.done] == ["configure"]
    assert kafka.asked.count("grow") == 1


def test_it_returns_when_every_broker_that_takes_part_shows_it(audit: AuditLog) -> None:
    kafka = FakeKafka(DEAD, brokers=3)
    kafka.lags = {1: 0, 2: 7, 3: 1000}
    kafka.fenced = {3}
    result = applied(kafka, audit)
    assert (result.behind, result.fenced, kafka.lags[2]) == ((), (3,), 0)
    kafka = FakeKafka(DEAD)
    kafka.lags[2] = 1000
    assert applied(kafka, audit).behind == ("broker 2 does not show it yet",)
    kafka = FakeKafka(DEAD)
    kafka.silent = {2}
    assert applied(kafka, audit).behind == ("broker 2 is silent",)


def test_what_a_slow_broker_does_not_show_yet_is_not_done_twice(audit: AuditLog) -> None:
    class Slow(FakeKafka):
        def configs(self, kind: str, names: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
            self.asked.append("configs")
            if self.asked.count("configs") < 4:
                self.retention, now = {}, self.retention
                told = super().configs(kind, names)
                self.retention = now
                return told
            return super().configs(kind, names)

    kafka = Slow(topic_of("t", 4), DEAD)
    result = applied(kafka, audit)
    assert [step.kind for step in result.done] == ["configure"]
    assert (result.left, kafka.asked.count("alter")) == ({}, 1)


def test_a_topic_that_is_there_and_not_shown_is_left_with_the_reason(audit: AuditLog) -> None:
    class Hidden(FakeKafka):
        def create_topic(self, topic: NewTopic, *, validate_only: bool = False) -> bool:
            return False

    kafka = Hidden(DEAD)
    ((step, why),) = applied(kafka, audit, timeout_s=5).left.items()
    assert (step.topic, "right to Describe it" in why) == ("t", True)
    steps = plan(wanted_topics(SETTINGS), {"dead": DEAD}, {})
    assert [step.topic for step in refusals(kafka, steps, wanted_topics(SETTINGS))] == ["t"]  # type: ignore[arg-type]


# --- deleting ---


def deleted(kafka: FakeKafka, audit: AuditLog) -> tuple[str, ...]:
    clock = ManualClock()
    return delete(kafka, topic_of("t", 2), audit, 10, monotonic=clock.now_s, sleep=clock.forward)  # type: ignore[arg-type]


@pytest.mark.parametrize("done", [False, True])
def test_a_deletion_goes_on_after_an_interruption(audit: AuditLog, done: bool) -> None:
    kafka = FakeKafka(topic_of("t", 2))
    kafka.lags[2] = 3
    kafka.breaks["delete"] = [NOT_THERE]
    kafka.done_before_it_broke = done
    assert deleted(kafka, audit) == ()
    assert kafka.lags[2] == 0
    assert lines_of(audit)[0]["before"] == {"id": "1", "partitions": 2, "replication": 1}


def test_a_topic_that_comes_back_is_told(audit: AuditLog) -> None:
    kafka = FakeKafka(topic_of("t", 2))
    kafka.made_anew = True
    (sentence,) = deleted(kafka, audit)
    assert "created again with another id" in sentence
    assert "auto.create.topics.enable" in sentence


def test_a_refused_deletion_does_not_hide_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Guarded(FakeKafka):
        def broker_configs(self, _names: Iterable[str]) -> Answers[dict[str, ConfigEntry]]:
            return Answers({}, ())

        def delete_topic(self, topic: str) -> None:
            if topic == "b":
                raise AdminRefusedError("Kafka does not let us delete b.")
            super().delete_topic(topic)

    kafka = Guarded(*(topic_of(name, 1) for name in "abc"))
    settings = SETTINGS.model_copy(update={"data_dir": tmp_path})
    monkeypatch.setattr("gateway.cli.kafka.topics.connected", lambda _: contextlib.nullcontext((settings, kafka)))
    assert main(["topics", "delete", "a", "b", "c", "--yes"]) == ExitStatus.INCOMPLETE
    assert list(kafka.truth) == ["b"]
    told = capsys.readouterr().out
    assert "No broker shows a any more." in told
    assert "FAIL b: Kafka does not let us delete b." in told
    assert main(["topics", "delete", "b", "--yes"]) == ExitStatus.REFUSED


def test_kafka_does_not_match_settings_that_apply_cannot_bring_about(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = FakeKafka(topic_of("t", 6), DEAD)
    kafka.retention["t"] = "3600000"
    settings = SETTINGS.model_copy(update={"data_dir": tmp_path})
    monkeypatch.setattr("gateway.cli.kafka.topics.connected", lambda _: contextlib.nullcontext((settings, kafka)))
    said = cli("topics", "apply").out
    assert ("partitions cannot be removed" in said, "matches" in said) == (True, False)
    (step,) = json.loads(cli("topics", "apply", "--json").out)["differs"]
    assert (step["topic"], step["before"]) == ("t", {"partitions": 6})


@pytest.mark.parametrize("words", [("topics", "list"), ("leaders", "show")])
def test_topics_that_kafka_does_not_show_are_not_well(
    words: tuple[str, str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = SimpleNamespace(topics=lambda _names=None: (), brokers=lambda: ())
    monkeypatch.setattr(f"gateway.cli.kafka.{words[0]}.connected", lambda _: contextlib.nullcontext((None, admin)))
    assert cli(*words).out.strip() == "Kafka shows us no topic."


def test_what_speaks_against_a_deletion() -> None:
    def broker(**values: str) -> dict[int, dict[str, ConfigEntry]]:
        return {4: {key.replace("_", "."): ConfigEntry(key, value, "file") for key, value in values.items()}}

    assert deletion_forbidden(broker(delete_topic_enable="true")) is None
    assert "on broker 4" in (deletion_forbidden(broker(delete_topic_enable="false")) or "")
    assert kafka_s_own(["a"]) is None
    assert "__consumer_offsets" in (kafka_s_own(["a", "__consumer_offsets"]) or "")
    route = {"name": "r", "topic": "t"}
    assert deletion_warnings(settings_of(routes=[route]), ["other"], broker()) == []
    by_itself = broker(auto_create_topics_enable="true")
    created = deletion_warnings(settings_of(routes=[route], create=True), ["t"], by_itself)
    assert "auto.create.topics.enable=true on broker 4" in created[0]
    assert "(route r): a gateway with these settings creates it again" in created[1]
    (waits,) = deletion_warnings(settings_of(routes=[route]), ["t"], broker())
    assert "until the topic exists again" in waits


# --- the account ---


def test_an_action_has_a_line_before_and_one_after(audit: AuditLog) -> None:
    entry = audit.begin("topic.grow", "t", {"partitions": 2}, {"partitions": 4})
    first = lines_of(audit)
    entry.failed(AdminError("no"))
    audit.begin("topic.create", "u", None, None).done({"partitions": 1})
    lines = lines_of(audit)
    assert lines[:1] == first
    assert [line["phase"] for line in lines] == ["intent", "outcome"] * 2
    assert [line.get("result") for line in lines] == [None, "not done: no", None, "done"]
    keys = {"time", "id", "phase", "user", "host", "command", "cluster", "action", "what"}
    assert all(keys <= set(line) for line in lines)
    assert lines[0]["time"].endswith("Z")
    assert audit.path.stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_written_down_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "admin.log").mkdir()
    kafka = FakeKafka(DEAD)
    with pytest.raises(AuditError, match="Nothing was changed"):
        applied(kafka, AuditLog(tmp_path / "admin.log", "c", "c"))
    assert "create" not in kafka.asked

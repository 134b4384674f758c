"""``gateway command`` on a real Kafka: what it writes is a command, and what it shows is what the status topic has."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition
from confluent_kafka import Consumer, Producer

from bridge import wire
from bridge.commands.model import Answer, Status, StatusRecord
from bridge.commands.tokens import Signer
from bridge.dead_letters.reading import Place
from config.errors import ExitStatus
from gateway.cli.main import main
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_backend import read_topic
from tests.brokers.topics import consumer_groups, produce_aborted
from tests.waiting import DEADLINE_S

SECRET = "s" * 32


class Desk:
    """Topics, settings in a file, the command, and a worker's part: statuses and answers."""

    def __init__(self, bootstrap: str, topics: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self.commands, self.statuses, self.answers = topics
        self.file = folder / "gateway.toml"
        self._capsys = capsys
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.file.write_text(
            f"""
[kafka]
bootstrap_servers = {json.dumps(bootstrap.split(","))}
request_timeout = "30s"
[[routes]]
name = "answers"
filters = ["devices/+/res/#"]
topic = "{self.answers}"
device = "${{topic[1]}}"
metadata_headers = ["topic", "properties", "device"]
[[commands]]
name = "switches"
topics = ["{self.commands}"]
status_topic = "{self.statuses}"
answers = "answers"
secret = "{SECRET}"
answer_timeout = "1s"
"""
        )

    def run(self, *arguments: str, command: str = "command") -> tuple[int, str]:
        """``gateway command …``: the status and what it printed, stderr behind stdout."""
        self._capsys.readouterr()
        try:
            status = main([command, *arguments, "--config", str(self.file)])
        except SystemExit as ended:  # argparse
            status = int(str(ended.code))
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err

    def data(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        found, text = self.run(*arguments, "--json")
        assert found == status, text
        return dict(json.loads(text))

    def say(self, place: Place, status: Status, **more: Any) -> None:
        """Write a status, as a worker does."""
        record = StatusRecord(
            id=more.pop("id", str(place)), place=place, route="switches", device=more.pop("device", "pump-7"),
            status=status, at_ms=more.pop("at_ms", time.time_ns() // 1_000_000), deadline_ms=None,
            terminal=more.pop("terminal", False), **more,
        )  # fmt: skip
        self._producer.produce(self.statuses, record.value(), key=record.key(), partition=place.partition)
        assert self._producer.flush(DEADLINE_S) == 0

    def command(self, payload: bytes, **headers: bytes) -> Place:
        """Write a command as an application does; its place."""
        at: list[Place] = []
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        self._producer.produce(
            self.commands, payload, key=b"pump-7", partition=1, headers=named,
            on_delivery=lambda _error, found: at.append(Place(found.topic(), found.partition(), found.offset())),
        )  # fmt: skip
        assert self._producer.flush(DEADLINE_S) == 0
        return at[0]

    def answer(self, place: Place, command_id: str, code: bytes, payload: bytes) -> None:
        """Write an answer, as the route ``answers`` does."""
        token = Signer(SECRET, "switches").sign(place, command_id).encode()
        headers = [
            (wire.MQTT_TOPIC, b"devices/pump-7/res"), (wire.GATEWAY_DEVICE, b"pump-7"),
            (wire.MQTT_CORRELATION_DATA, token), (wire.MQTT_USER_PREFIX + "status", code),
        ]  # fmt: skip
        self._producer.produce(self.answers, payload, key=b"pump-7", headers=headers)
        assert self._producer.flush(DEADLINE_S) == 0


@pytest.fixture
def desk(kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    async def make() -> list[str]:
        return [await make_topic(partitions=count) for count in (3, 3, 2)]

    return Desk(kafka.bootstrap, asyncio.run(make()), tmp_path, capsys)


@pytest.fixture
def worker(desk: Desk) -> Iterator[Callable[[Callable[[Place], None]], None]]:
    """Does something with the place of the next command, in a thread."""
    threads: list[threading.Thread] = []

    def begin(work: Callable[[Place], None]) -> None:
        consumer = Consumer(
            {"bootstrap.servers": desk.bootstrap, "group.id": desk.commands, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([desk.commands])

        def run() -> None:
            until_s = time.monotonic() + DEADLINE_S
            while time.monotonic() < until_s:
                found = consumer.poll(0.2)
                if found is not None and not found.error():
                    work(Place(found.topic(), found.partition(), found.offset()))
                    break
            consumer.close()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join(DEADLINE_S)


# --- send ---


def test_send_writes_the_record_that_the_settings_describe(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"\x00\xff")
    before_ms = time.time_ns() // 1_000_000
    first = desk.data("send", "pump-7", '{"on": true}', "--subject", "switch", "--answer", "--id", "one")
    assert first["id"] == "one"
    status, text = desk.run(
        "send", "pump-7", "--payload-file", str(tmp_path / "payload"), "--expires", "1h", "--no-answer",
        "--content-type", "text/plain",
    )  # fmt: skip
    assert status == 0
    records = [record for log in read_topic(desk.bootstrap, desk.commands) for record in log]
    assert [(record.key, record.value) for record in records] == [
        (b"pump-7", b'{"on": true}'),
        (b"pump-7", b"\x00\xff"),
    ]
    assert dict(records[0].headers) == {"subject": b"switch", "correlation-id": b"one", "response-required": b"true"}
    headers = dict(records[1].headers)
    assert headers.pop("expires-at").isdigit()
    assert int(dict(records[1].headers)["expires-at"]) >= before_ms + 3_600_000
    assert headers == {"response-required": b"false", "content-type": b"text/plain"}
    place, offset = first["command"].rsplit(":", 1)
    assert text == f"Written to {place}:{int(offset) + 1}.\n", "both are in the partition of their key"


def test_what_could_never_be_a_command_is_not_written(desk: Desk) -> None:
    status, text = desk.run("send", "pump/7")
    assert status == ExitStatus.USAGE
    assert "invalid_topic" in text
    assert [log for log in read_topic(desk.bootstrap, desk.commands) if log] == []
    status, text = desk.run("send", "pump-\udcff")
    assert (status, "is not UTF-8" in text) == (ExitStatus.USAGE, True)
    status, text = desk.run("send", "pump-7", "a", "--payload-file", "b")
    assert status == ExitStatus.USAGE
    status, text = desk.run("send", "pump-7", "--commands", "valves")
    assert (status, "there are: switches" in text) == (ExitStatus.USAGE, True)
    desk.file.write_text(desk.file.read_text().replace(f'topics = ["{desk.commands}"]', 'topics = ["elsewhere"]'))
    status, text = desk.run("send", "pump-7")
    assert status == ExitStatus.UNAVAILABLE
    assert "Kafka has no topic elsewhere" in text


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(Status.SUCCEEDED, 0), (Status.SENT, 0), (Status.REJECTED, 7), (Status.TIMED_OUT, 7), (Status.REFUSED, 7)],
)
def test_wait_shows_each_status_and_ends_with_the_outcome(
    desk: Desk, worker: Callable[[Callable[[Place], None]], None], outcome: Status, expected: int
) -> None:
    def work(place: Place) -> None:
        desk.say(Place(place.topic, place.partition, place.offset + 1), Status.FAILED, terminal=True)  # another's
        desk.say(place, Status.ACCEPTED)
        answer = Answer(Place(desk.answers, 0, 0), "", "pump-7", 200, b"ok", None, 0)
        desk.say(place, outcome, terminal=True, answer=answer if outcome is Status.SUCCEEDED else None)

    worker(work)
    status, text = desk.run("send", "pump-7", "on", "--wait")
    assert status == expected, text
    written, accepted, last = text.splitlines()
    assert written.startswith(f"Written to {desk.commands}/")
    assert "accepted       it waits for its turn" in accepted
    assert f"  {outcome}" in last
    assert ("answer 200: ok" in last) == (outcome is Status.SUCCEEDED)


def test_wait_ends_without_a_gateway(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tools.send_command._MARGIN_S", 0.0)
    status, text = desk.run("send", "pump-7", "--expires", "1s", "--wait")
    assert status == ExitStatus.INCOMPLETE
    assert "No terminal status came within 2 s. Does a gateway with these settings run?" in " ".join(text.split())
    document = desk.data("send", "pump-7", "--expires", "1s", "--wait", status=5)
    assert (document["outcome"], document["statuses"]) == (None, [])


# --- list and show ---


def test_list_has_the_last_status_of_each_and_finds_by_each_filter(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = consumer_groups(desk.bootstrap)
    now_ms = time.time_ns() // 1_000_000 - 10_000
    one, two, three = (Place(desk.commands, 1, offset) for offset in range(3))
    desk.say(one, Status.SENT, at_ms=now_ms, id="the-one", attempt=1, receiver="online")
    desk.say(one, Status.SUCCEEDED, at_ms=now_ms + 1, id="the-one", attempt=1, terminal=True)
    desk.say(two, Status.WAITING, at_ms=now_ms + 2, attempt=3, code=0x10, reason="nobody subscribes to its topic")
    desk.say(three, Status.REFUSED, at_ms=now_ms + 3, id="the-one", reason="duplicate", terminal=True, device="x\x1b")
    found = desk.data("list")
    assert found["matching"] == 3
    assert [(entry["command"], entry["status"]) for entry in found["commands"]] == [
        (str(one), "succeeded"), (str(two), "waiting"), (str(three), "refused")
    ]  # fmt: skip
    for arguments, places in (
        (["--device", "pump-7"], [one, two]),
        (["--status", "waiting", "--status", "refused"], [two, three]),
        (["--open"], [two]),
        (["--since", "1h"], [one, two, three]),
        (["--since", "2100-01-01"], []),
        (["--limit", "1"], [three]),
        (["--commands", "switches", "--status", "failed"], []),
    ):
        assert [entry["command"] for entry in desk.data("list", *arguments)["commands"]] == [*map(str, places)]
    monkeypatch.setenv("COLUMNS", "80")
    status, text = desk.run("list")
    assert status == 0
    heading, *rows, count = text.splitlines()
    assert heading.split()[:3] == ["ID", "DEVICE", "STATUS"]
    assert all(len(row) <= 80 for row in rows)
    assert "\x1b" not in text
    assert rows[1].split()[0].endswith("/1:1"), "the end of a long id is shown"
    assert "nobody sub" in rows[1]
    assert count == "3 commands match."
    assert consumer_groups(desk.bootstrap) <= groups, "looking made a group"


def test_show_has_record_statuses_and_all_answers(desk: Desk) -> None:
    place = desk.command(b'{"on": true}', correlation_id=b"the-one", subject=b"switch", response_required=b"true")
    other = desk.command(b"", correlation_id=b"other", response_required=b"true")
    desk.answer(place, "the-one", b"200", b"done")
    desk.answer(other, "other", b"200", b"another's")
    desk.answer(place, "the-one", b"500", b"no, failed")
    desk.say(place, Status.SENT, id="the-one", attempt=1)
    answer = Answer(Place(desk.answers, 0, 0), "", "pump-7", 200, b"done", None, 0)
    desk.say(place, Status.SUCCEEDED, id="the-one", attempt=1, terminal=True, answer=answer)
    for wanted in ("the-one", str(place)):
        (found,) = desk.data("show", wanted)["commands"]
        assert (found["record"], found["payload"]) == (str(place), '{"on": true}')
        assert ["subject", "switch"] in found["headers"]
        assert [status["status"] for status in found["statuses"]] == ["sent", "succeeded"]
        assert [(one["status"], one["payload"]) for one in found["answers"]] == [(200, "done"), (500, "no, failed")]
    status, text = desk.run("show", "the-one")
    assert status == 0
    for part in ("id        the-one", f"record    {place}", '{"on": true}', "answer 200: done", "no, failed"):
        assert part in text


def test_show_says_what_is_not_there(desk: Desk) -> None:
    status, text = desk.run("show", "nothing")
    assert status == ExitStatus.NOT_FOUND
    assert "There is no command 'nothing'" in text
    assert desk.run("show", f"{desk.commands}/0:7")[0] == ExitStatus.NOT_FOUND
    place = desk.command(b"x")
    status, text = desk.run("show", str(place))
    assert status == 0
    assert "none: no worker has taken it yet" in text
    gone = Place(desk.commands, 2, 5)
    desk.say(gone, Status.EXPIRED, terminal=True)
    status, text = desk.run("show", str(gone))
    assert status == 0
    assert "Kafka has deleted the record" in text


# --- verify --commands ---


async def commit(bootstrap: str, group: str, place: Place, metadata: str) -> None:
    """Commit an offset with its text. confluent_kafka leaves the text out."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(place.topic, place.partition)
        consumer.assign([partition])
        await consumer.commit({partition: OffsetAndMetadata(place.offset, metadata)})
    finally:
        await consumer.stop()


def test_verify_compares_the_commits_of_the_group_with_the_status_topic(desk: Desk) -> None:
    desk.file.write_text(desk.file.read_text() + f'group = "{desk.commands}-group"\n')
    produce_aborted(desk.bootstrap, desk.commands, b"aborted", partition=1)
    places = [desk.command(b"%d" % number) for number in range(5)]
    asyncio.run(commit(desk.bootstrap, f"{desk.commands}-group", places[2], "1|0|A1F1"))
    desk.say(places[0], Status.SUCCEEDED, terminal=True)
    desk.say(places[3], Status.EXPIRED, terminal=True)
    status, text = desk.run("--commands", "--json", command="verify")
    assert status == ExitStatus.MISSING_MESSAGES, text
    (found,) = json.loads(text)["commands"]
    assert (found["name"], found["group"]) == ("switches", f"{desk.commands}-group")
    (one,) = [partition for partition in found["partitions"] if partition["partition"] == 1]
    assert (one["records"], one["finished"], one["under_way"], one["unread"]) == (5, 2, 1, 1)
    assert one["missing_at"] == [places[1].offset]
    desk.say(places[1], Status.FAILED, terminal=True)
    status, text = desk.run("--commands", "switches", command="verify")
    assert status == 0, text
    assert "Every command that is finished has one terminal status." in text
    status, text = desk.run("--commands", "valves", command="verify")
    assert status == ExitStatus.USAGE
    status, text = desk.run("--commands", "--since", "2100-01-01", command="verify")
    assert status == ExitStatus.UNJUDGED
    assert "have no record in the span" in text

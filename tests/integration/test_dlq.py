"""``gateway dlq`` on a real Kafka: what it lists and shows is what is there, and a replay happens once."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge import wire
from bridge.commands.reading import BadCommandError
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import BridgeError
from bridge.kafka.producer import KafkaProducer
from bridge.message import Properties
from bridge.ports import StoredRecord
from bridge.produce.dead_letter import DeadLetterDraft
from bridge.produce.partitioner import partition_for
from bridge.routing.headers import property_headers
from bridge.wire import DeadLetterReason
from config.errors import ExitStatus
from config.loading.load import load
from config.settings import DeadLetterSettings, Settings
from config.wording import as_toml
from gateway.cli.dead_letters.reader import DeadLetterReader
from gateway.cli.dead_letters.replay import Outcome, ReplayRun, Result
from gateway.cli.dead_letters.selection import look_through
from gateway.cli.main import main
from gateway.components.command_letters import CommandDeadLetters
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_backend import KafkaBackend, kafka_settings, read_topic
from tests.brokers.topics import consumer_groups, topic_names
from tests.command_line import GATEWAY
from tests.unit.data_path import AnyPath

NOW_MS = time.time_ns() // 1_000_000 - 60_000
PROPERTIES = Properties(
    user=(("site", "oslo"), ("site", "rome"), ("größe", "ü")),
    content_type="application/json",
    response_topic="replies/1",
    correlation_data=b"\x00\xff\x01",
    payload_format=1,
    message_expiry=3600,
)


class Writer(AnyPath):
    """Writes dead letters as a worker does."""

    def __init__(self, bootstrap: str, dead: str) -> None:
        super().__init__(
            lambda: KafkaProducer(kafka_settings(bootstrap), "writer", [dead]),
            time.monotonic_ns,
            max_record_bytes=10_000_000,
            dead_letters=dead,
        )

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000  # the broker compares it with its own

    def bury(
        self,
        mqtt_topic: str | None,
        payload: bytes | None,
        *,
        route: str = "route",
        qos: int = 1,
        properties: Properties = Properties(),  # noqa: B008 - frozen
        reason: DeadLetterReason = DeadLetterReason.MISSING_VALUE,
        at_ms: int = NOW_MS,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        own = [] if mqtt_topic is None else [(wire.MQTT_TOPIC, mqtt_topic.encode()), (wire.MQTT_QOS, b"%d" % qos)]
        letter = DeadLetterDraft(
            route, qos, (mqtt_topic or "k").encode(), payload, [*own, *property_headers(properties), *headers], reason,
            BridgeError("The template found no value."), at_ms, "telemetry",
        )  # fmt: skip
        self.dead_letters.bury(letter)
        self.took(b"%d" % self.ledger.received)


class Desk:
    """Topics, settings in a file, and the command."""

    def __init__(self, bootstrap: str, dead: str, topic: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self.dead = dead
        self.topic = topic
        self.file = folder / "gateway.toml"
        self._capsys = capsys
        self.route()

    def route(self, **route: Any) -> None:
        """Write the settings, with one route."""
        table = {"name": "route", "filters": ["devices/#"], "topic": self.topic, **route}
        lines = [
            f'instance = "gw"\n[kafka]\nbootstrap_servers = {json.dumps(self.bootstrap.split(","))}',
            'request_timeout = "30s"\nmetadata_max_age = "300ms"',
            f'[dead_letter]\ntopic = "{self.dead}"\n[[routes]]',
            *(f"{name} = {as_toml(value)}" for name, value in table.items()),
        ]
        self.file.write_text("\n".join(lines) + "\n")

    async def run(self, *arguments: str) -> tuple[int, str]:
        """``gateway dlq …``: the status and what it printed, stderr behind stdout."""
        self._capsys.readouterr()
        status = await asyncio.to_thread(main, ["dlq", *arguments, "--config", str(self.file)])
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err

    async def listed(self, *arguments: str) -> list[dict[str, Any]]:
        status, text = await self.run("list", "--json", *arguments)
        assert status == 0, text
        return list(json.loads(text)["dead_letters"])

    async def records(self, topic: str | None = None) -> list[StoredRecord]:
        logs = await asyncio.to_thread(read_topic, self.bootstrap, topic or self.topic)
        return [record for log in logs for record in log]

    async def write(self, *letters: tuple[tuple[Any, ...], Mapping[str, Any]]) -> None:
        async with Writer(self.bootstrap, self.dead) as writer:
            for positional, named in letters:
                writer.bury(*positional, **named)
            writer.flush()
            await writer.drained(within_s=30)
            assert writer.ledger.imbalance() == 0

    async def bury_commands(
        self, topic: str, records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]
    ) -> None:
        """Write dead letters of commands as a worker does."""
        producer = KafkaProducer(kafka_settings(self.bootstrap), "worker", [self.dead])
        await producer.start()
        made = asyncio.Semaphore(0)
        letters = CommandDeadLetters(
            Settings(instance="gw", dead_letter=DeadLetterSettings(topic=self.dead)), "route", broken=pytest.fail,
            producer=lambda: producer, renew=lambda _why: None, noted=lambda *_: None, written=lambda *_: None,
        )  # fmt: skip
        error = BadCommandError(DeadLetterReason.INVALID_TOPIC, "The record's name is forbidden.")
        try:
            for offset, (key, value, headers) in enumerate(records):
                letters.bury(LoggedRecord(Place(topic, 0, offset), NOW_MS, key, value, headers), error, made.release)
            async with asyncio.timeout(60):
                for _ in records:
                    await made.acquire()
        finally:
            await letters.close()
            await producer.close(patience_s=1)

    @contextlib.asynccontextmanager
    async def reading(self) -> Any:
        settings = load(self.file).settings
        async with DeadLetterReader(settings.kafka, "test", settings.dead_letter_topics) as reader:
            yield settings, reader


def letter(*positional: Any, **named: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    return positional, named


@pytest.fixture
async def desk(kafka: KafkaCluster, make_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    dead = await make_topic(partitions=2, config={"retention.ms": "172800000"})
    topic = await make_topic(partitions=3)
    return Desk(kafka.bootstrap, dead, topic, tmp_path, capsys)


def values(records: list[StoredRecord]) -> list[bytes | None]:
    return sorted(record.value or b"" for record in records)


# --- list and show ---


async def test_list_finds_by_every_filter_and_says_how_long_they_are_kept(desk: Desk) -> None:
    hour_ms, now_ms = 3_600_000, time.time_ns() // 1_000_000 - 60_000
    await desk.write(
        letter("devices/1/a", b"one", at_ms=now_ms - 3 * hour_ms, headers=((wire.GATEWAY_DEVICE, b"d1"),)),
        letter("devices/2/b", b"two", reason=DeadLetterReason.TOPIC_LIMIT, at_ms=now_ms - 2 * hour_ms),
        letter("devices/1/b", b"three", route="other", at_ms=now_ms - hour_ms),
        letter(None, b"four", at_ms=now_ms),
    )
    groups = consumer_groups(desk.bootstrap)
    status, text = await desk.run("list")
    assert status == 0
    heading, *rows, count, kept = text.splitlines()
    assert heading.split()[:3] == ["PLACE", "RECEIVED", "ROUTE"]
    assert len(rows) == 4
    assert "missing_value" in rows[0]
    assert "devices/1/a" in rows[0]
    assert rows[0].endswith("The template found no value.")
    assert rows[3].split()[6] == "-", "without an MQTT topic"
    assert count == "4 of 4 dead letters match."
    assert kept == f"{desk.dead}: dead letters expire 2d after receipt (retention.ms = 172800000), replayed or not."
    for arguments, found in (
        (["--reason", "topic_limit"], ["devices/2/b"]),
        (["--route", "other"], ["devices/1/b"]),
        (["--topic", "devices/+/b"], ["devices/2/b", "devices/1/b"]),
        (["--topic", "devices/1/#", "--route", "route"], ["devices/1/a"]),
        (["--device", "d1", "--device", "d2"], ["devices/1/a"]),
        (["--since", "90m"], ["devices/1/b", None]),
        (["--since", "150m", "--until", "30m"], ["devices/2/b", "devices/1/b"]),
        (["--until", "2000-01-01"], []),
        (["--limit", "2"], ["devices/1/b", None]),
    ):
        assert [one["mqtt_topic"] for one in await desk.listed(*arguments)] == found, arguments
    assert consumer_groups(desk.bootstrap) <= groups, "looking made a group"


async def test_show_puts_parts_together_and_tells_text_from_bytes(desk: Desk) -> None:
    large = bytes(n % 251 for n in range(700_000))
    await desk.write(
        letter("devices/1", b'{"t": "\xc3\xa9"}', properties=PROPERTIES),
        letter("devices/1", large),
        letter("devices/1", None),
        letter("devices/1", b"\x1b[2J\n"),
    )
    (one, two, three, four) = await desk.listed()
    assert (two["bytes"], two["parts"], two["complete"]) == (700_000, 3, True)
    _, text = await desk.run("show", one["place"])
    assert '{"t": "é"}' in text
    for line in ("  mqtt.user.größe: ü", "  mqtt.correlation_data: 0x00ff01", "qos, retain  1, no", "replayed     no"):
        assert line in text.splitlines()
    partition, offset = two["place"].rpartition("/")[2].split(":")
    short = f"{partition}:{int(offset) + 2}"
    status, text = await desk.run("show", short, "--json")
    assert status == 0
    assert bytes.fromhex(json.loads(text)["payload_hex"]) == large, "any of its parts names it"
    _, text = await desk.run("show", short)
    assert text.count(f"{desk.dead}/{partition}:") == 3
    assert "\n000aae50  " in text, "to the last line of 700,000 bytes"
    command = [*GATEWAY, "dlq", "show", short, "--payload", "--config", str(desk.file)]
    shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    assert shown.stdout == large, "the bytes and nothing else"
    _, text = await desk.run("show", three["place"])
    assert "payload: null (a tombstone)" in text
    _, text = await desk.run("show", four["place"])
    assert "\x1b" not in text, "a payload does not talk to the terminal"
    assert "1b 5b 32 4a 0a" in text


async def test_tail_shows_what_has_lost_a_part(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    await desk.write(letter("devices/1", b"x" * 700_000))
    (one,) = await desk.listed()
    partition, offset = one["place"].rpartition("/")[2].split(":")
    command = ["tail", "--dead-letters", "--no-follow", "--from", f"{partition}:{int(offset) + 1}"]
    await asyncio.to_thread(main, [*command, "--config", str(desk.file)])
    assert " B (2/3)  " in capsys.readouterr().out


async def test_what_is_not_there_is_said_with_its_own_status(desk: Desk) -> None:
    await desk.write(letter("devices/1", b"x"))
    for place, words in (
        ("0:999", "ends at offset"), ("7:0", "no such partition"), ("elsewhere/0:0", "no such dead-letter topic")
    ):  # fmt: skip
        status, text = await desk.run("show", place)
        assert (status, words in text) == (ExitStatus.NOT_FOUND, True), text
    status, text = await desk.run("show", "first")
    assert status == ExitStatus.USAGE
    assert "PARTITION:OFFSET" in text
    status, text = await desk.run("replay", "--route", "nobody")
    assert status == ExitStatus.NOT_FOUND
    for arguments in (["replay"], ["replay", "0:0", "--all"], ["list", "--topic", "a#"]):
        status, text = await desk.run(*arguments)
        assert status == ExitStatus.USAGE, text
    desk.dead = f"{desk.dead}-missing"
    desk.route()
    status, text = await desk.run("list")
    assert status == ExitStatus.UNAVAILABLE
    assert f"Kafka has no topic {desk.dead}" in text


# --- replay ---


async def test_a_replay_takes_the_routes_of_today_with_everything_the_message_had(desk: Desk) -> None:
    payload = bytes(n % 253 for n in range(600_000))
    await desk.write(
        letter("devices/oslo/7", b"whole", qos=2, properties=PROPERTIES, headers=((wire.MQTT_RETAIN, b"1"),)),
        letter("devices/oslo/8", payload),
    )
    desk.route(
        key="${topic[2]}", headers={"first": "${property.site}"},
        metadata_headers=["topic", "qos", "retain", "properties", "received", "gateway"],
    )  # fmt: skip
    status, text = await desk.run("replay", "--all")
    assert status == 0, text
    assert "2 dead letters: 2 replayed." in text
    records = {record.key: record for record in await desk.records()}
    one = records[b"7"]
    assert (one.value, one.timestamp_ms) == (b"whole", NOW_MS), "received when it was received"
    assert list(one.headers) == [
        (wire.MQTT_TOPIC, b"devices/oslo/7"),
        (wire.GATEWAY_ID, b"gw"),
        (wire.MQTT_QOS, b"2"),
        (wire.MQTT_RETAIN, b"1"),
        *property_headers(PROPERTIES),
        ("first", b"oslo"),
        (wire.GATEWAY_RECEIVED_MS, b"%d" % NOW_MS),
    ]
    assert records[b"8"].value == payload
    logs = await asyncio.to_thread(read_topic, desk.bootstrap, desk.topic)
    assert [len(log) for log in logs] == [sum(partition_for(key, 3) == n for key in records) for n in range(3)]


async def test_a_dead_letter_is_replayed_once_unless_somebody_insists(desk: Desk) -> None:
    await desk.write(letter("devices/1", b"1"), letter("devices/2", b"2"))
    assert (await desk.run("replay", "--topic", "devices/1"))[0] == 0
    assert [one["replay"] is not None and one["replay"]["done"] for one in await desk.listed()] == [True, False]
    assert (await desk.run("replay", "--all", "--dry-run", "--limit", "1"))[0] == 0, "it is not the first one"
    status, text = await desk.run("replay", "--all")
    assert status == ExitStatus.INCOMPLETE
    assert "1 replayed, 1 skipped" in text
    assert "it was replayed at" in text
    assert values(await desk.records()) == [b"1", b"2"]
    status, _ = await desk.run("replay", "--all", "--again", "--limit", "1")
    assert status == 0
    assert values(await desk.records()) == [b"1", b"1", b"2"]
    status, text = await desk.run("list")
    assert "2 of 2 dead letters match." in text, "marks are no dead letters"
    (one, _) = await desk.listed()
    _, text = await desk.run("show", one["place"])
    assert f"(replay {one['replay']['id']})" in text


async def test_of_two_replays_at_once_one_has_each_dead_letter(desk: Desk) -> None:
    """Both have looked through the topic before either claims anything: the worst case, for each of 300."""
    count = 300
    await desk.write(*[letter(f"devices/{n}", b"%d" % n) for n in range(count)])

    async def replay(begin: asyncio.Barrier, *, again: bool) -> list[Result]:
        async with desk.reading() as (settings, reader):
            selection = await look_through(reader)
            run = ReplayRun(settings, reader, selection, again=again)
            await begin.wait()
            return [result async for result in run.replay(selection.letters)]

    for copies, again in ((1, False), (2, True)):
        begin = asyncio.Barrier(3)
        results = await asyncio.gather(*[replay(begin, again=again) for _ in range(3)])
        for three in zip(*results, strict=True):
            assert sorted(one.outcome for one in three) == [Outcome.REPLAYED, Outcome.SKIPPED, Outcome.SKIPPED], three
        assert values(await desk.records()) == sorted([b"%d" % n for n in range(count)] * copies)


DIES = """
import os, signal, sys
from gateway.cli import main
from gateway.cli.dead_letters import replay as dlq_replay
async def die(*_): os.kill(os.getpid(), signal.SIGKILL)
dlq_replay.ReplayRun._mark = die
main.main(sys.argv[1:])
"""


async def test_a_replay_killed_before_its_mark_is_not_repeated_unasked(desk: Desk) -> None:
    await desk.write(letter("devices/1", b"1"), letter("devices/2", b"2"))
    command = [sys.executable, "-c", DIES, "dlq", "replay", "--all", "--config", str(desk.file)]
    killed = await asyncio.to_thread(subprocess.run, command, env={**os.environ}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert values(await desk.records()) == [b"1", b"2"], "Kafka has them, and nobody has said so"
    status, text = await desk.run("list")
    assert text.count("  begun  ") == 2
    status, text = await desk.run("replay", "--all")
    assert status == ExitStatus.INCOMPLETE
    assert text.count("its result is unknown; --again replays it") == 2
    assert values(await desk.records()) == [b"1", b"2"]
    (one, _) = await desk.listed()
    assert (await desk.run("replay", one["place"], "--again"))[0] == 0
    assert values(await desk.records()) == [b"1", b"1", b"2"]
    assert [one["replay"]["done"] for one in await desk.listed()] == [True, False]


async def test_what_cannot_be_replayed_stays_as_it_was_and_can_be_later(desk: Desk) -> None:
    await desk.write(
        letter("devices/1", b"good"), letter("devices/1", b"x" * 2000), letter("elsewhere", b"lost"),
        letter(None, b"?"), letter("devices/+", b"forbidden", route=""),
    )  # fmt: skip
    text = desk.file.read_text().replace("[kafka]\n", "[kafka]\nmax_record_bytes = 1024\n", 1)
    desk.file.write_text(text)
    status, text = await desk.run("replay", "--all", "--json")
    assert status == ExitStatus.INCOMPLETE
    results = [json.loads(line) for line in text.splitlines()[:5]]
    assert sorted(one["outcome"] for one in results) == ["filtered", "refused", "replayed", "skipped", "skipped"]
    details = {one["outcome"]: one["detail"] for one in results}
    assert details["filtered"] == "no_route"
    assert "too_large: The payload has 2000 bytes" in details["refused"]
    assert values(await desk.records()) == [b"good"]
    assert len(await desk.listed()) == 5, "a replay makes no new dead letters"
    assert [one["replay"] is None for one in await desk.listed()].count(False) == 1
    desk.route(filters=["devices/#", "elsewhere"])
    status, text = await desk.run("replay", "--all")
    assert "2 replayed, 3 skipped" in text
    assert values(await desk.records()) == sorted([b"good", b"x" * 2000, b"lost"])


async def test_a_message_is_not_replayed_into_a_topic_of_the_gateway_itself(desk: Desk) -> None:
    await desk.write(letter("devices/gateway-ledger", b"x"))
    desk.route(topic="${topic[1]}")
    status, text = await desk.run("replay", "--all", "--dry-run")
    assert status == ExitStatus.INCOMPLETE
    assert "invalid_topic" in text


async def test_a_record_that_kafka_refuses_again_is_no_new_dead_letter(desk: Desk, make_topic: Any) -> None:
    compacted = await make_topic(config={"cleanup.policy": "compact"})
    await desk.write(*[letter(f"devices/{n}", b"%d" % n) for n in range(10)])
    desk.route(topic=compacted, key="${property.id}")
    status, text = await desk.run("replay", "--all")
    assert status == ExitStatus.INCOMPLETE
    assert "10 refused" in text
    assert "invalid_record" in text
    assert await desk.records(compacted) == []
    assert len(await desk.listed()) == 10
    assert all(one["replay"] is None for one in await desk.listed())


async def test_what_kafka_has_is_marked_though_it_refuses_the_right_to_another_topic(
    backend: KafkaBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead, topic, forbidden = await backend.topic(), await backend.topic(), await backend.topic()
    desk = Desk(backend.cluster.bootstrap, dead, topic, tmp_path, capsys)
    await desk.write(letter("devices/1", b"1"), letter("other/1", b"2"), letter("devices/2", b"3"))
    await backend.forbid(forbidden)
    desk.bootstrap = backend.cluster.sasl_bootstrap
    desk.route()
    login = 'security = "SASL_PLAINTEXT"\nsasl = { username = "gateway", password = "gateway-secret" }\n'
    text = desk.file.read_text().replace("[kafka]\n", f'[kafka]\n{login}delivery_timeout = "6s"\n')
    other = f'[[routes]]\nname = "other"\nfilters = ["other/#"]\ntopic = "{forbidden}"\n'
    desk.file.write_text(text.replace("30s", "2s") + other)
    status, text = await desk.run("replay", "--all")
    assert (status, forbidden in text, text.count(" replayed: ")) == (ExitStatus.REFUSED, True, 2), text
    assert values(await backend.read(topic)) == [b"1", b"3"]
    assert [one["replay"]["done"] for one in await desk.listed()] == [True, False, True]


async def test_a_dry_run_says_what_would_be_and_writes_nothing(desk: Desk) -> None:
    await desk.write(letter("devices/oslo", b"1"), letter("elsewhere", b"2"))
    before = await desk.records(desk.dead)
    status, text = await desk.run("replay", "--all", "--dry-run")
    assert status == ExitStatus.INCOMPLETE, "one matches no route"
    partition = partition_for(b"devices/oslo", 3)
    assert f"would be replayed: {desk.topic}/{partition}, key devices/oslo" in text
    assert "filtered: no_route" in text
    new = f"{desk.topic}-oslo"
    desk.route(topic=f"{desk.topic}-${{topic[1]}}", key="")
    words = ("replay", "--topic", "devices/oslo", "--dry-run", "--json")
    status, text = await desk.run(*words)
    assert (status, json.loads(text.splitlines()[0])["outcome"]) == (ExitStatus.INCOMPLETE, "refused")
    assert f"Kafka has no topic {new}, and kafka.topics.create is off" in text
    desk.file.write_text(desk.file.read_text().replace("[kafka]\n", "[kafka]\ntopics.create = true\n"))
    status, text = await desk.run(*words)
    assert status == 0
    result = json.loads(text.splitlines()[0])
    assert result["destinations"] == [{"topic": new, "partition": None, "key": None}]
    assert "a topic that Kafka does not have yet" in result["detail"]
    assert new not in topic_names(desk.bootstrap)
    assert await desk.records(desk.dead) == before
    assert await desk.records() == []


@pytest.mark.parametrize("on_error", ["dead_letter", "stop"])
async def test_a_replay_goes_through_the_interceptors_of_today(desk: Desk, on_error: str) -> None:
    """One message becomes several records, one is dropped, one fails: each has one fate, and no other dead letter."""
    await desk.write(
        letter("devices/many", b'{"r": [{"n": "a"}, {"n": "b"}, {"n": "c"}]}'),
        letter("devices/none", b'{"r": []}'),
        letter("devices/bad", b"no JSON"),
    )
    with desk.file.open("a") as file:
        file.write(f'[[routes.interceptors]]\nuse = "split"\npath = "r"\nkey = "n"\non_error = "{on_error}"\n')
    status, text = await desk.run("replay", "--all", "--dry-run", "--json")
    assert status == ExitStatus.INCOMPLETE
    previews = [json.loads(line) for line in text.splitlines()[:3]]
    would = next(one for one in previews if one["outcome"] == "would be replayed")
    assert sorted(one["key"] for one in would["destinations"]) == ["a", "b", "c"]
    status, text = await desk.run("replay", "--all")
    assert status == ExitStatus.INCOMPLETE
    assert "3 dead letters: 1 replayed, 1 filtered, 1 refused." in text
    assert "filtered: empty_array" in text
    assert "refused: interceptor_error" in text
    assert values(await desk.records()) == [b'{"n":"a"}', b'{"n":"b"}', b'{"n":"c"}']
    done = {one["mqtt_topic"]: one["replay"] is not None for one in await desk.listed()}
    assert done == {"devices/many": True, "devices/none": False, "devices/bad": False}


async def test_routes_with_topics_of_their_own_are_read_too(desk: Desk, make_topic: Any) -> None:
    own = await make_topic()
    common, desk.dead = desk.dead, own
    await desk.write(letter("devices/own", b"own"))
    desk.dead = common
    await desk.write(letter("devices/common", b"common"))
    desk.route(dead_letter_topic=own)
    status, text = await desk.run("list")
    assert f"{own}/0:0" in text
    assert "2 of 2 dead letters match." in text
    status, text = await desk.run("replay", f"{own}/0:0")
    assert status == 0, text
    assert values(await desk.records()) == [b"own"]


# --- commands ---


async def test_a_command_goes_back_to_its_topic_as_it_was(desk: Desk, make_topic: Any) -> None:
    """Its dead letters are told from those of a route with the same name by the Kafka topic and the MQTT topic."""
    commands = await make_topic(partitions=3)
    table = f'[[commands]]\nname = "route"\ntopics = ["{commands}"]\nstatus_topic = "status"\n'
    desk.file.write_text(f'{desk.file.read_text()}{table}mqtt_topic = "to/${{device}}"\n')
    headers = [("correlation-id", b"one"), ("site", b"\xc3\xb6slo"), ("subject", b"switch")]
    large = bytes(n % 251 for n in range(150_000))
    await desk.write(letter("devices/1", b"a message"))
    await desk.bury_commands(
        commands,
        [
            (b"pump-7", large, headers),
            (b"pump-8", None, []),
            (b"bad/name", b"x", []),
            (None, b"y", [("device_id", b"d")]),
        ],
    )
    listed = await desk.listed()
    assert sorted(one["kafka_topic"] for one in listed) == sorted([commands] * 4 + ["telemetry"])
    (first,) = [one for one in listed if one["key"] == "pump-7"]
    assert (first["parts"], first["complete"], first["route"]) == (3, True, "route")
    status, text = await desk.run("show", first["place"])
    assert status == 0
    assert "commands     route\n" in text
    assert f"kafka topic  {commands}\n" in text
    assert "mqtt topic" not in text
    assert "  site: öslo\n" in text
    status, text = await desk.run("replay", "--all", "--dry-run", "--json")
    assert status == ExitStatus.INCOMPLETE
    would = {one["place"]: one for one in map(json.loads, text.splitlines()[:5])}
    assert would[first["place"]]["destinations"] == [
        {"topic": commands, "partition": partition_for(b"pump-7", 3), "key": "pump-7"}
    ]
    assert await desk.records(commands) == []
    before_ms = time.time_ns() // 1_000_000 - 1000
    status, text = await desk.run("replay", "--all")
    assert status == ExitStatus.INCOMPLETE
    assert "5 dead letters: 4 replayed, 1 refused." in text
    assert "invalid_topic: the device's name" in text
    records = {record.key: record for record in await desk.records(commands)}
    assert records.keys() == {b"pump-7", b"pump-8", None}
    assert (records[b"pump-7"].value, list(records[b"pump-7"].headers)) == (large, headers)
    assert (records[b"pump-8"].value, records[None].value) == (None, b"y")
    assert all(record.timestamp_ms >= before_ms for record in records.values()), "they expire from now on"
    logs = await asyncio.to_thread(read_topic, desk.bootstrap, commands)
    assert [record.key for record in logs[partition_for(b"pump-7", 3)]].count(b"pump-7") == 1
    assert values(await desk.records()) == [b"a message"]
    status, text = await desk.run("replay", first["place"])
    assert "it was replayed at" in text
    desk.route()  # without the commands
    status, text = await desk.run("replay", first["place"], "--again")
    assert (status, "its MQTT topic is unknown" in text) == (ExitStatus.INCOMPLETE, True)


async def test_a_command_that_kafka_refuses_stays_where_it_is(desk: Desk, make_topic: Any) -> None:
    commands = await make_topic(config={"max.message.bytes": "1000"})
    table = f'[[commands]]\nname = "route"\ntopics = ["{commands}"]\nstatus_topic = "status"\n'
    desk.file.write_text(f'{desk.file.read_text()}{table}mqtt_topic = "to/${{device}}"\n')
    await desk.bury_commands(commands, [(b"pump-7", os.urandom(5000), []), (b"pump-8", b"small", [])])
    status, text = await desk.run("replay", "--all")
    assert status == ExitStatus.INCOMPLETE
    assert "2 dead letters: 1 replayed, 1 refused." in text
    assert "too_large" in text
    assert values(await desk.records(commands)) == [b"small"]
    assert [one["replay"] is not None for one in await desk.listed()] == [False, True]


async def test_without_kafka_it_ends_with_a_sentence(desk: Desk, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    desk.bootstrap = f"127.0.0.1:{port}"
    desk.route()
    status, text = await desk.run("list")
    assert status == ExitStatus.UNAVAILABLE
    assert text.startswith("gateway: Kafka cannot be reached.")
    assert len(text.splitlines()) == 1

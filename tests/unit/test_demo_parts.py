"""The demo's small parts: latencies, rates, scraped metrics, Spark's lines, the settings file, the command line."""

import argparse
import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from config.errors import ConfigError
from config.loading.load import load, require_runnable
from config.settings import Settings
from gateway.base.process.child import Child, ChildError
from gateway.cli.local import demo as command
from gateway.cli.parser import Parser
from gateway.devices.outbox import DeviceLedger, ledger_as_json, ledger_from_json
from gateway.local.demo.background import in_thread
from gateway.local.demo.latency import Latencies
from gateway.local.demo.options import PARTITIONS, ROUTE, TOPIC, gateway_toml
from gateway.local.demo.records import Identity, count_silver, read_identity, read_windows
from gateway.local.demo.show.scrape import read_counts
from gateway.local.demo.show.spark_events import LineTail, SparkEvents
from gateway.local.demo.show.state import GatewayCounts, Rate, Window
from streaming.progress import BatchEvent, Event, FailedEvent, StartedEvent, format_line

# ── latencies and rates ──────────────────────────────────────────────────────────────────────────────────────────────


def test_of_no_latencies_there_is_no_percentile() -> None:
    assert Latencies().overall(0.5) is None
    assert Latencies().recent(0.99) is None


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[int], share: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    result = latencies.overall(share)
    assert result in values
    assert sum(value <= result for value in values) >= share * len(values)
    assert sum(value < result for value in values) < share * len(values)


def test_recent_percentiles_forget_and_overall_ones_do_not() -> None:
    latencies = Latencies(recent_slices=2)
    latencies.add(900)
    latencies.tick()
    latencies.add(5)
    assert latencies.recent(0.99) == 900
    latencies.tick()
    assert latencies.recent(0.99) == 5
    assert latencies.overall(0.99) == 900


def test_a_clock_that_stepped_back_gives_no_negative_latency() -> None:
    latencies = Latencies()
    latencies.add(-40)
    assert latencies.overall(0.5) == 0


def test_a_rate_is_taken_over_the_last_seconds_only() -> None:
    rate = Rate(over_s=5.0)
    assert rate.per_second() == 0.0
    for second in range(20):
        rate.update(second, 100 * min(second, 10))
    assert rate.per_second() == 0.0
    rate.update(20.0, 1500)
    assert rate.per_second() == pytest.approx(100.0)


# ── what is read from the gateway and from Spark ─────────────────────────────────────────────────────────────────────

PAGE = """\
# HELP gateway_mqtt_messages_received_total MQTT messages taken in.
# TYPE gateway_mqtt_messages_received_total counter
gateway_mqtt_messages_received_total{route="telemetry",qos="0"} 1
gateway_mqtt_messages_received_total{route="telemetry",qos="1"} 41
gateway_mqtt_messages_received_total{route="status",qos="1"} 200
# TYPE gateway_mqtt_acks_total counter
gateway_mqtt_acks_total 240
# TYPE gateway_mqtt_unacked gauge
gateway_mqtt_unacked{session="0"} 2
gateway_mqtt_unacked{session="1"} 3
# TYPE gateway_ledger_in_flight gauge
gateway_ledger_in_flight 5
# TYPE gateway_kafka_records_sent_total counter
gateway_kafka_records_sent_total{topic="telemetry"} 37
gateway_kafka_records_sent_total{topic="device-status"} 200
"""


def test_only_the_telemetry_route_is_counted_over_all_sessions() -> None:
    counts = read_counts(PAGE)
    assert counts == GatewayCounts(received=42, acknowledged=240, unacked=5, in_flight=5)


def batch(number: int, rows: int, ends: dict[str, int], query: str = "silver", quarantined: int = 0) -> BatchEvent:
    return BatchEvent(
        query=query, batch=number, rows=rows, quarantined=quarantined, late=0, rows_per_s=1.0, duration_ms=700 + number,
        end_offsets={"telemetry": ends}, watermark_ms=None, at_ms=0,
    )  # fmt: skip


def fed(*events: Event) -> SparkEvents:
    spark = SparkEvents("telemetry")
    spark.feed([format_line(event) for event in events])
    return spark


def test_sparks_lag_is_what_kafka_has_and_silver_has_not() -> None:
    spark = fed(batch(0, 30, {"0": 20, "1": 10}), batch(1, 5, {"0": 25}))
    assert spark.counts.offsets == {0: 25, 1: 10}
    assert spark.counts.lag({0: 30, 1: 10, 2: 7}) == 12
    assert (spark.counts.batches, spark.counts.rows, spark.counts.batch_ms) == (2, 35, 701)


def test_only_silver_counts() -> None:
    """Bronze may be ahead; what it read is not in silver. Of gold it is known how often it has changed."""
    spark = fed(batch(0, 30, {"0": 30}, query="bronze"), batch(0, 30, {}, query="gold"))
    assert spark.counts.lag({0: 30}) == 30
    assert (spark.counts.rows, spark.counts.gold_batches) == (0, 1)


def test_quarantined_rows_add_up() -> None:
    assert fed(batch(0, 9, {}, quarantined=2), batch(1, 9, {}, quarantined=1)).counts.quarantined == 3


def test_start_and_failure_are_noticed_and_other_lines_passed_over() -> None:
    spark = fed()
    spark.feed(["", "SLF4J: no providers", '{"event":"of a newer version"}', "[1]"])
    assert not spark.counts.started
    spark.feed([format_line(StartedEvent(("silver",), "local[2]", "local-1", 9.5))])
    spark.feed([format_line(FailedEvent("silver", "the disk is full"))])
    assert (spark.counts.started, spark.startup_s, spark.failure) == (True, 9.5, "the disk is full")


def test_a_tail_gives_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = LineTail(path)
    assert tail.read() == []
    path.write_bytes(b"one\ntw")
    assert tail.read() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.read() == ["two", "three"]
    assert tail.read() == []


# ── what is read back ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("value", "identity"), [
    (b'{"device":"d","seq":3,"ts":17,"type":"pump"}', Identity("d", 3, 17)),
    (b'{"device":"d","seq":"3","ts":17}', None),
    (b'{"device":"d","seq":true,"ts":17}', None),
    (b'{"device":"d"}', None),
    (b"[1,2]", None),
    (b"\xff\xfe", None),
    (b"", None),
    (None, None),
])  # fmt: skip
def test_an_identity_is_read_from_the_payload_or_not_at_all(value: bytes | None, identity: Identity | None) -> None:
    assert read_identity(value) == identity


def test_silver_is_counted_by_devices_and_numbers(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "silver", pa.table({"device": ["a", "a", None], "seq": [0, 1, 2], "x": [1.0, 2, 3]}))
    tally = count_silver(tmp_path)
    assert (tally.records, tally.unreadable, list(tally.seen), tally.seen["a"].found(5)) == (3, 1, ["a"], 2)
    assert count_silver(tmp_path / "absent").records == 0, "a table that was never written is empty"


def test_the_newest_windows_of_gold_are_read(tmp_path: Path) -> None:
    def row(start_s: int, key: str, signal: str, readings: int, level: str = "type") -> dict[str, Any]:
        begin = datetime.fromtimestamp(start_s, UTC)
        return {
            "window_start": begin, "window_end": begin + timedelta(seconds=10), "level": level, "key": key,
            "signal": signal, "readings": readings, "mean": 20.0,
        }  # fmt: skip

    rows = [row(0, "pump", "rssi", 1), row(20, "pump", "rssi", 3), row(20, "pump", "temperature", 4)]
    rows += [row(10, "meter", "rssi", 2), row(20, "meter", "rssi", 2), row(30, "pump-7", "rssi", 9, level="device")]
    write_deltalake(tmp_path / "gold", pa.Table.from_pylist(rows))
    assert read_windows(tmp_path) == (
        Window(20_000, 30_000, "meter", 2, {"rssi": 20.0}),
        Window(20_000, 30_000, "pump", 4, {"rssi": 20.0, "temperature": 20.0}),
        Window(10_000, 20_000, "meter", 2, {"rssi": 20.0}),
    )


def test_a_ledger_survives_its_way_between_processes() -> None:
    ledger = {"a": DeviceLedger(3, frozenset({1})), "b": DeviceLedger(0)}
    assert ledger_from_json(json.loads(json.dumps(ledger_as_json(ledger)))) == ledger


# ── settings and command line ────────────────────────────────────────────────────────────────────────────────────────


def settings_of(root: Path, **options: Any) -> Settings:
    """Those of the demo's file, as the gateway reads it."""
    text = gateway_toml(root, mqtt_port=18830, bootstrap="127.0.0.1:19092", http_port=19464, **options)
    (root / "gateway.toml").write_text(text, encoding="utf-8")
    loaded = load(root / "gateway.toml", environ={})
    require_runnable(loaded)
    return loaded.settings


def test_the_settings_file_is_one_the_gateway_accepts(tmp_path: Path) -> None:
    root = tmp_path / 'a "quoted" \N{ROCKET} folder\x7f'
    root.mkdir()
    settings = settings_of(root)
    assert settings.mqtt.addresses == ("mqtt://127.0.0.1:18830",)
    assert settings.kafka.topics.partitions == PARTITIONS
    assert settings.http.port == 19464
    assert settings.data_dir.parent == settings.stream.lake.path.parent == root
    assert settings.stream.topics == (TOPIC,)
    assert [route.name for route in settings.routes] == [ROUTE, "status", "answers"]


def test_with_an_access_service_the_gateway_logs_in(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of the gateway")
    mqtt = settings_of(tmp_path, password_file=tmp_path / "password").mqtt
    assert mqtt.username == "gateway"
    assert mqtt.password.get_secret_value() == "of the gateway"


@pytest.mark.parametrize("supervised", [True, False])
def test_with_faults_the_gateway_has_a_supervisor_and_one_session(tmp_path: Path, supervised: bool) -> None:
    settings = settings_of(tmp_path, supervised=supervised)
    assert (settings.workers, settings.mqtt.sessions) == ((1, 1) if supervised else (0, 4))


@pytest.mark.parametrize(("words", "says"), [
    ("--chaos --auth --no-spark", "--chaos and --auth"),
    ("--chaos --duration 19 --no-spark", r"--chaos with --duration 19.*20 s or more"),
])  # fmt: skip
def test_faults_are_refused_beside_an_access_service_and_in_a_run_too_short_for_them(words: str, says: str) -> None:
    arguments = parse(*words.split())
    with pytest.raises(ConfigError, match=says):
        arguments.run(arguments)


def parse(*words: str) -> argparse.Namespace:
    parser = Parser()
    command.add_parser(parser.add_commands())
    return parser.parse_args(["demo", *words])


def test_the_defaults_are_the_documented_ones() -> None:
    arguments = parse()
    assert (arguments.devices, arguments.rate, arguments.duration, arguments.spark) == (200, 1.0, 60.0, True)
    assert (arguments.json, arguments.keep) == (False, None)


IMPOSSIBLE = {"--duration": "0 nan soon", "--devices": "0 2.5 100000", "--rate": "0 -1", "--seed": "x"}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in IMPOSSIBLE.items() for value in values.split()]
)
def test_impossible_wishes_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(option, value)
    assert refused.value.code == 2
    assert option in capsys.readouterr().err


def test_a_folder_with_something_in_it_is_not_kept_into(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear")
    arguments = parse("--keep", str(tmp_path), "--no-spark", "--json")
    with pytest.raises(ConfigError, match="not an empty folder"):
        arguments.run(arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    for nowhere in ("mine", "mine/below"):
        arguments.keep = tmp_path / nowhere
        with pytest.raises(ConfigError, match="cannot be made a folder"):
            arguments.run(arguments)


def test_absent_packages_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else object())
    arguments = parse()
    with pytest.raises(ConfigError, match=r"pyarrow.* -m pip install .*\[embedded\]"):
        arguments.run(arguments)


# ── child processes and threads ──────────────────────────────────────────────────────────────────────────────────────


async def test_blocking_work_gives_its_result_or_its_error() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ValueError, match="no"):
        await in_thread(lambda: int("no"))


async def test_cancelling_does_not_wait_for_blocking_work() -> None:
    release = threading.Event()
    task = asyncio.create_task(in_thread(release.wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()


CHILD = """
import json, sys
print(json.dumps({"got": json.loads(sys.argv[1])}), flush=True)
print("a word on stderr", file=sys.stderr, flush=True)
words = sys.stdin.readline()
print(json.dumps({"told": words.strip()}), flush=True)
sys.exit(3 if words.strip() == "fail" else 0)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    (tmp_path / "child_of_the_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Child("child_of_the_test", "The child", tmp_path / "child.log")


async def test_a_child_gets_arguments_and_words_and_its_lines_arrive(child: Child) -> None:
    lines: list[dict[str, Any]] = []
    await child.start({"a": 1}, lines.append)
    child.check()
    await child.tell("stop 5")
    await child.finished(30.0)
    assert lines == [{"got": {"a": 1}}, {"told": "stop 5"}]


async def test_a_child_that_fails_is_quoted(child: Child) -> None:
    await child.start({}, lambda _line: None)
    await child.tell("fail")
    with pytest.raises(ChildError, match=r"status 3[^$]*a word on stderr"):
        await child.finished(30.0)
    with pytest.raises(ChildError, match="ended before it was told to"):
        child.check()


async def test_a_child_that_does_not_end_is_given_up_and_killed(child: Child) -> None:
    await child.start({}, lambda _line: None)
    with pytest.raises(ChildError, match=r"did not end within 0\.2 s"):
        await child.finished(0.2)
    await child.kill()
    await child.kill()

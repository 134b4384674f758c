"""The Spark rows of the benchmark: what they write to Kafka, and how delays are counted."""

import json
import subprocess
import sys

import pytest

from streaming.devices import job as devices
from tests.bench import spark_fleet, spark_subject
from tests.bench.payloads import PAYLOAD_BYTES
from tests.bench.records import PARTITIONS
from tests.bench.spark_job import Unwaited
from tests.bench.spark_load import Paced, RecordSource
from tests.bench.workload_spark import delays


def test_a_record_is_telemetry_of_the_size_the_rows_are_about() -> None:
    source = RecordSource()
    for number in (0, 1, 999, 1_000, 1_999_999):
        record = source.record(number, 1_763_683_200_000)
        fields = json.loads(record["value"])
        assert len(record["value"]) == PAYLOAD_BYTES
        assert fields["device"] == f"sensor-{number % 1_000:06d}"
        assert fields["ts"] == 1_763_683_200_000
        assert {"type", "seq", "temperature", "humidity", "voltage", "rssi"} <= fields.keys()
    again = source.record(1_000, 0)
    assert again["partition"] == source.record(0, 0)["partition"], "a device stays in its partition"
    assert json.loads(again["value"])["seq"] == json.loads(source.record(0, 0)["value"])["seq"] + 1


def test_a_delay_counts_to_the_first_report_that_has_the_record() -> None:
    sent: list[tuple[float, ...]] = [() for _ in range(PARTITIONS)]
    sent[0], sent[3] = (10.0, 11.0, 12.0), (11.5,)
    ends = [(12.0, {0: 2}), (15.0, {0: 2, 3: 1}), (16.0, {0: 3, 3: 1})]
    assert sorted(delays(Paced(tuple(sent)), ends, 0.0)) == pytest.approx([1.0, 2.0, 3.5, 4.0])
    assert sorted(delays(Paced(tuple(sent)), ends, 11.5)) == pytest.approx([3.5, 4.0]), "what came before is warming up"


def test_the_fleet_starts_the_job_and_not_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "start", devices.start)  # to be put back
    monkeypatch.setattr(sys, "argv", ["spark_subject", "fleet", "--config", "gateway.toml"])
    ran: list[object] = []
    monkeypatch.setattr(spark_subject.run, "main", lambda argv: ran.append((argv, devices.start)))
    spark_subject.main()
    assert ran == [(["devices", "--config", "gateway.toml"], spark_fleet.start)]
    assert spark_fleet.STARTS["devices"] is not spark_fleet.start


_DAEMON = """
import contextlib, os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 1.0:
        pass
    os._exit(0)
with contextlib.suppress(ChildProcessError):
    os.wait()
print(os.times().children_user, flush=True)
sys.stdin.read()
"""


def test_cpu_of_processes_that_nobody_waits_for_is_counted() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", _DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon,
        Unwaited(daemon.pid) as unwaited,
    ):
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"0.0\n", "its parent has it in its account"
        assert unwaited.total_s() == pytest.approx(0.9, abs=0.2)
        daemon.stdin.close()

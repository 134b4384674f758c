"""A whole gateway with interceptors: what comes out in Kafka, in the account, in the dead letters, and at its end."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from bridge.ports import StoredRecord
from config.errors import ExitStatus
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.client import Client
from tests.brokers.kafka_backend import read_topic
from tests.brokers.mosquitto import Mosquitto
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import run_to_end
from tests.waiting import wait_until

SECRET = "sixteen bytes at least"
LISTENING = "tests.integration.listening_interceptor:Listening"


def read(bootstrap: str, topic: str) -> list[StoredRecord]:
    return [record for log in read_topic(bootstrap, topic) for record in log]


def pseudonym(device: str) -> str:
    return hmac.new(SECRET.encode(), device.encode(), hashlib.sha256).hexdigest()[:32]


def test_arrays_become_masked_records_over_partitions_and_each_message_counts_once(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    heard = tmp_path / "heard"
    arrays = {
        "name": "arrays", "filters": ["arrays/#"], "topic": unique,
        "interceptors": [
            {"use": "split", "path": "readings", "copy_fields": {"device": "device"}, "key": "sensor"},
            {"use": "filter", "expression": "json.value >= 0", "name": "positive", "reason": "negative"},
            {
                "use": "mask", "method": "hmac", "fields": ["device"], "secret_file": str(tmp_path / "secret"),
                "on_error": "stop",
            },
            {"use": LISTENING, "name": "listening", "file": str(heard)},
        ],
    }  # fmt: skip
    plain = {"name": "plain", "filters": ["plain/#"], "topic": f"{unique}-plain"}
    gateway = make_gateway(
        mosquitto.port, kafka.bootstrap, unique, mqtt={"sessions": 2}, routes=[arrays, plain],
        interceptors=[{"use": "headers", "add": {"site": "north-${instance}"}}],
    )  # fmt: skip
    gateway.start()
    with Client(mosquitto.port) as client:
        for number in range(60):
            readings: list[dict[str, Any]] = [
                {"sensor": f"s{at}", "n": number, "value": -1 if at == number % 7 else at} for at in range(number % 5)
            ]
            device = f"d{number % 3}"
            if number % 10 == 9:
                readings.append({"sensor": "s0", "n": number, "value": "no number"})
            client.publish(f"arrays/{device}", json.dumps({"device": device, "readings": readings}).encode())
        client.publish("plain/1", b"plain")
    wait_until(lambda: gateway.status()["ledger"]["received"] == 61 and gateway.settled(), "all is settled")

    expected, filtered, buried = [], {"empty_array": 0, "negative": 0}, 0
    for number in range(60):
        good = [at for at in range(number % 5) if at != number % 7]
        if number % 10 == 9:
            buried += 1  # the whole message, none of whose records goes to Kafka
        elif number % 5 == 0:
            filtered["empty_array"] += 1
        elif not good:
            filtered["negative"] += 1
        else:
            expected += [(number, at, pseudonym(f"d{number % 3}")) for at in good]
    records = read(kafka.bootstrap, unique)
    found = [json.loads(record.value or b"") for record in records]
    assert sorted((one["n"], one["value"], one["device"]) for one in found) == sorted(expected)
    assert {record.key for record in records} == {f"s{at}".encode() for at in range(4)}
    assert sum(bool(log) for log in read_topic(kafka.bootstrap, unique)) > 1, "over partitions"
    assert all(dict(record.headers)["site"] == b"north-gateway" for record in records)
    ledger = gateway.status()["ledger"]
    assert (ledger["filtered"], ledger["dead_lettered"]) == (sum(filtered.values()), buried)
    assert ledger["delivered"] == 61 - sum(filtered.values()) - buried
    assert gateway.imbalance() == 0
    samples = gateway.samples("gateway_messages_filtered_total")
    assert {reason: samples[f'{{reason="{reason}",route="arrays"}}'] for reason in filtered} == filtered
    assert gateway.samples("gateway_mqtt_messages_received_total")['{qos="1",route="arrays"}'] == 60
    intercepted = gateway.samples("gateway_intercept_total")
    assert intercepted['{interceptor="positive",outcome="error"}'] == buried
    assert intercepted['{interceptor="listening",outcome="pass"}'] >= len(expected)
    assert gateway.metric("gateway_intercept_seconds_count") > 0
    letters = read(kafka.bootstrap, f"{unique}-dead")
    assert {dict(letter.headers)["dlq.reason"] for letter in letters} == {b"interceptor_error"}
    assert all(b"no number" in (letter.value or b"") for letter in letters)
    assert len(gateway.events("interceptor_failed")) < 10, "its log is limited"

    # A replay takes the chain of today: what was wrong is dropped now, and the rest is masked as ever.
    arrays["interceptors"][1]["on_error"] = "drop"  # type: ignore[index]
    gateway.configure(routes=[arrays, plain])
    status, text = gateway.command("dlq", "replay", "--route", "arrays")
    assert status in {0, 5}, text
    replayed = [json.loads(record.value or b"") for record in read(kafka.bootstrap, unique)][len(found) :]
    assert {one["n"] % 10 for one in replayed if one not in found} <= {9}
    assert all(len(one["device"]) == 32 for one in replayed), "nothing comes unmasked"

    assert gateway.stop() == -15
    lines = [json.loads(line) for line in heard.read_text().splitlines()]
    told = [line for line in lines if line != "closed" and line["topic"] == unique]
    assert sum(line["record_count"] for line in told if line["error"] is None) >= len(expected)
    assert len({(line["partition"], line["base_offset"]) for line in told}) == len(told), "each batch once"
    assert lines.count("closed") == 2, "by the gateway and by the replay"


def test_stop_ends_the_gateway_with_a_sentence_and_its_message_comes_again(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    plug_in = {"use": LISTENING, "file": str(tmp_path / "heard"), "fail_on": "poison", "on_error": "stop"}
    gateway = make_gateway(
        mosquitto.port, kafka.bootstrap, unique, mqtt={"sessions": 1}, interceptors=[plug_in], shutdown_timeout="2s",
        kafka={"request_timeout": "1s"},
    )  # fmt: skip
    gateway.start()
    with Client(mosquitto.port) as client:
        for payload in (b"before", b"poison", b"behind"):
            client.publish("devices/1", payload)
    assert gateway.process.wait(30) == ExitStatus.FAILED
    (line,) = gateway.events("worker_failed")
    assert "route 'telemetry', interceptors[0]" in line["error"]
    assert "ValueError: told to fail" in line["error"]
    assert "Traceback" not in gateway.tail(50)

    gateway.configure(interceptors=[{**plug_in, "fail_on": "never"}])
    gateway.start()
    wait_until(
        lambda: {b"before", b"poison", b"behind"} == {record.value for record in read(kafka.bootstrap, unique)},
        "what was not acknowledged came again",
    )
    assert gateway.stop() == -15


def test_a_plug_in_that_is_not_there_ends_the_start(kafka: KafkaCluster, tmp_path: Path, unique: str) -> None:
    route = {"name": "telemetry", "filters": ["devices/#"], "topic": unique}
    tables = {
        "mqtt": {"addresses": ["mqtt://127.0.0.1:1"]},
        "kafka": {"bootstrap_servers": [kafka.bootstrap]},
        "http": {"port": 0},
        "routes": [{**route, "interceptors": [{"use": "a_package_nobody_has:Thing"}]}],
    }
    status, stderr = run_to_end(tmp_path, tables)
    assert status == ExitStatus.CONFIG == 78
    assert "Traceback" not in stderr
    assert "route 'telemetry', routes[0].interceptors[0] (a_package_nobody_has:Thing)" in stderr
    assert "there is no module 'a_package_nobody_has'" in stderr

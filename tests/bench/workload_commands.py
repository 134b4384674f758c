"""Workloads of commands, from Kafka through a real mosquitto to devices."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.bench import command_load
from tests.bench.account import SpanClock, rss_mib
from tests.bench.measurement import Measurement
from tests.bench.mosquitto import Mosquitto
from tests.bench.payloads import DEVICES, PAYLOAD_BYTES
from tests.bench.processes import BenchError, Helper, wait_until
from tests.bench.publisher import Pace, Published, Start
from tests.bench.records import PARTITIONS
from tests.bench.site import Site
from tests.bench.subject import CommandBridge, CommandGateway, Subject, running

_TIMEOUT_S: Final = 60.0
_EACH: Final = 10  # commands of a device that is away


def commands_live(site: Site, launcher: CommandGateway | CommandBridge, pace: Pace) -> Measurement:
    """Commands written at an even pace, from their record to their device; the first second is left out."""
    with site.room() as (topic, directory), site.room() as (statuses, _), Mosquitto(directory / "mosquitto") as broker:
        timeout_s = pace.count / pace.rate + _TIMEOUT_S
        with (
            Helper(command_load.received, broker.port, DEVICES, pace.count, pace.rate, timeout_s) as devices,
            Helper(command_load.paced, site.kafka.bootstrap, topic, pace, DEVICES) as sender,
            running(launcher.start(site.place(broker.port, topic, directory), statuses)) as subject,
        ):
            devices.receive(command_load.Subscribed, _TIMEOUT_S)
            subject.wait_ready()
            _wait_open(subject)
            subject.wait_idle()
            clock = SpanClock(subject.pid)
            sender.send(Start())
            published = sender.receive(Published, timeout_s)
            devices.receive(command_load.First, _TIMEOUT_S)
            found = devices.receive(command_load.Received, _TIMEOUT_S, subject.check_alive)
            _wait_finished(subject, pace.count)
            span = clock.stop()
            details = {"max_ms": found.max_ms, "publisher_late_ms": published.late_ms, "copies": float(found.copies)}
            measured = Measurement.of_span(pace.count, span, subject.memory(), details)
            subject.stop()
        if isinstance(launcher, CommandGateway):
            _check_statuses(site, statuses, pace.count)
        return Measurement({**measured.figures, "p50_ms": found.p50_ms, "p99_ms": found.p99_ms}, measured.details)


def commands_saturated(
    site: Site, launcher: CommandGateway | CommandBridge, count: int, devices_count: int
) -> Measurement:
    """A backlog of commands, from the first at its device to the last status in Kafka."""
    with site.room() as (topic, directory), site.room() as (statuses, _), Mosquitto(directory / "mosquitto") as broker:
        command_load.preload(site.kafka.bootstrap, topic, count, devices_count)
        with (
            Helper(command_load.received, broker.port, devices_count, count, 0, _TIMEOUT_S * 2) as devices,
            running(_start_after(devices, launcher, site, broker.port, topic, statuses, directory)) as subject,
        ):
            devices.receive(command_load.First, _TIMEOUT_S, subject.check_alive)
            clock = SpanClock(subject.pid)
            found = devices.receive(command_load.Received, _TIMEOUT_S * 2, subject.check_alive)
            _wait_finished(subject, count)
            span = clock.stop()
            details = {"copies": float(found.copies), "devices_s": found.ns / 1e9}
            measured = Measurement.of_span(count, span, subject.memory(), details)
            subject.stop()
        if isinstance(launcher, CommandGateway):
            _check_statuses(site, statuses, count)
        return measured


def commands_waiting(site: Site, launcher: CommandGateway, count: int) -> Measurement:
    """Commands for devices that are away: memory that each takes beside its payload. A tenth of them comes before,
    with devices of its own, so that buffers do not count.
    """
    with (
        site.room() as (topic, directory),
        site.room() as (statuses, _),
        Mosquitto(directory / "mosquitto") as broker,
        running(launcher.start(site.place(broker.port, topic, directory), statuses)) as subject,
    ):
        subject.wait_ready()
        _wait_open(subject)
        subject.wait_idle()
        before_mib = _wait_for_devices(site, subject, topic, 0, count // 10)
        after_mib = _wait_for_devices(site, subject, topic, count // 10, count)
        each = (after_mib - before_mib) * (1 << 20) / (count - count // 10) - PAYLOAD_BYTES
        measured = Measurement({"bytes_each": each, "rss_mib": subject.peak_rss_mib()}, {"count": float(count)})
        subject.stop()
        return measured


def _wait_for_devices(site: Site, subject: Subject, topic: str, begin: int, end: int) -> float:
    """Commands up to a number, for devices that are away; the memory in MiB when all wait and nothing else goes on."""
    first, last = begin // _EACH, end // _EACH
    command_load.preload(site.kafka.bootstrap, topic, end - begin, last - first, first)
    wait_until(
        lambda: subject.metrics().get("gateway_commands_waiting", 0) >= end, "all commands wait", _TIMEOUT_S, 0.5
    )
    subject.wait_calm()
    return rss_mib(subject.pid)


def _start_after(
    devices: Helper,
    launcher: CommandGateway | CommandBridge,
    site: Site,
    port: int,
    topic: str,
    statuses: str,
    directory: Path,
) -> Subject:
    """The subject, once the devices have subscribed: it begins with the backlog at once."""
    devices.receive(command_load.Subscribed, _TIMEOUT_S)
    return launcher.start(site.place(port, topic, directory), statuses)


def _wait_open(subject: Subject) -> None:
    """Until commands may leave: the member has its partitions, the MQTT connection stands."""
    if subject.metrics():
        wait_until(lambda: _is_open(subject.status()), "commands may leave", _TIMEOUT_S, 0.1)


def _is_open(status: dict[str, Any]) -> bool:
    routes = status["commands"]["routes"].values()
    return all(route["open"] and len(route["partitions"]) == PARTITIONS for route in routes)


def _wait_finished(subject: Subject, count: int) -> None:
    """Until Kafka has the last status of each command. A plain bridge has none."""
    if subject.metrics():
        wait_until(
            lambda: subject.metrics()["gateway_commands_finished_total"] >= count, "all are finished", _TIMEOUT_S, 0.05
        )


def _check_statuses(site: Site, topic: str, count: int) -> None:
    """Every command has one last status, ``sent``."""
    outcomes: Counter[str] = Counter()
    commands: set[str] = set()
    for _, value in site.kafka.read(topic):
        status = json.loads(value)
        if status["terminal"]:
            outcomes[status["status"]] += 1
            commands.add(status["command"])
    if outcomes != {"sent": count} or len(commands) != count:
        raise BenchError(f"{count} commands, {len(commands)} with a last status: {dict(outcomes)}")

"""Workloads through a real mosquitto: a backlog drained at full speed, and live traffic at an even pace."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.bench import latency, publisher
from tests.bench.account import Span, SpanClock, cpu_of, cpu_of_each
from tests.bench.measurement import Measurement
from tests.bench.mosquitto import Mosquitto, Traffic
from tests.bench.processes import BenchError, Helper
from tests.bench.site import Site
from tests.bench.subject import Launcher, Subject, running
from tests.bench.workload_replay import check_ledger

_PRELOAD_S = 60.0
_DRAIN_S = 60.0
_KAFKA_S = 30.0
_LOOK_S = 0.0005  # how often mosquitto's byte counts are read while a backlog drains
# CONNACK, SUBACK and the like of four sessions are below this, one PUBLISH is above.
_FIRST_PUBLISH_BYTES = 200
_PUBACK_BYTES = 4  # without a reason code, in both versions


def drained(site: Site, launcher: Launcher, count: int) -> Measurement:
    """A backlog of ``count`` messages in the subject's own persistent sessions, from the first byte to the last
    acknowledgement.
    """
    with site.room() as (topic, directory), Mosquitto(directory / "mosquitto") as broker:
        place = site.place(broker.port, topic, directory)
        with running(launcher.start(place)) as subject:  # registers its sessions and subscriptions
            subject.wait_ready()
            subject.stop()
        with Helper(publisher.preload, broker.port, count) as loader:
            loader.receive(publisher.Published, _PRELOAD_S)
        if early := site.kafka.record_count(topic):
            raise BenchError(f"{early} records in Kafka before the backlog was drained: the sessions were not kept")
        before = broker.traffic()
        with running(launcher.start(place)) as subject:
            span = _watch_drain(subject, broker, before, count)
            site.kafka.wait_for_records(topic, count, _KAFKA_S)
            return _concluded(site, subject, topic, count, span)


def _watch_drain(subject: Subject, broker: Mosquitto, before: Traffic, count: int) -> Span:
    """From the first message that leaves mosquitto to the last acknowledgement that reaches it, within a
    millisecond.
    """
    deadline = time.monotonic() + _DRAIN_S
    clock: SpanClock | None = None
    acknowledged_at = 0
    while True:
        now = broker.traffic()
        if clock is None:
            if now.written - before.written >= _FIRST_PUBLISH_BYTES:
                clock = SpanClock(subject.pid)
                acknowledged_at = now.read + _PUBACK_BYTES * count
        elif now.read >= acknowledged_at:
            return clock.stop()
        if time.monotonic() > deadline:
            subject.check_alive()
            raise BenchError(f"the backlog of {count} messages was not drained and acknowledged within {_DRAIN_S:g} s")
        time.sleep(_LOOK_S)


def live(site: Site, launcher: Launcher, pace: publisher.Pace, partitions: int = 12) -> Measurement:
    """Messages published at an even pace while the subject is at work, from the first publish to the last record in
    Kafka.
    """
    with _publishing(site, launcher, pace, partitions) as (subject, topic, sender):
        span, published = _publish(site, subject, topic, sender, pace)
        return _concluded(site, subject, topic, pace.count, span, {"publisher_late_ms": published.late_ms})


def live_with_latency(site: Site, launcher: Launcher, pace: publisher.Pace) -> Measurement:
    """As ``live``, with a consumer that tells how long each message took from publish to consumer; the first second
    is left out.
    """
    with _publishing(site, launcher, pace) as (subject, topic, sender):
        arguments = (site.kafka.bootstrap, topic, pace.count, pace.rate, pace.count / pace.rate + _KAFKA_S)
        with Helper(latency.measure, *arguments) as consumer:
            consumer.receive(latency.Assigned, _KAFKA_S)
            span, published = _publish(site, subject, topic, sender, pace)
            found = consumer.receive(latency.Latencies, _KAFKA_S)
        details = {"publisher_late_ms": published.late_ms, "max_ms": found.max_ms}
        measured = _concluded(site, subject, topic, pace.count, span, details)
        return Measurement({**measured.figures, "p50_ms": found.p50_ms, "p99_ms": found.p99_ms}, measured.details)


@contextmanager
def _publishing(
    site: Site, launcher: Launcher, pace: publisher.Pace, partitions: int = 12
) -> Iterator[tuple[Subject, str, Helper]]:
    """A subject at rest between mosquitto and Kafka, and a publisher that waits for its Start."""
    with (
        site.room(partitions) as (topic, directory),
        Mosquitto(directory / "mosquitto") as broker,
        Helper(publisher.paced, broker.port, pace) as sender,
        running(launcher.start(site.place(broker.port, topic, directory))) as subject,
    ):
        subject.wait_ready()
        sender.receive(publisher.Ready, _KAFKA_S)
        subject.wait_idle()
        yield subject, topic, sender


def _publish(
    site: Site, subject: Subject, topic: str, sender: Helper, pace: publisher.Pace
) -> tuple[Span, publisher.Published]:
    clock = SpanClock(subject.pid)
    sender.send(publisher.Start())
    published = sender.receive(publisher.Published, pace.count / pace.rate + _PRELOAD_S)
    site.kafka.wait_for_records(topic, pace.count, _KAFKA_S)
    return clock.stop(), published


def idle(site: Site, launcher: Launcher, seconds: float) -> Measurement:
    """What a supervisor and its worker use while no message comes and both brokers are up, in percent of a core."""
    with site.room() as (topic, directory), Mosquitto(directory / "mosquitto") as broker:
        with running(launcher.start(site.place(broker.port, topic, directory))) as subject:
            subject.wait_ready()
            subject.wait_calm()
            before, began_ns = cpu_of_each(subject.pid), time.monotonic_ns()
            time.sleep(seconds)
            after, ended_ns = cpu_of_each(subject.pid), time.monotonic_ns()
            if before.keys() != after.keys():
                raise BenchError("a process of the gateway began or ended while nothing was to be done")
            percent = {pid: (after[pid] - before[pid]) * 100 / (ended_ns - began_ns) for pid in after}
            supervisor = percent.pop(subject.pid)
            rss_mib = subject.peak_rss_mib()
            subject.stop()
        return Measurement(
            {"worker_percent": sum(percent.values()), "supervisor_percent": supervisor, "rss_mib": rss_mib}
        )


def started(site: Site, launcher: Launcher) -> Measurement:
    """How long a start takes: from the process's creation to /readyz 200, its brokers being there."""
    with site.room() as (topic, directory), Mosquitto(directory / "mosquitto") as broker:
        began_ns = time.monotonic_ns()
        with running(launcher.start(site.place(broker.port, topic, directory))) as subject:
            subject.wait_ready(every_s=0.005)
            seconds = (time.monotonic_ns() - began_ns) / 1e9
            cpu_s = cpu_of(subject.pid).total_ns / 1e9
            rss_mib = subject.peak_rss_mib()
            subject.stop()
        return Measurement({"seconds": seconds, "rss_mib": rss_mib}, {"cpu_s": cpu_s})


def _concluded(
    site: Site, subject: Subject, topic: str, count: int, span: Span, details: Mapping[str, float] | None = None
) -> Measurement:
    """The run's figures once its records, its ledger and its end are found right."""
    memory = subject.memory()
    check_ledger(subject, count)
    subject.stop()
    # Sessions that share a subscription promise no order: the broker deals the messages out.
    account = site.check_records(topic, count, in_order=False)
    return Measurement.of_span(count, span, memory, {"duplicates": float(account.duplicates), **(details or {})})

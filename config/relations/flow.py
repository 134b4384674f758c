"""Relations of memory, times and folders across the whole worker."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from itertools import permutations
from typing import TYPE_CHECKING

from config.relations.rules import Rule, View
from config.values.grammar import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


def _windows(view: View) -> Iterator[str]:
    """All windows full of packets of the expected size must fit.

    Of the largest size they need not: 4 x 1000 x 1 MiB would be 4 GiB, and reading pauses by bytes before that. But a
    window that ordinary packets cannot fill is a promise to the broker that is never kept: reading would pause all
    the time.
    """
    mqtt, flow = view.settings.mqtt, view.settings.flow
    needed = mqtt.sessions * mqtt.receive_maximum * flow.expected_packet_bytes
    kept = sum(group.memory_bytes for group in mqtt.groups)
    if needed > flow.memory_bytes - kept:
        for_groups = f" without the {format_bytes(kept)} that mqtt.groups keep" if kept else ""
        yield (
            f"{view.say('mqtt', 'sessions')} times {view.say('mqtt', 'receive_maximum')} times "
            f"{view.say('flow', 'expected_packet_bytes')} make {format_bytes(needed)}, more than "
            f"{view.say('flow', 'memory_bytes')}{for_groups}: reading would pause before the windows "
            "are full; lower one of the three or raise memory_bytes."
        )


def _groups(view: View) -> Iterator[str]:
    """Each group's own memory holds its windows, and leaves the others at least half."""
    mqtt, flow = view.settings.mqtt, view.settings.flow
    for number, group in enumerate(mqtt.groups):
        needed = group.sessions * group.receive_maximum * flow.expected_packet_bytes
        largest = group.sessions * mqtt.max_packet_bytes
        if max(needed, largest) > group.memory_bytes:
            why = (
                "its windows full of packets of flow.expected_packet_bytes"
                if needed >= largest
                else ("a packet of mqtt.max_packet_bytes in each session")
            )
            yield (
                f'{view.say("mqtt", "groups", number, "memory_bytes")} of group "{group.name}" does not hold {why} '
                f"({format_bytes(max(needed, largest))}): reading would pause all the time; raise it, or lower its "
                "sessions or receive_maximum."
            )
    kept = sum(group.memory_bytes for group in mqtt.groups)
    if 2 * kept > flow.memory_bytes:
        yield (
            f"mqtt.groups keep {format_bytes(kept)} for themselves, more than half of "
            f"{view.say('flow', 'memory_bytes')}: the other sessions would pause at every hiccup; raise "
            "flow.memory_bytes or lower the groups' own."
        )


def _packets(view: View) -> Iterator[str]:
    mqtt, kafka, flow = view.settings.mqtt, view.settings.kafka, view.settings.flow
    memory = view.say("flow", "memory_bytes")
    if mqtt.sessions * mqtt.max_packet_bytes > flow.memory_bytes:
        yield (
            f"{view.say('mqtt', 'sessions')} times {view.say('mqtt', 'max_packet_bytes')} are more than {memory}: "
            "with a packet of the largest size in each session nothing could go on; lower one of the two or raise "
            "memory_bytes."
        )
    if flow.expected_packet_bytes > mqtt.max_packet_bytes:
        yield (
            f"{view.say('flow', 'expected_packet_bytes')} is more than {view.say('mqtt', 'max_packet_bytes')}: "
            "ordinary packets would be refused; raise the second or lower the first."
        )
    if kafka.batch_bytes > flow.memory_bytes:
        yield (
            f"{view.say('kafka', 'batch_bytes')} is more than {memory}: no batch could ever be full; lower the first "
            "or raise the second."
        )


def _pace(view: View) -> Iterator[str]:
    flow = view.settings.flow
    if flow.read_pacing_max > flow.linger_max:
        yield (
            f"{view.say('flow', 'read_pacing_max')} is longer than {view.say('flow', 'linger_max')}: every batch "
            "would be overdue when the next read comes; lower the first or raise the second."
        )
    if flow.linger_max >= view.settings.kafka.request_timeout:
        yield (
            f"{view.say('flow', 'linger_max')} is not shorter than {view.say('kafka', 'request_timeout')}: records "
            "would wait longer for company than for the broker; lower the first."
        )


def _folders(view: View) -> Iterator[str]:
    for one, other in permutations(("output", "quarantine", "checkpoint"), 2):
        inner, outer = view.value("stream", one), view.value("stream", other)
        if inner == outer and one > other:
            continue  # told once
        if inner == outer or outer in inner.parents:
            yield (
                f"{view.say('stream', one)} is the same folder as {view.say('stream', other)}, or lies in it: Spark "
                "would read its own files as data; give each a folder of its own."
            )


def _anomalies(view: View) -> Iterator[str]:
    anomalies = view.settings.stream.anomalies
    if anomalies.warm_up > anomalies.window:
        yield (
            f"{view.say('stream', 'anomalies', 'warm_up')} is more than {view.say('stream', 'anomalies', 'window')}: "
            "no window would ever be warm, and nothing found; lower the first or raise the second."
        )
    if anomalies.topic in view.settings.stream.topics:
        yield (
            f"{view.say('stream', 'anomalies', 'topic')} is among {view.say('stream', 'topics')}: the jobs would read "
            "their own alerts as telemetry; name another topic."
        )


def _slots(view: View) -> Iterator[str]:
    if view.settings.worker > 0 and view.settings.workers != 0:
        workers = "workers is not set" if view.settings.workers is None else view.say("workers")
        yield (
            f"{view.say('worker')} is for a process that has no supervisor, but {workers}: a supervisor "
            "numbers its workers itself; set workers = 0 as well, or leave worker out."
        )


REFUSED = (
    Rule(("worker", "workers"), _slots),
    Rule(
        ("mqtt.sessions", "mqtt.groups", "mqtt.receive_maximum", "flow.expected_packet_bytes", "flow.memory_bytes"),
        _windows,
    ),
    Rule(("mqtt.groups", "mqtt.max_packet_bytes", "flow.expected_packet_bytes", "flow.memory_bytes"), _groups),
    Rule(
        (
            "mqtt.sessions",
            "mqtt.max_packet_bytes",
            "flow.expected_packet_bytes",
            "flow.memory_bytes",
            "kafka.batch_bytes",
        ),
        _packets,
    ),
    Rule(("flow.read_pacing_max", "flow.linger_max", "kafka.request_timeout"), _pace),
    Rule(("stream.output", "stream.quarantine", "stream.checkpoint"), _folders),
    Rule(
        ("stream.anomalies.warm_up", "stream.anomalies.window", "stream.anomalies.topic", "stream.topics"), _anomalies
    ),
)


def _stop(view: View) -> Iterator[str]:
    if view.settings.shutdown_timeout < view.settings.kafka.request_timeout:
        yield (
            f"{view.say('shutdown_timeout')} is shorter than {view.say('kafka', 'request_timeout')}: a stop during "
            "one slow request leaves messages unacknowledged, to be delivered again."
        )


def _overdue(view: View) -> Iterator[str]:
    if view.settings.http.overdue_after < view.settings.kafka.request_timeout:
        yield (
            f"{view.say('http', 'overdue_after')} is shorter than {view.say('kafka', 'request_timeout')}: /readyz "
            "turns red at every slow request, while nothing is wrong yet."
        )


WARNED = (
    Rule(("shutdown_timeout", "kafka.request_timeout"), _stop),
    Rule(("http.overdue_after", "kafka.request_timeout"), _overdue),
)

"""Relations of memory, times and folders across the whole worker."""

from collections.abc import Iterator

from config.relations.rules import Rule, when
from config.settings import Settings
from config.values.grammar import format_bytes


def _windows(settings: Settings) -> Iterator[str]:
    """Refuses memory that cannot hold all windows, full of packets of the expected size.

    Packets of the largest size need not fit: 4 x 1000 x 1 MiB would be 4 GiB, and reading pauses by bytes earlier. If
    ordinary packets do not fit, reading pauses all the time.
    """
    mqtt, flow = settings.mqtt, settings.flow
    needed = mqtt.sessions * mqtt.receive_maximum * flow.expected_packet_bytes
    kept = sum(group.memory_bytes for group in mqtt.groups)
    if needed > flow.memory_bytes - kept:
        for_groups = f" without the {format_bytes(kept)} that mqtt.groups keep" if kept else ""
        yield (
            f"<mqtt.sessions> times <mqtt.receive_maximum> times <flow.expected_packet_bytes> make "
            f"{format_bytes(needed)}, more than <flow.memory_bytes>{for_groups}: reading would pause before the "
            "windows are full; lower one of the three or raise memory_bytes."
        )


def _groups(settings: Settings) -> Iterator[str]:
    """Refuses a group's own memory that does not hold its windows, or leaves the others less than half."""
    mqtt, flow = settings.mqtt, settings.flow
    for number, group in enumerate(mqtt.groups):
        needed = group.sessions * group.receive_maximum * flow.expected_packet_bytes
        largest = group.sessions * mqtt.max_packet_bytes
        if max(needed, largest) > group.memory_bytes:
            why = (
                "its windows full of packets of flow.expected_packet_bytes"
                if needed >= largest
                else "a packet of mqtt.max_packet_bytes in each session"
            )
            yield (
                f'<mqtt.groups.{number}.memory_bytes> of group "{group.name}" does not hold {why} '
                f"({format_bytes(max(needed, largest))}): reading would pause all the time; raise it, or lower its "
                "sessions or receive_maximum."
            )
    kept = sum(group.memory_bytes for group in mqtt.groups)
    if 2 * kept > flow.memory_bytes:
        yield (
            f"mqtt.groups keep {format_bytes(kept)} for themselves, more than half of <flow.memory_bytes>: the other "
            "sessions would pause at every short delay; raise flow.memory_bytes or lower the groups' own."
        )


def _alerts(settings: Settings) -> Iterator[str]:
    """Refuses another use of the topic of alerts, where settings speak of Spark: its name alone is no reason to refuse
    a route."""
    if "stream" not in settings.model_fields_set:
        return
    taken: dict[str | None, str] = {
        settings.ledger.topic: "ledger.topic",
        settings.dead_letter.topic: "dead_letter.topic",
    }
    for number, one in enumerate(settings.commands):
        taken |= dict.fromkeys(one.topics, f"commands.{number}.topics")
        taken[one.status_topic] = f"commands.{number}.status_topic"
    for number, route in enumerate(settings.routes):
        taken |= {route.topic: f"routes.{number}.topic", route.dead_letter_topic: f"routes.{number}.dead_letter_topic"}
    taken |= dict.fromkeys(settings.stream.devices.presence_topics, "stream.devices.presence_topics")
    taken |= dict.fromkeys(settings.stream.topics, "stream.topics")
    if (where := taken.get(settings.stream.anomalies.topic)) is not None:
        yield (
            f"<stream.anomalies.topic> is also in <{where}>: alerts would be read as telemetry, commands or the "
            "gateway's own records; name another topic."
        )


REFUSED = (
    when(
        lambda s: s.worker > 0 and s.workers != 0,
        "<worker> is for a process without a supervisor, but <workers>: a supervisor numbers its workers itself; set "
        "workers = 0 as well, or remove worker.",
    ),
    Rule(
        ("mqtt.sessions", "mqtt.groups", "mqtt.receive_maximum", "flow.expected_packet_bytes", "flow.memory_bytes"),
        _windows,
    ),
    Rule(("mqtt.groups", "mqtt.max_packet_bytes", "flow.expected_packet_bytes", "flow.memory_bytes"), _groups),
    when(
        lambda s: s.mqtt.sessions * s.mqtt.max_packet_bytes > s.flow.memory_bytes,
        "<mqtt.sessions> times <mqtt.max_packet_bytes> are more than <flow.memory_bytes>: with a packet of the largest "
        "size in each session all reading would stop; lower one of the two or raise memory_bytes.",
    ),
    when(
        lambda s: s.flow.expected_packet_bytes > s.mqtt.max_packet_bytes,
        "<flow.expected_packet_bytes> is more than <mqtt.max_packet_bytes>: ordinary packets would be refused; raise "
        "the second or lower the first.",
    ),
    when(
        lambda s: s.kafka.batch_bytes > s.flow.memory_bytes,
        "<kafka.batch_bytes> is more than <flow.memory_bytes>: no batch could ever be full; lower the first or raise "
        "the second.",
    ),
    when(
        lambda s: s.flow.read_pacing_max > s.flow.linger_max,
        "<flow.read_pacing_max> is longer than <flow.linger_max>: every batch would be overdue when the next read "
        "comes; lower the first or raise the second.",
    ),
    when(
        lambda s: s.flow.linger_max >= s.kafka.request_timeout,
        "<flow.linger_max> is not shorter than <kafka.request_timeout>: records would wait longer for other records "
        "than for the broker; lower the first.",
    ),
    when(
        lambda s: s.stream.checkpoint == s.stream.lake.path,
        "<stream.checkpoint> is the same folder as <stream.lake.path>: a job's checkpoint would be in the folder of "
        "its table; give each a folder of its own.",
    ),
    Rule(
        (
            "stream.anomalies.topic",
            "stream.topics",
            "stream.devices.presence_topics",
            "routes",
            "commands",
            "ledger.topic",
            "dead_letter.topic",
        ),
        _alerts,
    ),
)

WARNED = (
    when(
        lambda s: s.shutdown_timeout < s.kafka.request_timeout,
        "<shutdown_timeout> is shorter than <kafka.request_timeout>: a stop during one slow request leaves messages "
        "unacknowledged, to be delivered again.",
    ),
    when(
        lambda s: s.http.overdue_after < s.kafka.request_timeout,
        "<http.overdue_after> is shorter than <kafka.request_timeout>: /readyz turns red at every slow request, while "
        "nothing is wrong yet.",
    ),
    when(
        lambda s: s.ledger.topic and s.stream.audit.settle < s.ledger.interval,
        "<stream.audit.settle> is shorter than <ledger.interval>: the audit judges minutes before the ledger has them, "
        "and reports their records as unaccounted; raise the first.",
        "ledger.topic",
    ),
    when(
        lambda s: (
            s.ledger.topic and s.stream.devices.heartbeats and s.stream.devices.gateway_after < 2 * s.ledger.interval
        ),
        "<stream.devices.gateway_after> is shorter than two of <ledger.interval>: a running gateway would count as "
        "lost, so the job devices does not start; raise the first.",
        "ledger.topic",
        "stream.devices.heartbeats",
    ),
)

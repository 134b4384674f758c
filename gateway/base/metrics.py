"""Every metric of a worker, defined once: name, kind, unit, labels, meaning, and what to turn when it looks wrong.

``docs/metrics.md`` is printed from it: ``python docs/print_metrics.py > docs/metrics.md``.

Labels are bounded by settings (session, route, topic, interceptor) or by the code (reason); never a client id or an
MQTT topic.
Series known from the settings exist at 0 from the start.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Final

from bridge.errors import (
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    ReplicasMissingError,
    RetriableError,
    TimestampError,
    UnreachableError,
)
from bridge.interceptors import OUTCOMES as INTERCEPT_OUTCOMES
from bridge.wire import LEDGER_TERMS, DeadLetterReason
from gateway.base.command_metrics import CommandMetrics
from gateway.base.group_plan import group_plans, session_names
from gateway.base.instruments import MetricSet, counter, gauge, histogram
from gateway.base.lookout_metrics import LookoutMetrics
from gateway.base.process.build import build
from gateway.base.process.machine_facts import SOCKET_STATES
from gateway.base.reload_state import ReloadMetrics
from gateway.base.vitals import LATENCIES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from bridge.interceptors import Chains
    from bridge.ledger import Ledger
    from bridge.ledger_topic.intervals import LedgerIntervals
    from config.settings import Settings
    from gateway.base.lifecycle import Lifecycle

CONNECT_FAILURES: Final = (
    "unreachable",  # no such host, connection refused, no route
    "timeout",
    "tls",
    "proxy",
    "credentials",  # bad user name or password
    "token",  # there was none to show: the identity provider or the token's file has none
    "not_authorised",
    "client_id",
    "unavailable",  # the broker is busy or shutting down, a quota is used up
    "banned",  # by an operator, or for connecting and disconnecting too often
    "redirected",  # the broker says: use another server, with or without its address
    "protocol",  # what came was no MQTT, or a version the broker does not speak
    "subscribe",  # connected, but a filter was refused
    "other",
)
DISCONNECTS: Final = (
    "requested",  # by us: a stop
    "closed",  # the peer closed the connection without a DISCONNECT
    "keepalive",
    "taken_over",  # another client came with the same client id
    "administrative",  # kicked
    "server_stopping",
    "not_authorised",  # for a message that we may not publish: EMQX with deny_action = disconnect
    "redirected",  # the broker says: use another server
    "protocol",  # one side broke MQTT's rules
    "other",
)
FILTERED: Final = (  # route, reason; the route is empty where none took the message
    ("", "no_route"),
    ("", "status"),  # the gateways' own status messages
)

_SEND_FAILURES: Final[tuple[tuple[type[Exception], str, str], ...]] = (  # the most specific class first
    (LeaderMissingError, "leader_missing", "true"),
    (ReplicasMissingError, "replicas_missing", "true"),
    (UnreachableError, "unreachable", "true"),
    (RetriableError, "retriable", "true"),
    (IncarnationError, "incarnation", "true"),  # by the next producer incarnation
    (PoisonedError, "poisoned", "false"),
    (TimestampError, "timestamp", "true"),  # with the present in its place
    (RefusedError, "refused", "false"),
    (Exception, "other", "false"),
)

_INTERCEPT_TIMES: Final = (
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 1e-1,
)  # fmt: skip
_STORES: Final = (("memory",), ("disk",))
_LEDGER_TERMS: Final = tuple(term for term in LEDGER_TERMS if term != "in_flight")


@functools.cache
def versions() -> dict[str, str]:
    """Versions: of the gateway and its build, of Python, and of the client libraries for MQTT and Kafka."""
    named = {"gateway": "mqtt-kafka-gateway", "paho-mqtt": "paho-mqtt", "aiokafka": "aiokafka"}
    return {
        **{name: metadata.version(package) for name, package in named.items()},
        "python": platform.python_version(),
        "build": build(),
    }


def send_failure_labels(error: BaseException) -> tuple[str, str]:
    """The labels ``reason`` and ``retriable`` of ``gateway_kafka_send_failures_total`` for a failed batch."""
    return next((reason, retriable) for kind, reason, retriable in _SEND_FAILURES if isinstance(error, kind))


class ProcessMetrics(MetricSet):
    """Metrics of a process that shows its own: also CPU, memory and descriptors (``process_*``)."""

    # fmt: off
    event_loop_delay = histogram("gateway_event_loop_delay_seconds",
        "Delay of the event loop, measured twice a second.",
        "mqtt.sessions, the number of workers, CPU limits",
        unit="seconds", bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0))
    build_info = gauge("gateway_build_info",
        "Always 1; the labels say what runs.",
        "none",
        unit="info", labels=("version", "python", "build"),
        fixed=((metadata.version("mqtt-kafka-gateway"), platform.python_version(), build()),))
    # fmt: on

    def __init__(self, label_values: Mapping[str, Sequence[str]]) -> None:
        super().__init__(label_values)
        for row in ProcessMetrics.build_info.fixed:
            self.build_info.child(*row).value = 1

    def collect(self) -> Iterable[Metric]:
        """Every family with its present values, then the process's own. Call it in the process's loop."""
        from prometheus_client import ProcessCollector

        yield from super().collect()
        yield from ProcessCollector(registry=None).collect()


class Metrics(ProcessMetrics, LookoutMetrics, CommandMetrics, ReloadMetrics):
    """One worker's metrics; ``metrics.mqtt_unacked`` is a family, ``Metrics.mqtt_unacked`` its definition.

    Belongs to the worker's event loop: written and collected there. Not global, so a process may have several workers.
    """

    # fmt: off
    mqtt_connected = gauge("gateway_mqtt_connected",
        "1 while the session is connected and subscribed, else 0.",
        "mqtt.addresses, mqtt.username, mqtt.tls; the log has the reason",
        unit="sessions", labels=("session",))
    mqtt_connects = counter("gateway_mqtt_connects_total",
        "Connections that were made and subscribed.",
        "mqtt.keepalive, mqtt.reconnect_max if it grows without a restart of the broker",
        unit="connections")
    mqtt_connect_failures = counter("gateway_mqtt_connect_failures_total",
        "Failed attempts to connect or subscribe, by reason.",
        "mqtt.addresses (unreachable), mqtt.username and mqtt.password (credentials), mqtt.client_id (client_id)",
        unit="attempts", labels=("reason",), fixed=tuple((reason,) for reason in CONNECT_FAILURES))
    mqtt_disconnects = counter("gateway_mqtt_disconnects_total",
        "Ended connections, by reason.",
        "mqtt.keepalive (keepalive), instance and worker (taken_over: two processes share a client id), mqtt.status "
        "(not_authorised)",
        unit="connections", labels=("reason",), fixed=tuple((reason,) for reason in DISCONNECTS))
    mqtt_renewals = counter("gateway_mqtt_renewals_total",
        "Reconnects before a credential expires: done, or postponed.",
        "mqtt.token, mqtt.tls.certificate_file; postponed: Kafka's health",
        unit="attempts", labels=("reason", "result"),
        fixed=tuple((reason, result) for reason in ("token", "certificate") for result in ("renewed", "postponed")))
    token_failures = counter("gateway_token_failures_total",
        "Failed attempts to get a token. The former token stays in use until it expires.",
        "mqtt.token, kafka.sasl.token, and the identity provider's log",
        unit="attempts", labels=("side",), fixed=(("mqtt",), ("kafka",)))
    credential_expiry = gauge("gateway_credential_expiry_timestamp_seconds",
        "Expiry of a credential of the gateway, or of a server's certificate (the earliest). 0: none, or unknown.",
        "mqtt.token, mqtt.tls.certificate_file, kafka.sasl.token, kafka.tls.certificate_file; the servers' own",
        unit="timestamp_seconds", labels=("credential",),
        fixed=tuple((f"{side}_{kind}",) for side in ("mqtt", "kafka")
                    for kind in ("token", "certificate", "server_certificate")))
    mqtt_session_present = gauge("gateway_mqtt_session_present",
        "1 if the broker still had the session at its last connect, else 0.",
        "mqtt.session_expiry, mqtt.persistent",
        unit="sessions", labels=("session",))
    mqtt_lost_sessions = gauge("gateway_mqtt_lost_sessions",
        "Sessions lost by the broker within 24 h and not acknowledged (gateway acknowledge).",
        "EMQX's force_shutdown.max_mailbox_size, restarts of EMQX; mqtt.session_expiry",
        unit="sessions")
    mqtt_orphan_sessions = gauge("gateway_mqtt_orphan_sessions",
        "MQTT sessions of earlier settings, not ended yet.",
        "mqtt.addresses if it does not fall to 0; the log has the reason",
        unit="sessions")
    mqtt_messages_received = counter("gateway_mqtt_messages_received_total",
        "MQTT messages that a route took; a redelivered message counts again.",
        "none",
        unit="messages", labels=("route", "qos"), fixed=(("0",), ("1",), ("2",)))
    mqtt_received_bytes = counter("gateway_mqtt_received_bytes_total",
        "Bytes read from MQTT connections, without TLS and WebSocket framing.",
        "none",
        unit="bytes")
    mqtt_redelivered = counter("gateway_mqtt_redelivered_total",
        "Messages with DUP=1: the broker sent them before.",
        "mqtt.keepalive; shutdown_timeout if it grows at restarts",
        unit="messages")
    mqtt_retained = counter("gateway_mqtt_retained_total",
        "Messages with the retain flag.",
        "none; a shared subscription gets no retained messages",
        unit="messages")
    mqtt_unacked = gauge("gateway_mqtt_unacked",
        "QoS 1 and 2 messages received on a session and not acknowledged yet.",
        "flow.linger_max; Kafka's health if it stays near gateway_mqtt_receive_window",
        unit="messages", labels=("session",))
    mqtt_receive_window = gauge("gateway_mqtt_receive_window",
        "QoS 1 and 2 messages that a session may have unacknowledged.",
        "mqtt.receive_maximum; EMQX caps it with mqtt.max_inflight (32 by default)",
        unit="messages", labels=("session",))
    mqtt_acks = counter("gateway_mqtt_acks_total",
        "PUBACK and PUBREC packets sent.",
        "flow.linger_max",
        unit="packets")
    oldest_unacked_age = gauge("gateway_oldest_unacked_age_seconds",
        "Age of the oldest unacknowledged message; 0 without one.",
        "http.overdue_after (/readyz fails above it); kafka.delivery_timeout (ends the wait)",
        unit="seconds")
    intercepts = counter("gateway_intercept_total",
        "Records given to an interceptor, by outcome.",
        "the interceptor's options and on_error; the log has the exception",
        unit="records", labels=("interceptor", "outcome"), fixed=tuple((outcome,) for outcome in INTERCEPT_OUTCOMES))
    intercept_seconds = histogram("gateway_intercept_seconds",
        "Time of an interceptor for a record, for one message in 32.",
        "interceptors: one microsecond here is one CPU second per million records",
        unit="seconds", labels=("interceptor",), bounds=_INTERCEPT_TIMES)
    messages_filtered = counter("gateway_messages_filtered_total",
        "Messages dropped on purpose; interceptors add reasons, overlapping session groups other_group. route is empty"
        " if none fits.",
        "routes[].filters (no_route), interceptors",
        unit="messages", labels=("route", "reason"), fixed=FILTERED)
    messages_delivered = counter("gateway_messages_delivered_total",
        "MQTT messages whose last record Kafka acknowledged; a redelivered message counts again.",
        "none",
        unit="messages", labels=("route",))
    messages_dead_lettered = counter("gateway_messages_dead_lettered_total",
        "MQTT messages whose dead letter Kafka acknowledged, by route.",
        "gateway_dlq_records_total has the reasons",
        unit="messages", labels=("route",))
    kafka_records_sent = counter("gateway_kafka_records_sent_total",
        "Records Kafka acknowledged with acks=all.",
        "none",
        unit="records", labels=("topic",))
    kafka_sent_bytes = counter("gateway_kafka_sent_bytes_total",
        "Bytes of acknowledged batches, before compression.",
        "kafka.compression",
        unit="bytes")
    kafka_send_failures = counter("gateway_kafka_send_failures_total",
        "Failed batches, by reason. Those with retriable=true are sent again.",
        "kafka.bootstrap_servers (unreachable), kafka.max_record_bytes (poisoned), kafka.sasl and ACLs (refused)",
        unit="batches", labels=("topic", "reason", "retriable"),
        fixed=tuple((reason, retriable) for _, reason, retriable in _SEND_FAILURES))
    timestamps_replaced = counter("gateway_timestamps_replaced_total",
        "Records with a replaced timestamp: over an hour ahead by an interceptor, or refused by Kafka.",
        "the clocks; the topic's message.timestamp.after.max.ms",
        unit="records", labels=("by",), fixed=(("interceptor",), ("kafka",)))
    kafka_retries = counter("gateway_kafka_retries_total",
        "Batches sent again after a failure.",
        "kafka.retry_backoff, kafka.request_timeout",
        unit="batches")
    kafka_renewal_failures = counter("gateway_kafka_renewal_failures_total",
        "Failed attempts to replace a connection to Kafka before its session ends.",
        "kafka.sasl (password_file, token), the broker's connections.max.reauth.ms",
        unit="attempts")
    kafka_partitions_unused = gauge("gateway_kafka_partitions_unused",
        "Partitions added to the topic, unused until a restart.",
        "none: restart the gateway at a quiet time",
        unit="partitions", labels=("topic",))
    kafka_partition_silence = gauge("gateway_kafka_partition_silence_seconds",
        "How long records have waited for a partition without acknowledgement; 0 while none wait."
        " Above 2000 partitions only the silent ones.",
        "the broker that leads it (in /status); kafka.request_timeout",
        unit="seconds", labels=("topic", "partition"))
    kafka_broker_silence = gauge("gateway_kafka_broker_silence_seconds",
        "How long a broker has acknowledged nothing while records wait for its partitions.",
        "that broker: if it is frozen, restart it alone",
        unit="seconds", labels=("broker",))
    kafka_broker_up = gauge("gateway_kafka_broker_up",
        "1 while a broker that Kafka lists answers within five seconds.",
        "that broker and the network to it: gateway doctor",
        unit="brokers", labels=("broker",))
    kafka_broker_mute = gauge("gateway_kafka_broker_mute_seconds",
        "How long a broker has not answered; 0 after a clean shutdown.",
        "that broker; others may lead its partitions",
        unit="seconds", labels=("broker",))
    kafka_partitions_leaderless = gauge("gateway_kafka_partitions_leaderless",
        "Partitions of the topic without a leader.",
        "the brokers with their replicas: gateway topics describe",
        unit="partitions", labels=("topic",))
    kafka_topic_missing = gauge("gateway_kafka_topic_missing",
        "1 for a route's topic that does not exist, else 0.",
        "gateway topics plan, gateway topics apply; kafka.topics.create",
        unit="topics", labels=("topic",))
    kafka_throttle_seconds = histogram("gateway_kafka_throttle_seconds",
        "How long brokers told the gateway to send no batches.",
        "the quota (producer_byte_rate, request_percentage) of the gateway's user or client id",
        unit="seconds", bounds=(0.01, 0.1, 0.5, 1.0, 5.0, 30.0))
    kafka_incarnations = counter("gateway_kafka_producer_incarnations_total",
        "Producers started: one, and one after each failure of it.",
        "kafka.delivery_timeout, kafka.request_timeout",
        unit="producers")
    dlq_records = counter("gateway_dlq_records_total",
        "Dead letters that Kafka acknowledged, by reason. Alert on any increase.",
        "routes[].topic, routes[].key (missing_value), routes[].allowed_topics (invalid_topic), routes[].max_topics"
        " (topic_limit), kafka.max_record_bytes (too_large), the topic's settings (invalid_record); `gateway dlq list`",
        unit="records", labels=("reason",), fixed=tuple((reason.value,) for reason in DeadLetterReason))
    route_stopped = gauge("gateway_route_stopped",
        "1 while a route is stopped by too many dead letters. Alert on 1.",
        "the last dead letters; dead_letter.max_per_second, dead_letter.max_share, dead_letter.retry_after",
        unit="routes", labels=("route",))
    route_held_messages = gauge("gateway_route_held_messages",
        "Messages of a stopped route held in this worker.",
        "as gateway_route_stopped; flow.memory_bytes is the bound",
        unit="messages", labels=("route",))
    kafka_produce_seconds = histogram("gateway_kafka_produce_seconds",
        "Time from sending a record's batch to Kafka's acknowledgement.",
        "kafka.batch_bytes, kafka.compression; the brokers' own request metrics",
        unit="seconds", bounds=LATENCIES)
    end_to_end_seconds = histogram("gateway_end_to_end_seconds",
        "Time from reading a message off MQTT to Kafka's acknowledgement.",
        "flow.linger_max, flow.read_pacing_max",
        unit="seconds", labels=("route",), bounds=LATENCIES)
    kafka_batch_records = histogram("gateway_kafka_batch_records",
        "Records in each acknowledged batch.",
        "flow.linger_max if batches are small at a high rate",
        unit="records", bounds=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000))
    kafka_batch_bytes = histogram("gateway_kafka_batch_bytes",
        "Size of each acknowledged batch before compression.",
        "kafka.batch_bytes",
        unit="bytes", bounds=(256, 1024, 4096, 16_384, 65_536, 131_072, 262_144, 1_048_576))
    buffer_bytes = gauge("gateway_buffer_bytes",
        "Bytes of records that wait for Kafka's acknowledgement.",
        "flow.memory_bytes (memory), spool.max_bytes (disk)",
        unit="bytes", labels=("store",), fixed=_STORES)
    buffer_records = gauge("gateway_buffer_records",
        "Messages that wait for Kafka's acknowledgement.",
        "as gateway_buffer_bytes",
        unit="records", labels=("store",), fixed=_STORES)
    buffer_limit_bytes = gauge("gateway_buffer_limit_bytes",
        "Bytes of records at which reading from MQTT pauses (memory), or the spool is full (disk; 0 if off).",
        "flow.memory_bytes (memory), spool.max_bytes (disk)",
        unit="bytes", labels=("store",), fixed=_STORES)
    last_ack_timestamp = gauge("gateway_last_ack_timestamp_seconds",
        "Time of Kafka's last acknowledgement for the topic; 0 before the first.",
        "kafka.bootstrap_servers if it stands still while gateway_mqtt_unacked is above 0",
        unit="seconds", labels=("topic",))
    ledger_messages = counter("gateway_ledger_messages_total",
        "The ledger's growing terms. They balance: received + recovered = delivered + filtered + dead_lettered +"
        " copies + in flight + returned + lost.",
        "none",
        unit="messages", labels=("term",), fixed=tuple((term,) for term in _LEDGER_TERMS))
    ledger_in_flight = gauge("gateway_ledger_in_flight",
        "Messages received and not settled.",
        "mqtt.receive_maximum, flow.linger_max",
        unit="messages")
    ledger_imbalance = gauge("gateway_ledger_imbalance",
        "Messages that the ledger cannot place, always 0. Above 0: missing. Below 0: counted twice.",
        "none: anything but 0 is a defect; keep the log and report it",
        unit="messages")
    ledger_waiting = gauge("gateway_ledger_intervals_waiting",
        "Ledger intervals not on the ledger topic yet; beyond 60 the oldest are merged.",
        "ledger.topic: does Kafka take records there?",
        unit="intervals")
    cpu_starved = counter("gateway_cpu_starved_seconds_total",
        "Time with work but without a CPU. waited: this process. throttled: by the container's quota. "
        "pressure: PSI of control group or machine.",
        "the container's CPU limit, workers, other processes",
        unit="seconds", labels=("by",), fixed=(("waited",), ("throttled",), ("pressure",)))
    spool_messages = gauge("gateway_spool_messages",
        "Messages in the spool that Kafka does not have.",
        "Kafka's refusal (gateway_kafka_send_failures_total); spool.replay_max_bytes_per_second",
        unit="messages")
    spool_bytes = gauge("gateway_spool_bytes", "Bytes of batches in the spool.", "spool.max_bytes", unit="bytes")
    spool_limit_bytes = gauge("gateway_spool_limit_bytes",
        "Bytes of batches that the spool takes at most; 0 if it is off.",
        "spool.max_bytes",
        unit="bytes")
    spool_oldest_age = gauge("gateway_spool_oldest_age_seconds",
        "Age of the oldest batch in the spool; 0 without one.",
        "spool.replay_max_bytes_per_second",
        unit="seconds")
    spool_segments = gauge("gateway_spool_segments",
        "Files of the spool. Each is deleted once all of it is delivered.",
        "none",
        unit="segments")
    spool_failing = gauge("gateway_spool_failing",
        "1 while the spool is full, or its disk fails. Else 0.",
        "spool.max_bytes, data_dir (its disk)",
        unit="state")
    spool_fsync_seconds = histogram("gateway_spool_fsync_seconds",
        "Time of the disk for a durable write of the spool.",
        "data_dir (its disk)",
        unit="seconds", bounds=LATENCIES)
    sockets = gauge("gateway_sockets",
        "TCP sockets of this process, by state.",
        "mqtt.sessions; the number of Kafka brokers; the log",
        unit="sockets", labels=("state",), fixed=tuple((state,) for state in SOCKET_STATES))
    problems = gauge("gateway_problems",
        "Present problems on the status page, by name and severity; no series if there is none.",
        "the runbook's entry of that name",
        unit="problems", labels=("problem", "severity"))
    lifecycle_state = gauge("gateway_lifecycle_state",
        "0 not running, 1 starting, 2 recovery, 3 running, 6 pending controlled shutdown, 7 shutting down.",
        "shutdown_timeout if it stays at 6",
        unit="state")
    last_shutdown_unclean = gauge("gateway_last_shutdown_unclean",
        "1 if this worker's last run had no orderly stop, else 0.",
        "shutdown_timeout, and the service manager's time for a stop",
        unit="lives")
    # fmt: on

    def __init__(self, settings: Settings) -> None:
        super().__init__(_label_values(settings))
        self.buffer_limit_bytes.child("memory").value = settings.flow.memory_bytes
        for plan in group_plans(settings):
            for number in range(plan.settings.mqtt.sessions):
                window = self.mqtt_receive_window.child(plan.session_name(number))
                window.value = plan.settings.mqtt.receive_maximum

    def leave_reloads_to_supervisor(self) -> None:
        """Show no series of reloads: one that belongs to all workers is there already."""
        for definition in ReloadMetrics.definitions():
            del self.families[definition.name]

    def adopt(self, settings: Settings) -> None:
        """Show what other settings name as well, from now on."""
        self.know(_label_values(settings))
        self.buffer_limit_bytes.child("memory").value = settings.flow.memory_bytes

    def watch_ledger(self, ledger: Ledger) -> None:
        """Shows the ledger's terms and its imbalance."""
        self.ledger_messages.watch_rows(lambda: {(term,): getattr(ledger, term) for term in _LEDGER_TERMS})
        self.ledger_in_flight.watch(ledger.in_flight)
        self.ledger_imbalance.watch(ledger.imbalance)

    def watch_chains(self, chains: Chains) -> None:
        """Shows what interceptors do, and has them timed."""
        self.intercepts.watch_rows(chains.rows)
        for chain in chains:
            for reason in chain.drop_reasons:
                self.messages_filtered.child(chain.route, reason)
            for stage in chain.stages:
                stage.observe = self.intercept_seconds.child(stage.label).observe_many

    def watch_routes(self, intervals: LedgerIntervals) -> None:
        """Shows what became of each route's messages in Kafka."""
        self.messages_delivered.watch_rows(lambda: _by_route(intervals, dead_letter=False))
        self.messages_dead_lettered.watch_rows(lambda: _by_route(intervals, dead_letter=True))

    def watch_lifecycle(self, lifecycle: Lifecycle) -> None:
        """Shows the state's number."""
        self.lifecycle_state.watch(lambda: lifecycle.state)


def _label_values(settings: Settings) -> dict[str, list[str]]:
    """What each label can be that settings decide."""
    topics = [route.topic for route in settings.routes if "${" not in route.topic]
    return {
        "session": session_names(settings),
        "route": [route.name for route in settings.routes],
        "commands": [commands.name for commands in settings.commands],
        "topic": list(dict.fromkeys([*topics, *settings.dead_letter_topics])),
        "interceptor": _interceptor_labels(settings),
        "broker": [],  # known once Kafka has said it
        "group": [],  # as "broker"
        "partition": [],  # from their first record on
        "problem": [],  # while there is one
        "severity": [],
    }


def _interceptor_labels(settings: Settings) -> list[str]:
    chosen = (one for route in settings.routes for one in (*settings.interceptors, *route.interceptors))
    return list(dict.fromkeys(one.label for one in chosen))


def _by_route(intervals: LedgerIntervals, *, dead_letter: bool) -> dict[tuple[str, ...], float]:
    return {(route,): count for route, count in intervals.messages(dead_letter=dead_letter).items()}

"""Every metric of a worker, defined once: name, kind, unit, labels, meaning, and what to turn when it looks wrong.

``docs/metrics.md`` is printed from it: ``python docs/print_metrics.py > docs/metrics.md``.

Labels are bounded by settings (session, route, topic, interceptor) or by the code (reason); never a client id or an
MQTT topic.
Series known from the settings exist at 0 from the start.
"""

from __future__ import annotations

__all__ = ["LATENCIES", "Metrics", "send_failure_labels", "versions"]

import functools
import platform
import time
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
from gateway.base import lookout_metrics
from gateway.base.group_plan import group_plans, session_names
from gateway.base.instruments import MetricSet, counter, gauge, histogram
from gateway.base.machine_facts import SOCKET_STATES
from gateway.base.reload_metrics import LAST_RELOAD, RELOAD_SUCCESS

if TYPE_CHECKING:
    from collections.abc import Iterable

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

LATENCIES: Final = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_INTERCEPT_TIMES: Final = (
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 1e-1,
)  # fmt: skip
_STORES: Final = (("memory",), ("disk",))
_LEDGER_TERMS: Final = tuple(term for term in LEDGER_TERMS if term != "in_flight")


@functools.cache
def versions() -> dict[str, str]:
    """What runs: the gateway, Python, and the two client libraries that its seams rest on."""
    named = {"gateway": "mqtt-kafka-gateway", "paho-mqtt": "paho-mqtt", "aiokafka": "aiokafka"}
    return {
        **{name: metadata.version(package) for name, package in named.items()},
        "python": platform.python_version(),
    }


def send_failure_labels(error: BaseException) -> tuple[str, str]:
    """The labels ``reason`` and ``retriable`` of ``gateway_kafka_send_failures_total`` for a failed batch."""
    return next((reason, retriable) for kind, reason, retriable in _SEND_FAILURES if isinstance(error, kind))


class Metrics(MetricSet):
    """One worker's metrics; ``metrics.mqtt_unacked`` is a family, ``Metrics.mqtt_unacked`` its definition.

    Belongs to the worker's event loop: written and collected there. Not global, so a process may have several workers.
    """

    mqtt_connected = gauge(
        "gateway_mqtt_connected",
        "1 while the session is connected and subscribed, else 0.",
        "mqtt.addresses, mqtt.username, mqtt.tls; the log names the reason of each failure",
        unit="sessions",
        labels=("session",),
    )
    mqtt_connects = counter(
        "gateway_mqtt_connects_total",
        "Connections the broker accepted, the first ones included.",
        "mqtt.keepalive, mqtt.reconnect_max when it grows without a restart of the broker",
        unit="connections",
    )
    mqtt_connect_failures = counter(
        "gateway_mqtt_connect_failures_total",
        "Attempts to connect or subscribe that failed, by reason.",
        "mqtt.addresses (unreachable), mqtt.username and mqtt.password (credentials), mqtt.client_id (client_id)",
        unit="attempts",
        labels=("reason",),
        fixed=tuple((reason,) for reason in CONNECT_FAILURES),
    )
    mqtt_disconnects = counter(
        "gateway_mqtt_disconnects_total",
        "Connections that ended, by reason.",
        "mqtt.keepalive (keepalive), instance and worker (taken_over: two processes share a client id)",
        unit="connections",
        labels=("reason",),
        fixed=tuple((reason,) for reason in DISCONNECTS),
    )
    mqtt_renewals = counter(
        "gateway_mqtt_renewals_total",
        "Sessions that were to connect anew before what they had shown expires: renewed in good order, or postponed.",
        "mqtt.token, mqtt.tls.certificate_file; postponed: Kafka does not take what is unacknowledged",
        unit="attempts",
        labels=("reason", "result"),
        fixed=tuple((reason, result) for reason in ("token", "certificate") for result in ("renewed", "postponed")),
    )
    token_failures = counter(
        "gateway_token_failures_total",
        "Attempts to get a token that found none, by the side that shows it. The one before is shown while it is good.",
        "mqtt.token, kafka.sasl.token, and the identity provider's log",
        unit="attempts",
        labels=("side",),
        fixed=(("mqtt",), ("kafka",)),
    )
    credential_expiry = gauge(
        "gateway_credential_expiry_timestamp_seconds",
        "When what the gateway shows expires, and what the servers show it (server_certificate): of several connections"
        " the earliest. 0 where there is none, or nobody can tell. Alert when it comes close: renewal has failed for"
        " long then.",
        "mqtt.token, mqtt.tls.certificate_file, kafka.sasl.token, kafka.tls.certificate_file; the servers' own",
        unit="timestamp_seconds",
        labels=("credential",),
        fixed=tuple(
            (f"{side}_{kind}",) for side in ("mqtt", "kafka") for kind in ("token", "certificate", "server_certificate")
        ),
    )
    mqtt_session_present = gauge(
        "gateway_mqtt_session_present",
        "1 if the broker still had the session at its last connect, so that nothing queued for it was lost; else 0.",
        "mqtt.session_expiry, mqtt.persistent",
        unit="sessions",
        labels=("session",),
    )
    mqtt_lost_sessions = gauge(
        "gateway_mqtt_lost_sessions",
        "Times within 24 h that the broker had lost a session when it was connected again, with all that it held, and"
        " that nobody has acknowledged (gateway acknowledge).",
        "EMQX's force_shutdown.max_mailbox_size, restarts of EMQX; mqtt.session_expiry",
        unit="sessions",
    )
    mqtt_orphan_sessions = gauge(
        "gateway_mqtt_orphan_sessions",
        "MQTT sessions of earlier settings that are still to be drained and ended at the broker.",
        "mqtt.addresses when it does not fall to 0; the log says why one cannot be resumed",
        unit="sessions",
    )
    mqtt_messages_received = counter(
        "gateway_mqtt_messages_received_total",
        "MQTT messages taken in, by the route that took them; a redelivered message counts again.",
        "routes",
        unit="messages",
        labels=("route", "qos"),
        fixed=(("0",), ("1",), ("2",)),
    )
    mqtt_received_bytes = counter(
        "gateway_mqtt_received_bytes_total",
        "Bytes read from MQTT connections, after TLS and WebSocket were taken off.",
        "mqtt.sessions",
        unit="bytes",
    )
    mqtt_redelivered = counter(
        "gateway_mqtt_redelivered_total",
        "Messages that came with DUP=1: the broker had sent them before and saw no acknowledgement.",
        "mqtt.keepalive, shutdown_timeout when it grows at restarts",
        unit="messages",
    )
    mqtt_retained = counter(
        "gateway_mqtt_retained_total",
        "Messages that came with the retain flag: kept by the broker from before, or published so where the route's"
        " session asks for the flag.",
        "none; a shared subscription gets no kept messages",
        unit="messages",
    )
    mqtt_unacked = gauge(
        "gateway_mqtt_unacked",
        "Messages of QoS 1 and 2 received on a session and not acknowledged to the broker yet.",
        "flow.linger_max; Kafka's health when it stays near gateway_mqtt_receive_window",
        unit="messages",
        labels=("session",),
    )
    mqtt_receive_window = gauge(
        "gateway_mqtt_receive_window",
        "Messages of QoS 1 and 2 a session may have unacknowledged.",
        "mqtt.receive_maximum; EMQX caps it with mqtt.max_inflight (32 by default)",
        unit="messages",
        labels=("session",),
    )
    mqtt_acks = counter(
        "gateway_mqtt_acks_total",
        "PUBACK and PUBREC packets sent, each after Kafka had the message.",
        "flow.linger_max",
        unit="packets",
    )
    oldest_unacked_age = gauge(
        "gateway_oldest_unacked_age_seconds",
        "Age of the oldest message received and not settled yet; 0 when there is none.",
        "http.overdue_after turns /readyz red beyond it; kafka.delivery_timeout ends a hopeless wait",
        unit="seconds",
    )
    intercepts = counter(
        "gateway_intercept_total",
        "What interceptors made of the records they were given: passed on, split into several, dropped, or failed on.",
        "the interceptor's options and on_error (error); the log names the failure",
        unit="records",
        labels=("interceptor", "outcome"),
        fixed=tuple((outcome,) for outcome in INTERCEPT_OUTCOMES),
    )
    intercept_seconds = histogram(
        "gateway_intercept_seconds",
        "Time an interceptor took for a record. One message in 32 is timed and counts for all of them.",
        "interceptors: every microsecond here is one CPU second per million records",
        unit="seconds",
        labels=("interceptor",),
        bounds=_INTERCEPT_TIMES,
    )
    messages_filtered = counter(
        "gateway_messages_filtered_total",
        "Messages dropped on purpose, by reason; none is dropped for want of room. route is empty where none fits; a"
        " route's interceptors add their own reasons.",
        "routes[].filters (no_route), interceptors",
        unit="messages",
        labels=("route", "reason"),
        fixed=FILTERED,
    )
    messages_delivered = counter(
        "gateway_messages_delivered_total",
        "MQTT messages whose last record Kafka acknowledged, by route; a redelivered message counts again.",
        "routes",
        unit="messages",
        labels=("route",),
    )
    messages_dead_lettered = counter(
        "gateway_messages_dead_lettered_total",
        "MQTT messages whose dead letter Kafka acknowledged, by the route that took them.",
        "gateway_dlq_records_total says why",
        unit="messages",
        labels=("route",),
    )
    kafka_records_sent = counter(
        "gateway_kafka_records_sent_total",
        "Records Kafka acknowledged with acks=all.",
        "routes",
        unit="records",
        labels=("topic",),
    )
    kafka_sent_bytes = counter(
        "gateway_kafka_sent_bytes_total",
        "Bytes of the batches Kafka acknowledged, before compression.",
        "kafka.compression",
        unit="bytes",
    )
    kafka_send_failures = counter(
        "gateway_kafka_send_failures_total",
        "Batches that failed, by reason; retriable=true ones are sent again.",
        "kafka.bootstrap_servers (unreachable), kafka.max_record_bytes (poisoned), kafka.sasl and ACLs (refused)",
        unit="batches",
        labels=("topic", "reason", "retriable"),
        fixed=tuple((reason, retriable) for _, reason, retriable in _SEND_FAILURES),
    )
    timestamps_replaced = counter(
        "gateway_timestamps_replaced_total",
        "Records written with another timestamp than they had, which the header gateway.timestamp_ms keeps:"
        " `interceptor` for one that an interceptor set more than an hour ahead, `kafka` for one that Kafka refused.",
        "the clocks of this machine, the brokers and the devices; the topic's message.timestamp.after.max.ms",
        unit="records",
        labels=("by",),
        fixed=(("interceptor",), ("kafka",)),
    )
    kafka_retries = counter(
        "gateway_kafka_retries_total",
        "Batches sent again after a failure.",
        "kafka.retry_backoff, kafka.request_timeout",
        unit="batches",
    )
    kafka_renewal_failures = counter(
        "gateway_kafka_renewal_failures_total",
        "Attempts to replace a connection to Kafka before its authenticated session ends that failed. The connection "
        "is used for as long as the broker takes it.",
        "kafka.sasl (password_file, token), the broker's connections.max.reauth.ms",
        unit="attempts",
    )
    kafka_partitions_unused = gauge(
        "gateway_kafka_partitions_unused",
        "Partitions the topic was given since the start; they get nothing until a restart, so that order is kept.",
        "none: restart the gateway when it suits",
        unit="partitions",
        labels=("topic",),
    )
    kafka_partition_silence = gauge(
        "gateway_kafka_partition_silence_seconds",
        "How long records have waited for a partition without any acknowledgement, in memory or in the spool; 0 while"
        " none wait. Exact to a second. A partition has a series from its first record on; of more than 2000"
        " those that are silent are shown.",
        "the broker that leads it: /status names it; kafka.request_timeout",
        unit="seconds",
        labels=("topic", "partition"),
    )
    kafka_broker_silence = gauge(
        "gateway_kafka_broker_silence_seconds",
        "How long a broker has acknowledged nothing while records wait for its partitions; 0 while none wait, and while"
        " it is not to blame: they wait for the copy on another broker that answers nobody, or it says itself why it"
        " does not take them (too few copies in sync, no rights).",
        "that broker: when it is frozen, restart it and nothing else",
        unit="seconds",
        labels=("broker",),
    )
    kafka_broker_up = gauge(
        "gateway_kafka_broker_up",
        "1 while a broker answers; 0 when it has owed an answer for five seconds. A broker that left the cluster in"
        " good order has no series after ten minutes.",
        "that broker, and the network between: gateway doctor",
        unit="brokers",
        labels=("broker",),
    )
    kafka_broker_mute = gauge(
        "gateway_kafka_broker_mute_seconds",
        "How long a broker has owed any answer at all. 0 while it answers, and for one that was shut down in good"
        " order: it had handed its partitions over before it went.",
        "that broker: it is frozen, has died, or is cut off; the others may lead its partitions by now",
        unit="seconds",
        labels=("broker",),
    )
    kafka_partitions_leaderless = gauge(
        "gateway_kafka_partitions_leaderless",
        "Partitions of the topic that nobody leads, by the latest metadata: what comes for them waits.",
        "the brokers with their replicas: gateway topics describe",
        unit="partitions",
        labels=("topic",),
    )
    kafka_topic_missing = gauge(
        "gateway_kafka_topic_missing",
        "1 for a topic that messages are routed to and that does not exist by the latest metadata, else 0. They wait.",
        "gateway topics plan, gateway topics apply; kafka.topics.create",
        unit="topics",
        labels=("topic",),
    )
    kafka_throttle_seconds = histogram(
        "gateway_kafka_throttle_seconds",
        "For how long brokers told the gateway to send them no batches, an observation for each answer that did so.",
        "the quota (producer_byte_rate, request_percentage) of the gateway's user or client id at Kafka",
        unit="seconds",
        bounds=(0.01, 0.1, 0.5, 1.0, 5.0, 30.0),
    )
    kafka_incarnations = counter(
        "gateway_kafka_producer_incarnations_total",
        "Producers started: 1 for the first, one more each time a batch's failure made the producer unusable.",
        "kafka.delivery_timeout, kafka.request_timeout",
        unit="producers",
    )
    dlq_records = counter(
        "gateway_dlq_records_total",
        "Dead letters that Kafka has acknowledged, by reason; each is in its route's dead-letter topic whole, with the"
        " reason. Alert on any increase: somebody's messages are not where their readers look.",
        "routes[].topic and routes[].key (missing_value), routes[].allowed_topics (invalid_topic), routes[].max_topics"
        " (topic_limit), kafka.max_record_bytes (too_large), the topic's own settings (invalid_record);"
        " `gateway dlq list` shows them",
        unit="records",
        labels=("reason",),
        fixed=tuple((reason.value,) for reason in DeadLetterReason),
    )
    route_stopped = gauge(
        "gateway_route_stopped",
        "1 while a route is stopped because too many of its messages had to become dead letters, else 0. Its messages"
        " are held, not acknowledged, and those of its sessions' other routes wait behind them. Alert on 1: it needs a"
        " person; /readyz and the log say why.",
        "what the last dead letters name; dead_letter.max_per_second, dead_letter.max_share, dead_letter.retry_after",
        unit="routes",
        labels=("route",),
    )
    route_held_messages = gauge(
        "gateway_route_held_messages",
        "Messages of a stopped route that wait in this worker; more wait in the MQTT broker, whose queue is short.",
        "as gateway_route_stopped; flow.memory_bytes bounds them",
        unit="messages",
        labels=("route",),
    )
    kafka_produce_seconds = histogram(
        "gateway_kafka_produce_seconds",
        "Time from handing a batch to the producer to Kafka's acknowledgement; each record counts once.",
        "kafka.batch_bytes, kafka.compression; the brokers' own request metrics",
        unit="seconds",
        bounds=LATENCIES,
    )
    end_to_end_seconds = histogram(
        "gateway_end_to_end_seconds",
        "Time from reading a message off the MQTT connection to Kafka's acknowledgement; each message counts once.",
        "flow.linger_max, flow.read_pacing_max",
        unit="seconds",
        labels=("route",),
        bounds=LATENCIES,
    )
    kafka_batch_records = histogram(
        "gateway_kafka_batch_records",
        "Records in each acknowledged batch.",
        "flow.linger_max when batches are small at a high rate",
        unit="records",
        bounds=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000),
    )
    kafka_batch_bytes = histogram(
        "gateway_kafka_batch_bytes",
        "Size of each acknowledged batch before compression.",
        "kafka.batch_bytes",
        unit="bytes",
        bounds=(256, 1024, 4096, 16_384, 65_536, 131_072, 262_144, 1_048_576),
    )
    buffer_bytes = gauge(
        "gateway_buffer_bytes",
        "Bytes of records waiting for Kafka's acknowledgement: in memory, and in the spool.",
        "flow.memory_bytes (memory), spool.max_bytes (disk)",
        unit="bytes",
        labels=("store",),
        fixed=_STORES,
    )
    buffer_records = gauge(
        "gateway_buffer_records",
        "Messages waiting for Kafka's acknowledgement: in memory alone, and in the spool.",
        "as gateway_buffer_bytes",
        unit="records",
        labels=("store",),
        fixed=_STORES,
    )
    buffer_limit_bytes = gauge(
        "gateway_buffer_limit_bytes",
        "Bytes of records at which reading from MQTT pauses (memory), or the spool is full (disk; 0 where it is off).",
        "flow.memory_bytes (memory), spool.max_bytes (disk)",
        unit="bytes",
        labels=("store",),
        fixed=_STORES,
    )
    last_ack_timestamp = gauge(
        "gateway_last_ack_timestamp_seconds",
        "When Kafka last acknowledged a batch of the topic, in Unix time; 0 before the first.",
        "kafka.bootstrap_servers when it stands still while gateway_mqtt_unacked is above 0",
        unit="seconds",
        labels=("topic",),
    )
    ledger_messages = counter(
        "gateway_ledger_messages_total",
        "The growing terms of the ledger; with the messages in flight they balance:"
        " received + recovered = delivered + filtered + dead_lettered + copies + in flight"
        " + returned + lost.",
        "none: this is the account, not a lever",
        unit="messages",
        labels=("term",),
        fixed=tuple((term,) for term in _LEDGER_TERMS),
    )
    ledger_in_flight = gauge(
        "gateway_ledger_in_flight",
        "Messages received and not settled, counted in the windows where they wait.",
        "mqtt.receive_maximum, flow.linger_max",
        unit="messages",
    )
    ledger_imbalance = gauge(
        "gateway_ledger_imbalance",
        "Messages the account cannot place: 0 always, above 0 some vanished, below 0 some were counted twice.",
        "none: anything but 0 is a defect; keep the log and report it",
        unit="messages",
    )
    ledger_waiting = gauge(
        "gateway_ledger_intervals_waiting",
        "Intervals of the account that are not on the ledger topic yet; beyond 60 the oldest are put together.",
        "ledger.topic: whether Kafka takes records there",
        unit="intervals",
    )
    event_loop_delay = histogram(
        "gateway_event_loop_delay_seconds",
        "How late the event loop ran a timer, observed twice a second; such a delay holds up keepalives and"
        " acknowledgements.",
        "mqtt.sessions, the number of workers, CPU limits",
        unit="seconds",
        bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    )
    cpu_starved = counter(
        "gateway_cpu_starved_seconds_total",
        "Time without a CPU although there was work: of this process as the kernel counts it (waited; 0 where it does"
        " not), of the container since its quota was used up (throttled), of anybody in its control group, or on the"
        " machine where that is not told (pressure: PSI, some).",
        "the container's CPU limit, workers, what else runs on the machine",
        unit="seconds",
        labels=("by",),
        fixed=(("waited",), ("throttled",), ("pressure",)),
    )
    spool_messages = gauge(
        "gateway_spool_messages",
        "Messages in the spool that Kafka does not have yet. With spool.acknowledge = fsync those of QoS 1 and 2 have"
        " been acknowledged to MQTT: they exist on this disk alone.",
        "why Kafka does not take them (gateway_kafka_send_failures_total); spool.replay_max_bytes_per_second",
        unit="messages",
    )
    spool_bytes = gauge("gateway_spool_bytes", "Bytes of batches in the spool.", "spool.max_bytes", unit="bytes")
    spool_limit_bytes = gauge(
        "gateway_spool_limit_bytes",
        "Bytes of batches the spool takes at most; 0 where it is off.",
        "spool.max_bytes",
        unit="bytes",
    )
    spool_oldest_age = gauge(
        "gateway_spool_oldest_age_seconds",
        "Age of the oldest batch in the spool; 0 without one.",
        "spool.replay_max_bytes_per_second",
        unit="seconds",
    )
    spool_segments = gauge(
        "gateway_spool_segments",
        "Files of the spool; each is given back whole, once all of it is delivered.",
        "as gateway_spool_bytes",
        unit="segments",
    )
    spool_failing = gauge(
        "gateway_spool_failing",
        "1 while the spool takes nothing, being full or its disk failing: MQTT clients are then held back; else 0.",
        "spool.max_bytes, data_dir (its disk)",
        unit="state",
    )
    spool_fsync_seconds = histogram(
        "gateway_spool_fsync_seconds",
        "Time the disk took to make a write of the spool durable.",
        "data_dir (its disk)",
        unit="seconds",
        bounds=LATENCIES,
    )
    sockets = gauge(
        "gateway_sockets",
        "TCP sockets of this process by state. close_wait that grows: a peer hung up, and its connection was not closed"
        " here.",
        "mqtt.sessions; the number of Kafka brokers; the log when close_wait stays above 0",
        unit="sockets",
        labels=("state",),
        fixed=tuple((state,) for state in SOCKET_STATES),
    )
    config_reload_success = RELOAD_SUCCESS
    config_last_reload = LAST_RELOAD
    emqx_watched = lookout_metrics.EMQX_WATCHED
    emqx_up = lookout_metrics.EMQX_UP
    emqx_look_failures = lookout_metrics.EMQX_LOOK_FAILURES
    emqx_dropped = lookout_metrics.EMQX_DROPPED
    emqx_dead_members = lookout_metrics.EMQX_DEAD_MEMBERS
    emqx_queue_length = lookout_metrics.EMQX_QUEUE_LENGTH
    emqx_queue_limit = lookout_metrics.EMQX_QUEUE_LIMIT
    emqx_inflight = lookout_metrics.EMQX_INFLIGHT
    emqx_inflight_limit = lookout_metrics.EMQX_INFLIGHT_LIMIT
    emqx_no_subscribers = lookout_metrics.EMQX_NO_SUBSCRIBERS
    canary_enabled = lookout_metrics.CANARY_ENABLED
    canary_success = lookout_metrics.CANARY_SUCCESS
    canary_sent = lookout_metrics.CANARY_SENT
    canary_received = lookout_metrics.CANARY_RECEIVED
    canary_lost = lookout_metrics.CANARY_LOST
    canary_late = lookout_metrics.CANARY_LATE
    canary_duplicates = lookout_metrics.CANARY_DUPLICATES
    canary_seconds = lookout_metrics.CANARY_SECONDS
    consumer_lag_records = lookout_metrics.CONSUMER_LAG_RECORDS
    consumer_lag_seconds = lookout_metrics.CONSUMER_LAG_SECONDS
    consumer_look_failures = lookout_metrics.CONSUMER_LOOK_FAILURES
    problems = gauge(
        "gateway_problems",
        "Problems that the status page lists of this worker now, by name and severity; no series while there is none.",
        "the runbook's entry of that name",
        unit="problems",
        labels=("problem", "severity"),
    )
    lifecycle_state = gauge(
        "gateway_lifecycle_state",
        "0 not running, 1 starting, 2 recovery, 3 running, 6 pending controlled shutdown, 7 shutting down.",
        "shutdown_timeout when it stays at 6",
        unit="state",
    )
    last_shutdown_unclean = gauge(
        "gateway_last_shutdown_unclean",
        "1 if this worker's last life ended without an orderly stop (a crash, kill -9, a power cut), else 0.",
        "shutdown_timeout, and the time that whatever runs the gateway gives it to stop",
        unit="lives",
    )
    build_info = gauge(
        "gateway_build_info",
        "Always 1; the labels say what runs.",
        "none",
        unit="info",
        labels=("version", "python"),
        fixed=((metadata.version("mqtt-kafka-gateway"), platform.python_version()),),
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(_label_values(settings))
        for row in Metrics.build_info.fixed:
            self.build_info.child(*row).value = 1
        self.buffer_limit_bytes.child("memory").value = settings.flow.memory_bytes
        self.config_reload_success.child().value = 1
        self.config_last_reload.child().value = time.time()
        for plan in group_plans(settings):
            for number in range(plan.settings.mqtt.sessions):
                window = self.mqtt_receive_window.child(plan.session_name(number))
                window.value = plan.settings.mqtt.receive_maximum

    def leave_reloads_to_supervisor(self) -> None:
        """Show no series of reloads: one that belongs to all workers is there already."""
        for definition in (RELOAD_SUCCESS, LAST_RELOAD):
            del self.families[definition.name]

    def reloaded(self, problem: str | None) -> None:
        """A reload of this process's own settings has ended."""
        self.config_reload_success.child().value = int(problem is None)
        if problem is None:
            self.config_last_reload.child().value = time.time()

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

    def collect(self) -> Iterable[Metric]:
        """Every family with its present values, then the process's own. Call it in the worker's loop."""
        from prometheus_client import ProcessCollector

        yield from super().collect()
        yield from ProcessCollector(registry=None).collect()


def _label_values(settings: Settings) -> dict[str, list[str]]:
    """What each label can be that settings decide."""
    topics = [route.topic for route in settings.routes if "${" not in route.topic]
    return {
        "session": session_names(settings),
        "route": [route.name for route in settings.routes],
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

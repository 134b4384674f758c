"""Metrics of what looks at the gateway from outside: EMQX's account of our sessions, the canary, and its readers."""

from typing import Final, Literal, get_args

from gateway.base.instruments import MetricSet, counter, gauge, histogram

Trouble = Literal[
    "unreachable",  # no such host, connection refused, no TLS, no answer in time
    "refused",  # the key is wrong, expired or disabled
    "forbidden",  # the key's role or scope does not allow this
    "not_emqx",  # another service answers
    "emqx_4",  # EMQX, but of a version with another API
    "answer",  # EMQX answers otherwise than its documentation says
]
Reason = Literal["queue_full", "expired", "too_large"]  # why EMQX drops a message
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
Leg = Literal[  # of the canary's way
    "publish",  # no connection, or it broke
    "acknowledge",  # published, and no PUBACK, or one that says that nobody is subscribed
    "kafka",  # acknowledged by MQTT, and not read back
    "read",  # Kafka could not be read: whether the message is there is not known
]
LEGS: Final[tuple[Leg, ...]] = get_args(Leg)
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class LookoutMetrics(MetricSet):
    """Metrics of a worker; ``gateway.base.metrics`` makes them part of its set."""

    # fmt: off
    emqx_watched = gauge("gateway_emqx_watched",
        "1 if EMQX is asked for its drops (emqx.url is set), else 0.",
        "emqx.url",
        unit="workers")
    emqx_up = gauge("gateway_emqx_up",
        "1 while EMQX's REST API answers, else 0: drops are not counted then.",
        "emqx.url, emqx.api_key, emqx.api_secret; the log has the reason",
        unit="workers")
    emqx_look_failures = counter("gateway_emqx_look_failures_total",
        "Failed queries of EMQX's REST API.",
        "emqx.url (unreachable, not_emqx), emqx.api_key and emqx.api_secret (refused), the key's role (forbidden)",
        unit="looks", labels=("trouble",), fixed=tuple((trouble,) for trouble in get_args(Trouble)))
    emqx_dropped = counter("gateway_emqx_dropped_total",
        "The session's messages that EMQX dropped after their devices were acknowledged: from a full queue, above"
        " mqtt.max_packet_bytes, or past their expiry. Alert on queue_full and too_large: these are lost.",
        "EMQX's max_mqueue_len and max_inflight, mqtt.receive_maximum, mqtt.sessions (queue_full);"
        " mqtt.max_packet_bytes (too_large)",
        unit="messages", labels=("session", "reason"), fixed=tuple((reason,) for reason in REASONS))
    emqx_dead_members = gauge("gateway_emqx_dead_members",
        "Members of shared subscriptions that died with a stopped EMQX node and still get messages. From worker 0.",
        "start the node, or remove it (emqx ctl cluster force-leave)",
        unit="members")
    emqx_queue_length = gauge("gateway_emqx_queue_length",
        "Messages in EMQX's queue for the session, counted up to emqx.interval ago.",
        "EMQX's max_inflight with mqtt.receive_maximum, mqtt.sessions; Kafka if it grows",
        unit="messages", labels=("session",))
    emqx_queue_limit = gauge("gateway_emqx_queue_limit",
        "Limit of EMQX's queue for the session; 0: no limit, or unknown.",
        "EMQX's max_mqueue_len",
        unit="messages", labels=("session",))
    emqx_inflight = gauge("gateway_emqx_inflight",
        "Messages that EMQX sent on the session without an acknowledgement yet.",
        "flow.linger_max; Kafka's health if it stays near gateway_emqx_inflight_limit",
        unit="messages", labels=("session",))
    emqx_inflight_limit = gauge("gateway_emqx_inflight_limit",
        "Messages that EMQX may send on the session without an acknowledgement; 0: unknown.",
        "mqtt.receive_maximum; EMQX's max_inflight, 32 by default",
        unit="messages", labels=("session",))
    emqx_no_subscribers = counter("gateway_emqx_no_subscribers_total",
        "Messages of the whole cluster that EMQX dropped for lack of a subscriber. From worker 0.",
        "routes[].filters, if devices publish to topics without a route",
        unit="messages")
    canary_enabled = gauge("gateway_canary_enabled",
        "1 if a canary runs: in worker 0 with canary.enabled. Else 0.",
        "canary.enabled",
        unit="workers")
    canary_success = gauge("gateway_canary_success",
        "1 if the last judged canary message returned from Kafka in time, else 0; 0 before the first.",
        "gateway_canary_lost_total has the leg, /status the reason",
        unit="messages")
    canary_sent = counter("gateway_canary_sent_total",
        "Canary messages, unpublished ones included.",
        "canary.interval",
        unit="messages")
    canary_received = counter("gateway_canary_received_total",
        "Canary messages read back from Kafka within canary.timeout.",
        "canary.timeout",
        unit="messages")
    canary_lost = counter("gateway_canary_lost_total",
        "Canary messages not read back within canary.timeout, by the leg where they stopped.",
        "mqtt.addresses, the rights on canary.topic (publish, acknowledge); Kafka, the canary's route (kafka); the"
        " right to read its topic (read)",
        unit="messages", labels=("leg",), fixed=tuple((leg,) for leg in LEGS))
    canary_late = counter("gateway_canary_late_total",
        "Canary messages read back after canary.timeout, counted as lost before.",
        "canary.timeout",
        unit="messages")
    canary_duplicates = counter("gateway_canary_duplicates_total",
        "Duplicates of canary messages in Kafka.",
        "none: readers remove them by the message id",
        unit="messages")
    canary_seconds = histogram("gateway_canary_seconds",
        "Time from publishing a canary message to reading it back from Kafka.",
        "flow.linger_max, kafka.request_timeout",
        unit="seconds", bounds=_SECONDS)
    consumer_lag_records = gauge("gateway_consumer_lag_records",
        "Records of the partition behind the group's committed offset. For the groups in admin.watch_groups, from"
        " worker 0.",
        "the consumer: gateway groups describe GROUP shows whether it stopped or is slow",
        unit="records", labels=("group", "topic", "partition"))
    consumer_lag_seconds = gauge("gateway_consumer_lag_seconds",
        "Age of the group's oldest unread record of the topic (unreadable: how long it is behind); else 0.",
        "admin.watch_lag; the consumer: gateway groups describe GROUP",
        unit="seconds", labels=("group", "topic"))
    consumer_look_failures = counter("gateway_consumer_look_failures_total",
        "Failed queries about the groups in admin.watch_groups.",
        "admin.security with its tables, the rights (Describe on groups and topics); the log has the reason",
        unit="looks")
    # fmt: on

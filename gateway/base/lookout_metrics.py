"""Metrics of what looks at the gateway from outside: EMQX's account of our sessions, the canary, and its readers.

``gateway.base.metrics`` makes them a worker's.
"""

from __future__ import annotations

from typing import Final

from gateway.base.instruments import counter, gauge, histogram

EMQX_TROUBLES: Final = (
    "unreachable",
    "refused",  # the key is wrong, expired or switched off
    "forbidden",  # the key may not read this
    "not_emqx",
    "emqx_4",
    "answer",  # EMQX answers, and not as expected
)
CANARY_LEGS: Final = (
    "publish",  # no connection, or it broke
    "acknowledge",  # published, and no PUBACK, or one that says that nobody is subscribed
    "kafka",  # acknowledged by MQTT, and not read back
    "read",  # Kafka could not be read: whether the message is there is not known
)
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

EMQX_WATCHED: Final = gauge(
    "gateway_emqx_watched",
    "1 where EMQX is asked what it dropped before the gateway got it (emqx.url is set), else 0.",
    "emqx.url",
    unit="workers",
)
EMQX_UP: Final = gauge(
    "gateway_emqx_up",
    "1 while EMQX's REST API answers, else 0: what EMQX drops is not seen then.",
    "emqx.url, emqx.api_key, emqx.api_secret; the log says why",
    unit="workers",
)
EMQX_LOOK_FAILURES: Final = counter(
    "gateway_emqx_look_failures_total",
    "Times that EMQX's REST API did not say what was asked.",
    "emqx.url (unreachable, not_emqx), emqx.api_key and emqx.api_secret (refused), the key's role (forbidden)",
    unit="looks",
    labels=("trouble",),
    fixed=tuple((trouble,) for trouble in EMQX_TROUBLES),
)
EMQX_DROPPED: Final = counter(
    "gateway_emqx_dropped_total",
    "Messages for the session that EMQX dropped before the gateway got them, although their devices have had an"
    " acknowledgement: from a full queue, because they were larger than mqtt.max_packet_bytes, or because their own"
    " expiry had passed. Alert on any increase of the first two: they are lost.",
    "EMQX's max_mqueue_len and max_inflight with mqtt.receive_maximum, mqtt.sessions (queue_full);"
    " mqtt.max_packet_bytes (too_large); what devices set (expired)",
    unit="messages",
    labels=("session", "reason"),
    fixed=(("queue_full",), ("expired",), ("too_large",)),
)
EMQX_DEAD_MEMBERS: Final = gauge(
    "gateway_emqx_dead_members",
    "Members of shared subscriptions, of all groups, that died with a stopped node of EMQX's cluster and still get"
    " their share of new messages, which are lost with PUBACK 0. Only worker 0 counts them; not judged while"
    " gateway_emqx_up is 0.",
    "start the node, or take it out of the cluster (emqx ctl cluster force-leave)",
    unit="members",
)
EMQX_QUEUE_LENGTH: Final = gauge(
    "gateway_emqx_queue_length",
    "Messages that wait for the session in EMQX's memory, behind those it has sent; as EMQX last counted, up to"
    " 15 s ago.",
    "EMQX's max_inflight with mqtt.receive_maximum, mqtt.sessions; Kafka when it grows",
    unit="messages",
    labels=("session",),
)
EMQX_QUEUE_LIMIT: Final = gauge(
    "gateway_emqx_queue_limit",
    "Messages that EMQX's queue of the session holds at most; 0: no limit, or not known.",
    "EMQX's max_mqueue_len",
    unit="messages",
    labels=("session",),
)
EMQX_INFLIGHT: Final = gauge(
    "gateway_emqx_inflight",
    "Messages that EMQX has sent on the session and has no acknowledgement of.",
    "flow.linger_max; Kafka's health when it stays near gateway_emqx_inflight_limit",
    unit="messages",
    labels=("session",),
)
EMQX_INFLIGHT_LIMIT: Final = gauge(
    "gateway_emqx_inflight_limit",
    "Messages that EMQX sends on the session without an acknowledgement; 0: not known.",
    "mqtt.receive_maximum; EMQX's max_inflight, 32 by default",
    unit="messages",
    labels=("session",),
)
EMQX_NO_SUBSCRIBERS: Final = counter(
    "gateway_emqx_no_subscribers_total",
    "Messages that EMQX dropped because nobody had subscribed to their topic: those of the whole cluster, whosever"
    " they are, but for the gateway's own status messages (MQTT 5; not its will). Only worker 0 counts them.",
    "routes[].filters, when devices publish to topics that no route takes",
    unit="messages",
)
CANARY_ENABLED: Final = gauge(
    "gateway_canary_enabled",
    "1 where a canary runs: in worker 0 with canary.enabled, else 0.",
    "canary.enabled",
    unit="workers",
)
CANARY_SUCCESS: Final = gauge(
    "gateway_canary_success",
    "1 when the canary's last message that was judged came back from Kafka in time, else 0; 0 before the first.",
    "gateway_canary_lost_total says at which leg; /status says why",
    unit="messages",
)
CANARY_SENT: Final = counter(
    "gateway_canary_sent_total",
    "Messages of the canary, those that could not be published among them. All are received, lost, or on the way.",
    "canary.interval",
    unit="messages",
)
CANARY_RECEIVED: Final = counter(
    "gateway_canary_received_total",
    "Messages of the canary that were read back from Kafka within canary.timeout.",
    "canary.timeout",
    unit="messages",
)
CANARY_LOST: Final = counter(
    "gateway_canary_lost_total",
    "Messages of the canary that were not read back within canary.timeout, by the leg at which they stayed.",
    "mqtt.addresses and the rights of mqtt.username on canary.topic (publish, acknowledge), Kafka's health and the"
    " canary's route (kafka), the right to read its topic (read)",
    unit="messages",
    labels=("leg",),
    fixed=tuple((leg,) for leg in CANARY_LEGS),
)
CANARY_LATE: Final = counter(
    "gateway_canary_late_total",
    "Messages of the canary that were read back after canary.timeout: delivered, and counted as lost before.",
    "canary.timeout",
    unit="messages",
)
CANARY_DUPLICATES: Final = counter(
    "gateway_canary_duplicates_total",
    "Copies of the canary's messages in Kafka beyond the first: what at-least-once means at restarts.",
    "none: readers remove them by the message id",
    unit="messages",
)
CANARY_SECONDS: Final = histogram(
    "gateway_canary_seconds",
    "Time from publishing a message of the canary to reading it back from Kafka.",
    "flow.linger_max, kafka.request_timeout",
    unit="seconds",
    bounds=_SECONDS,
)
CONSUMER_LAG_RECORDS: Final = gauge(
    "gateway_consumer_lag_records",
    "Records of the partition that the consumer group has not finished: the log's end minus what it has committed. Of"
    " the groups in admin.watch_groups alone, from worker 0.",
    "the consumer: gateway groups describe GROUP says whether it stopped or is slow",
    unit="records",
    labels=("group", "topic", "partition"),
)
CONSUMER_LAG_SECONDS: Final = gauge(
    "gateway_consumer_lag_seconds",
    "Age of the oldest record of the topic that the consumer group has not finished; 0 when it has caught up. Without"
    " the right to read the topic: for how long it has been behind.",
    "admin.watch_lag; the consumer: gateway groups describe GROUP",
    unit="seconds",
    labels=("group", "topic"),
)
CONSUMER_LOOK_FAILURES: Final = counter(
    "gateway_consumer_look_failures_total",
    "Times that Kafka did not say where the groups of admin.watch_groups are.",
    "admin.security with its tables, the rights (Describe on groups and topics); the log says why",
    unit="looks",
)

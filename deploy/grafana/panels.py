"""What the dashboard shows: rows of panels, each with its queries. ``dashboard.py`` makes Grafana's JSON of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

G: Final = 'instance=~"$instance", worker=~"$worker"'
A: Final = 'instance=~"$auth"'
R: Final = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """PromQL, and how its series are called."""

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True)
class Panel:
    """One picture. ``steps`` are (from, colour) beyond green; ``empty`` says where a healthy gateway has no data."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    help: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    stack: bool = False
    steps: tuple[tuple[float, str], ...] = ()
    least: float | None = 0
    most: float | None = None
    empty: str = ""


@dataclass(frozen=True)
class Row:
    """Panels under a heading; ``closed`` ones are opened by a click."""

    title: str
    panels: tuple[Panel, ...]
    closed: bool = False


def q(expr: str, legend: str = "__auto") -> Query:
    """A query; G, A and R stand for the chosen gateways, services and the interval of rates."""
    return Query(expr.replace("<G>", G).replace("<A>", A).replace("<R>", R), legend)


def rate(metric: str, by: str, legend: str, more: str = "") -> Query:
    """What a counter grows by a second, for each value of a label."""
    return q(f"sum by ({by}) (rate({metric}{{<G>{more}}}<R>))", legend)


def quantiles(metric: str, by: str = "", legend: str = "", of: str = "<G>") -> tuple[Query, ...]:
    """The median and the 99th percentile of a histogram."""
    labels = f"{by}, le" if by else "le"
    named = f"{legend} " if legend else ""
    return tuple(
        q(f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{of}}}<R>)))", f"{named}{name}")
        for share, name in ((0.5, "p50"), (0.99, "p99"))
    )


def stat(title: str, expr: str, unit: str, steps: tuple[tuple[float, str], ...], help_: str, **more: Any) -> Panel:
    """One number, coloured."""
    return Panel(title, (q(expr, title),), unit, help_, "stat", 3, 4, steps=steps, **more)


RED: Final = ((0.000_001, "red"),)
NO_TRAFFIC: Final = "nothing has been read or delivered in the interval"
NO_EMQX: Final = "EMQX is not scraped here"
NO_EXPORTER: Final = "kafka_exporter does not run here"

LOST: Final = Row(
    "Is anything lost or late?",
    (
        stat("Not accounted for", "sum(abs(gateway_ledger_imbalance{<G>}))", "short", RED,
             "Messages the account cannot place. Anything but 0 is a defect of the gateway."),
        stat("Lost with a spool", 'sum(gateway_ledger_messages_total{<G>, term="lost"})', "short", RED,
             "Messages that a damaged spool disk destroyed, since the start."),
        stat("Dropped before us", 'sum(increase(gateway_emqx_dropped_total{<G>, reason!="expired"}[1h]))', "short",
             RED,
             "Messages for the gateway's sessions that EMQX dropped within the hour. 0 also where nobody looks"
             " (emqx.url)."),
        stat("Dead letters", "sum(increase(gateway_dlq_records_total{<G>}[1h]))", "short", ((0.5, "orange"),),
             "Within the hour. They are whole, in the dead-letter topic."),
        stat("Oldest unacknowledged", "max(gateway_oldest_unacked_age_seconds{<G>})", "s",
             ((5, "orange"), (30, "red")),
             "Age of the oldest message that neither Kafka nor the spool has."),
        stat("Silent partitions", "sum(max by (topic, partition) (gateway_kafka_partition_silence_seconds{<G>})"
             " > bool 10)", "short", RED,
             "Partitions that have acknowledged nothing for 10 s while records wait."),
        stat("Sessions not connected", "sum(gateway_mqtt_connected{<G>} == bool 0)", "short", RED,
             "What is published for them waits in EMQX, which drops when its queue is full."),
        stat("Late in the last hour", "max(job:gateway_end_to_end_late:ratio_rate1h)", "percentunit",
             ((0.001, "orange"), (0.0144, "red")),
             "Share of messages that took more than 2.5 s to Kafka. The budget is 0.1 %.", empty=NO_TRAFFIC),
        Panel("Alerts", (q('ALERTS{alertstate="firing", alertname!="GatewayWatchdog"}'),), kind="table", width=24,
              height=6, help="What fires now; docs/runbook.md has an entry for each.", empty="nothing fires"),
    ),
)  # fmt: skip

FLOW: Final = Row(
    "Flow",
    (
        Panel("Received", (rate("gateway_mqtt_messages_received_total", "route", "{{route}}"),), "cps", stack=True,
              help="MQTT messages taken in, by route; a redelivered message counts again."),
        Panel("What became of them",
              (rate("gateway_messages_delivered_total", "route", "{{route}} delivered"),
               rate("gateway_messages_filtered_total", "route, reason", "{{route}} filtered: {{reason}}"),
               rate("gateway_messages_dead_lettered_total", "route", "{{route}} dead letter")), "cps"),
        Panel("In flight", (q("sum(gateway_ledger_in_flight{<G>})", "in flight"),
                            rate("gateway_mqtt_redelivered_total", "job", "redelivered/s")),
              help="Received and not settled; and what EMQX had sent before."),
        Panel("From MQTT to Kafka", quantiles("gateway_end_to_end_seconds", "route", "{{route}}"), "s",
              empty=NO_TRAFFIC),
        Panel("From MQTT to Kafka, all of them",
              (q("sum by (le) (increase(gateway_end_to_end_seconds_bucket{<G>}<R>))", "{{le}}"),), "s", kind="heatmap"),
        Panel("Bytes", (rate("gateway_mqtt_received_bytes_total", "job", "from MQTT"),
                        rate("gateway_kafka_sent_bytes_total", "job", "to Kafka, before compression")), "Bps"),
    ),
)  # fmt: skip

KAFKA: Final = Row(
    "Kafka, by broker and partition",
    (
        Panel("Brokers that answer", (q("min by (broker) (gateway_kafka_broker_up{<G>})", "broker {{broker}}"),),
              kind="state-timeline", most=1, help="1 while it answers."),
        Panel("Silence of brokers",
              (q("max by (broker) (gateway_kafka_broker_silence_seconds{<G>})", "broker {{broker}}"),
               q("max by (broker) (gateway_kafka_broker_mute_seconds{<G>})", "{{broker}}, any answer")),
              "s", steps=((5, "orange"), (20, "red")),
              help="How long it has acknowledged nothing while records wait, and how long it has owed any answer."),
        Panel("Silence of partitions",
              (q("topk(20, max by (topic, partition) (gateway_kafka_partition_silence_seconds{<G>}))",
                 "{{topic}}/{{partition}}"),), "s", steps=((5, "orange"), (20, "red")),
              help="The twenty that have been silent longest, while records wait."),
        Panel("Partitions without leader, or unused",
              (q("max by (topic) (gateway_kafka_partitions_leaderless{<G>})", "{{topic}} leaderless"),
               q("max by (topic) (gateway_kafka_partitions_unused{<G>})", "{{topic}} unused"))),
        Panel("Time to Kafka's acknowledgement", quantiles("gateway_kafka_produce_seconds"), "s", empty=NO_TRAFFIC),
        Panel("Since the last acknowledgement",
              (q("min by (topic) (time() - (gateway_last_ack_timestamp_seconds{<G>} > 0))", "{{topic}}"),), "s"),
        Panel("Batches that failed",
              (rate("gateway_kafka_send_failures_total", "reason", "{{reason}}"),
               rate("gateway_kafka_retries_total", "job", "sent again")), "cps"),
        Panel("Records in a batch", quantiles("gateway_kafka_batch_records"), empty=NO_TRAFFIC),
        Panel("Bytes in a batch", quantiles("gateway_kafka_batch_bytes"), "bytes", empty=NO_TRAFFIC,
              help="Before compression."),
        Panel("Producers started",
              (q("sum by (worker) (increase(gateway_kafka_producer_incarnations_total{<G>}[1h]))",
                 "worker {{worker}}"),),
              help="Within the hour. Each but the first replaced one that a failure had made useless."),
        Panel("Told to slow down", (rate("gateway_kafka_throttle_seconds_sum", "worker", "worker {{worker}}"),), "s",
              help="Seconds of delay a second that the brokers' quotas ask for."),
        Panel("Logins that failed", (rate("gateway_kafka_renewal_failures_total", "job", "to Kafka, anew"),
                                     rate("gateway_token_failures_total", "side", "token for {{side}}")), "cps"),
    ),
)  # fmt: skip

MQTT: Final = Row(
    "MQTT sessions",
    (
        Panel("Connected", (q("sum by (worker) (gateway_mqtt_connected{<G>})", "worker {{worker}}"),), stack=True),
        Panel("Windows in use",
              (q("max by (worker) (gateway_mqtt_unacked{<G>} / (gateway_mqtt_receive_window{<G>} > 0))",
                 "worker {{worker}}"),), "percentunit", most=1, steps=((0.7, "orange"), (0.9, "red")),
              help="Of each worker the fullest."),
        Panel("Unacknowledged, and the window", (q("sum(gateway_mqtt_unacked{<G>})", "unacknowledged"),
                                                 q("sum(gateway_mqtt_receive_window{<G>})", "window"))),
        Panel("Connections that ended", (rate("gateway_mqtt_disconnects_total", "reason", "{{reason}}"),), "cps"),
        Panel("Connections that failed", (rate("gateway_mqtt_connect_failures_total", "reason", "{{reason}}"),), "cps"),
        Panel("Sessions of earlier settings", (q("sum(gateway_mqtt_orphan_sessions{<G>})", "orphans"),),
              help="Still to be drained and ended."),
    ),
)  # fmt: skip

KEPT: Final = Row(
    "Spool and dead letters",
    (
        Panel("Spool", (q("sum by (worker) (gateway_spool_bytes{<G>})", "worker {{worker}}"),
                        q("max(gateway_spool_limit_bytes{<G>})", "limit of a worker")), "bytes"),
        Panel("Oldest in the spool",
              (q("max by (worker) (gateway_spool_oldest_age_seconds{<G>})", "worker {{worker}}"),),
              "s", steps=((300, "orange"), (900, "red"))),
        Panel("Messages in the spool", (q("sum by (worker) (gateway_spool_messages{<G>})", "worker {{worker}}"),
                                        q("sum(gateway_spool_failing{<G>})", "spools that take nothing"))),
        Panel("Memory for records",
              (q('sum by (worker) (gateway_buffer_bytes{<G>, store="memory"})', "worker {{worker}}"),
               q('max(gateway_buffer_limit_bytes{<G>, store="memory"})', "limit of a worker")), "bytes"),
        Panel("Dead letters", (rate("gateway_dlq_records_total", "reason", "{{reason}}"),), "cps"),
        Panel("Stopped routes", (q("max by (route) (gateway_route_stopped{<G>})", "{{route}}"),
                                 q("sum by (route) (gateway_route_held_messages{<G>})", "{{route}}: messages held")),
              steps=((1, "red"),)),
        Panel("Interceptors", (rate("gateway_intercept_total", "interceptor, outcome", "{{interceptor}} {{outcome}}"),),
              "cps", empty="the routes have no interceptors"),
        Panel("Time in interceptors", quantiles("gateway_intercept_seconds", "interceptor", "{{interceptor}}"), "s",
              empty="the routes have no interceptors"),
        Panel("Account not yet in Kafka",
              (q("max by (worker) (gateway_ledger_intervals_waiting{<G>})", "worker {{worker}}"),)),
    ),
)  # fmt: skip

BEFORE: Final = Row(
    "Canary and EMQX",
    (
        Panel("Canary", (q("max by (instance) (gateway_canary_success{<G>} and gateway_canary_enabled{<G>} == 1)",
                           "{{instance}}"),), kind="state-timeline", most=1, empty="canary.enabled is false",
              help="1 while its messages come back from Kafka."),
        Panel("Canary: the whole way", quantiles("gateway_canary_seconds"), "s", empty="canary.enabled is false"),
        Panel("Canary: lost, by the leg where", (rate("gateway_canary_lost_total", "leg", "{{leg}}"),
                                                 rate("gateway_canary_sent_total", "job", "sent")), "cps"),
        Panel("EMQX's queues for our sessions",
              (q("sum by (worker) (gateway_emqx_queue_length{<G>})", "worker {{worker}}"),
               q("min(gateway_emqx_queue_limit{<G>})", "limit of a session, 0: none or not known")),
              help="When one is full, EMQX drops the oldest message for each new one. emqx.url must be set."),
        Panel("EMQX dropped, of ours", (rate("gateway_emqx_dropped_total", "reason", "{{reason}}"),), "cps",
              steps=((0.001, "red"),)),
        Panel("EMQX holds unacknowledged",
              (q("sum by (worker) (gateway_emqx_inflight{<G>})", "worker {{worker}}"),)),
        Panel("EMQX: messages", (q("sum(rate(emqx_messages_received<R>))", "received"),
                                 q("sum(rate(emqx_messages_sent<R>))", "sent"),
                                 q("sum(rate(emqx_messages_dropped_no_subscribers<R>))", "nobody subscribed"),
                                 q("sum(rate(emqx_delivery_dropped_queue_full<R>))", "a queue was full")), "cps",
              empty=NO_EMQX),
        Panel("EMQX: connections", (q("sum by (instance) (emqx_live_connections_count)", "{{instance}}"),), stack=True,
              empty=NO_EMQX),
        Panel("EMQX: access decisions", (q("sum(rate(emqx_authorization_allow<R>))", "allow"),
                                         q("sum(rate(emqx_authorization_deny<R>))", "deny"),
                                         q("sum(rate(emqx_authorization_nomatch<R>))", "decided by nobody")), "cps",
              empty=NO_EMQX),
    ),
    closed=True,
)  # fmt: skip

NO_COMMANDS: Final = "the settings have no commands"

COMMANDS: Final = Row(
    "Commands to devices",
    (
        Panel("Commands by outcome", (rate("gateway_commands_finished_total", "outcome", "{{outcome}}"),), "cps",
              stack=True, empty=NO_COMMANDS),
        Panel("Commands held",
              (q("sum by (commands) (gateway_commands_waiting{<G>})", "{{commands}} waiting"),
               q("sum by (commands) (gateway_commands_under_way{<G>})", "{{commands}} under way")), empty=NO_COMMANDS),
        Panel("Time to a command's last status", quantiles("gateway_command_seconds", "commands", "{{commands}}"), "s",
              empty="no command has been finished in the interval"),
        Panel("Oldest unfinished command",
              (q("max by (commands) (gateway_commands_oldest_seconds{<G>})", "{{commands}}"),), "s",
              steps=((3600, "orange"),), empty=NO_COMMANDS),
        Panel("Commands sent again, and answers without one",
              (rate("gateway_commands_sent_again_total", "commands", "{{commands}} sent again"),
               rate("gateway_commands_unmatched_total", "reason", "{{reason}}")), "cps", empty=NO_COMMANDS),
        Panel("Commands' partitions that are not read, and commands deleted unread",
              (q("sum by (commands) (gateway_commands_paused_partitions{<G>})", "{{commands}} not read"),
               q("sum by (commands) (gateway_commands_deleted_unread_total{<G>})", "{{commands}} deleted")),
              steps=((1, "red"),), empty=NO_COMMANDS),
    ),
    closed=True,
)  # fmt: skip

PROCESS: Final = Row(
    "Process",
    (
        Panel("CPU", (q("sum by (instance, worker) (rate(process_cpu_seconds_total{<G>}<R>)"
                        " and on (instance) gateway_lifecycle_state{<G>})", "{{instance}} {{worker}}"),),
              "percentunit"),
        Panel("Resident memory", (q("process_resident_memory_bytes{<G>} and on (instance) gateway_lifecycle_state{<G>}",
                                    "{{instance}} {{worker}}"),), "bytes"),
        Panel("Event loop late by (p99)",
              (q("histogram_quantile(0.99, sum by (instance, worker, le)"
                 " (rate(gateway_event_loop_delay_seconds_bucket{<G>}<R>)))", "{{instance}} {{worker}}"),), "s",
              steps=((0.1, "orange"), (0.25, "red")), help="Observed twice a second."),
        Panel("File descriptors", (q("process_open_fds{<G>} and on (instance) gateway_lifecycle_state{<G>}",
                                     "{{instance}} {{worker}}"),)),
        Panel("Sockets", (q("sum by (state) (gateway_sockets{<G>})", "{{state}}"),), stack=True,
              help="close_wait that grows: the other side hung up, and nobody here has closed."),
        Panel("Life", (q("gateway_lifecycle_state{<G>}", "{{instance}} {{worker}}"),), kind="state-timeline",
              help="1 starting, 2 recovery, 3 running, 6 and 7 stopping."),
        Panel("Settings", (q('gateway_config_reload_success{instance=~"$instance"}', "{{instance}}: last reload"),
                           q('gateway_worker_up{instance=~"$instance"}', "{{instance}}: worker {{worker}} is up"),
                           q('gateway_worker_restarts_total{instance=~"$instance"}',
                             "{{instance}}: worker {{worker}} ended"))),
        Panel("Credentials expire in", (q("min by (credential) ((gateway_credential_expiry_timestamp_seconds{<G>} > 0)"
                                          " - time())", "{{credential}}"),), "s", least=None,
              empty="no certificate or token is shown here"),
        Panel("Versions",
              (q("count by (version, python, build) (gateway_build_info{<G>})",
                 "{{version}} {{build}} on Python {{python}}"),)),
    ),
    closed=True,
)  # fmt: skip

ACCESS: Final = Row(
    "Access service",
    (
        Panel("EMQX's questions", (q("sum by (endpoint, result) (rate(gateway_auth_requests_total{<A>}<R>))",
                                     "{{endpoint}} {{result}}"),), "cps", stack=True),
        Panel("Time to answer", quantiles("gateway_auth_request_seconds", "endpoint", "{{endpoint}}", of="<A>"), "s",
              steps=((1, "orange"), (5, "red")), empty="nobody has asked in the interval",
              help="EMQX gives up after 5 s."),
        Panel("Logins by reason",
              (q("sum by (reason) (rate(gateway_auth_logins_total{<A>}<R>)) > 0", "{{reason}}"),), "cps",
              empty="nobody has logged in in the interval"),
        Panel("Backends that answer", (q("min by (backend) (gateway_auth_backend_up{<A>})", "{{backend}}"),),
              kind="state-timeline", most=1),
        Panel("Remembered answers",
              (q("sum(rate(gateway_auth_cache_hits_total{<A>}<R>)) / (sum(rate(gateway_auth_cache_hits_total{<A>}<R>))"
                 " + sum(rate(gateway_auth_cache_misses_total{<A>}<R>)) > 0)", "share"),), "percentunit", most=1,
              empty="nobody has asked in the interval"),
        Panel("Locked out", (q("sum(gateway_auth_locked{<A>})", "now"),
                             q("sum by (kind) (rate(gateway_auth_lockouts_total{<A>}<R>))", "{{kind}}, a second"))),
        Panel("Hashes that wait", (q("sum(gateway_auth_hashing_queue{<A>})", "hashes"),
                                   q("sum(gateway_auth_logins_waiting{<A>})", "logins"))),
        Panel("Refused or closed",
              (q("sum by (reason) (rate(gateway_auth_requests_refused_total{<A>}<R>))", "{{reason}}"),
               q("sum by (reason) (rate(gateway_auth_connections_refused_total{<A>}<R>))",
                                      "connection: {{reason}}")), "cps"),
        Panel("Late, or down", (q("sum(rate(gateway_auth_answers_late_total{<A>}<R>))", "late"),
                                q("sum(rate(gateway_auth_database_reads_failed_total{<A>}<R>))", "database"),
                                q("sum by (backend) (rate(gateway_auth_backend_failures_total{<A>}<R>))",
                                  "{{backend}}")),
              "cps"),
    ),
    closed=True,
)  # fmt: skip

READERS: Final = Row(
    "Readers of the topics",
    (
        Panel("Behind by",
              (q("max by (group, topic) (gateway_consumer_lag_seconds{<G>})", "{{group}} {{topic}}"),), "s",
              empty="admin.watch_groups names no group"),
        Panel("Records behind", (q("sum by (consumergroup, topic) (kafka_consumergroup_lag)",
                                   "{{consumergroup}} {{topic}}"),),
              empty=NO_EXPORTER, help="From kafka_exporter; gateway groups describe shows it too."),
        Panel("Copies missing", (q("sum by (topic) (kafka_topic_partition_under_replicated_partition)", "{{topic}}"),),
              empty=NO_EXPORTER),
    ),
    closed=True,
)  # fmt: skip

NO_STREAM: Final = "no Spark job is scraped here (stream.metrics.port)"


def spark(title: str, metric: str, by: str, legend: str, unit: str = "short", help_: str = "", **more: Any) -> Panel:
    """A gauge of the Spark jobs, by one of its labels beside the query."""
    return Panel(title, (q(f"max by ({by}) ({metric})", legend),), unit, help_, empty=NO_STREAM, **more)


STREAM: Final = Row(
    "Spark jobs",
    (
        spark("Queries that run", "gateway_stream_up", "query", "{{query}}", kind="state-timeline", most=1),
        Panel("Rows", (q("sum by (query) (rate(gateway_stream_rows_total<R>))", "{{query}}"),
                       q("sum by (query) (rate(gateway_stream_rows_quarantined_total<R>))", "{{query}} quarantined"),
                       q("sum by (query) (rate(gateway_stream_rows_late_total<R>))", "{{query}} late")),
              "cps", empty=NO_STREAM),
        spark("Records left over", "gateway_stream_offsets_behind", "query, topic", "{{query}} {{topic}}",
              help_="The partition that is behind most, as of each batch."),
        Panel("Time in each phase",
              (q('sum by (query, phase) (rate(gateway_stream_phase_seconds_total{phase!="triggerExecution"}<R>))',
                 "{{query}} {{phase}}"),), "percentunit", "Share of the time that a query spends in it.", stack=True,
              empty=NO_STREAM),
        Panel("Age of the last batch", (q("max by (query) (gateway_stream_batch_age_seconds)", "{{query}}"),
                                        q("max by (query) (gateway_stream_silence_seconds)", "{{query}} silent for")),
              "s", steps=((300, "orange"), (900, "red")), empty=NO_STREAM,
              help="Silent: neither a batch nor word that there is nothing to do."),
        spark("Watermark behind by", "gateway_stream_watermark_delay_seconds", "query", "{{query}}", "s"),
        spark("Size of the state", "gateway_stream_state_bytes", "query, store", "{{query}} {{store}}", "bytes"),
        spark("Keys in the state", "gateway_stream_state_rows", "query", "{{query}}"),
        Panel("Lost, or not committed",
              (q("sum by (query, topic) (gateway_stream_data_loss_offsets_total)", "{{query}} {{topic}} lost"),
               q("sum by (query) (gateway_stream_group_commit_failures_total)", "{{query}} group not committed")),
              empty=NO_STREAM),
    ),
    closed=True,
)  # fmt: skip

ROWS: Final = (LOST, FLOW, KAFKA, MQTT, KEPT, BEFORE, COMMANDS, PROCESS, ACCESS, READERS, STREAM)

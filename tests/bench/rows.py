"""The rows of the benchmark: every workload with its settings, its size and its targets."""

from dataclasses import replace
from functools import partial
from typing import Final, Literal

from tests.bench.measurement import Measurement, Row, Target
from tests.bench.payloads import PROPERTIES
from tests.bench.publisher import Pace
from tests.bench.replay import ReplayPlan
from tests.bench.site import Site
from tests.bench.subject import Baseline, CommandBridge, CommandGateway, Gateway, Launcher, Telegraf
from tests.bench.workload_auth import auth_authorise, auth_cached, auth_cold, auth_echo, auth_large, auth_mixed
from tests.bench.workload_broker import drained, idle, live, live_with_latency, started
from tests.bench.workload_commands import commands_live, commands_saturated, commands_waiting
from tests.bench.workload_devices import spark_fleet
from tests.bench.workload_growth import devices_churn, partitions_1000, routes_500, sessions_64, topics
from tests.bench.workload_nab import anomalies_nab, nab_gaussian, nab_rolling
from tests.bench.workload_replay import replayed
from tests.bench.workload_spark import spark_first_batch, spark_job, spark_silver, spark_steady
from tests.bench.workload_spool import spool_write

RSS_LIMIT_MIB: Final = 90.0
_ROUND: Final = 50_000  # packets made once; a stream repeats them
_COLD_TOPICS: Final = 200_000
_DRAINED: Final = 100_000  # in quick calls too: it is over in a second
_BASELINE_DRAINED: Final = 50_000
_COMMANDS: Final = 100_000
_COMMANDED: Final = 10_000  # devices with a backlog

# One stream over one session: the row is about the data path, not about how many sessions share it. MQTT 3.1.1 has no
# receive maximum, so the window is the replay's: a round of packet ids. With MQTT 5 it is the largest that fits the
# gateway's default memory; at the default of 1000 the row would measure Kafka's round trip.
_PLAIN: Final = Gateway(mqtt={"protocol": "3.1.1", "sessions": 1}, kafka={"compression": "none"})
_MQTT5: Final = Gateway(mqtt={"sessions": 1, "receive_maximum": 32_768})


def _saturated(site: Site, *, qos: Literal[0, 1], metrics: bool = True) -> Measurement:
    plan = ReplayPlan(_ROUND, site.scaled(1_000_000) // _ROUND, qos, window=_ROUND)
    return replayed(site, replace(_PLAIN, route={"metadata_headers": [], "qos": qos}, metrics=metrics), plan)


def _workers(site: Site, *, count: int) -> Measurement:
    """As saturated-qos1, with a session in each of several workers under a supervisor, whose CPU counts as well."""
    # Half a million messages for each, so that routing a topic for the first time weighs no more than in one worker.
    plan = ReplayPlan(_ROUND, count * site.scaled(500_000) // _ROUND, 1, window=_ROUND, sessions=count)
    return replayed(site, replace(_PLAIN, route={"metadata_headers": [], "qos": 1}, workers=count), plan)


def _intercepted(site: Site) -> Measurement:
    """As saturated-qos1, with every record's JSON looked at; all pass, so that all can be counted."""
    plan = ReplayPlan(_ROUND, site.scaled(1_000_000) // _ROUND, 1, window=_ROUND)
    chain = [{"use": "filter", "expression": "json.temperature > 0 and json.rssi < 0"}]
    return replayed(site, replace(_PLAIN, route={"metadata_headers": [], "qos": 1, "interceptors": chain}), plan)


def _saturated_mqtt5(site: Site) -> Measurement:
    plan = ReplayPlan(_ROUND, site.scaled(1_000_000) // _ROUND, 1, properties=PROPERTIES, window=_ROUND)
    return replayed(site, _MQTT5, plan)


def _cold_topics(site: Site) -> Measurement:
    topics = _COLD_TOPICS // 2 if site.quick else _COLD_TOPICS  # in both cases more than the gateway's cache of routes
    return replayed(site, _MQTT5, ReplayPlan(topics, 2, 1, period=_ROUND, topics=topics, properties=b"", window=_ROUND))


def _latency_2k(site: Site, launcher: Launcher) -> Measurement:
    return live_with_latency(site, launcher, Pace(max(6_000, site.scaled(20_000)), 2_000))


def _baseline(site: Site, kind: Literal["paho_aiokafka", "paho_confluent"]) -> Measurement:
    plan = ReplayPlan(_ROUND, 1 if site.quick else 2, 1, window=_ROUND, ordered=False)
    return replayed(site, Baseline(kind), plan)


def _baseline_drain(site: Site, launcher: Launcher) -> Measurement:
    return drained(site, launcher, site.scaled(_BASELINE_DRAINED))


def _commands_live(site: Site, launcher: CommandGateway | CommandBridge) -> Measurement:
    return commands_live(site, launcher, Pace(max(5_000, site.scaled(10_000)), 1_000))


def _commands_saturated(site: Site, launcher: CommandGateway | CommandBridge) -> Measurement:
    return commands_saturated(site, launcher, site.scaled(_COMMANDS), site.scaled(_COMMANDED))


def _cpu(limit: float) -> Target:
    return Target("cpu_s_per_million", limit)


def _spark(name: str, what: str, job: str, at_least: float) -> Row:
    target = Target("rows_per_cpu_s", at_least, at_least=True)
    return Row(name, what, (target,), partial(spark_job, name=job), asked=True)


_RSS: Final = Target("rss_mib", RSS_LIMIT_MIB)
_SUPERVISOR: Final = Target("supervisor_mib", 45)

ROWS: Final = (
    Row("saturated-qos0", "replayed stream, 3.1.1, no codec", (_cpu(1.4), _RSS), partial(_saturated, qos=0)),
    Row("saturated-qos1", "replayed stream, 3.1.1, no codec", (_cpu(1.7), _RSS), partial(_saturated, qos=1)),
    Row("metrics-off", "as saturated-qos1, with nothing counted", (), partial(_saturated, qos=1, metrics=False)),
    Row("workers-2", "as saturated-qos1, a session in each of 2 workers", (_cpu(1.95), _RSS, _SUPERVISOR),
        partial(_workers, count=2)),
    Row("workers-4", "as saturated-qos1, a session in each of 4 workers", (_cpu(1.95), _RSS, _SUPERVISOR),
        partial(_workers, count=4)),
    Row("baseline-paho-aiokafka", "as saturated-qos1", (), partial(_baseline, kind="paho_aiokafka")),
    Row("baseline-paho-confluent", "as saturated-qos1", (), partial(_baseline, kind="paho_confluent")),
    Row("intercepted", "as saturated-qos1, a filter on JSON fields of each record", (_cpu(6), _RSS), _intercepted),
    Row("saturated-mqtt5", "replayed stream, MQTT 5, 3 properties, zstd", (_cpu(3.0), _RSS), _saturated_mqtt5),
    Row("cold-topics", "200k topics, one message each, twice", (_cpu(12), _RSS), _cold_topics),
    Row("drain-qos1", "backlog in mosquitto, all defaults",
        (_cpu(3.0), Target("messages_per_s", 200_000, at_least=True), _RSS),
        partial(drained, launcher=Gateway(), count=_DRAINED)),
    Row("baseline-paho-aiokafka-drain", "as drain-qos1", (),
        partial(_baseline_drain, launcher=Baseline("paho_aiokafka", persistent=True, compression="zstd"))),
    Row("baseline-paho-confluent-drain", "as drain-qos1", (),
        partial(_baseline_drain, launcher=Baseline("paho_confluent", persistent=True, compression="zstd"))),
    Row("baseline-telegraf-drain", "as drain-qos1", (), partial(_baseline_drain, launcher=Telegraf("zstd")),
        asked=True),
    Row("broker-15k", "15k msg/s through mosquitto, all defaults", (_cpu(6), _RSS),
        lambda site: live(site, Gateway(), Pace(site.scaled(150_000), 15_000))),
    Row("latency-2k", "2k msg/s through mosquitto to a consumer",
        (Target("p50_ms", 7), Target("p99_ms", 12), _cpu(45), _RSS), partial(_latency_2k, launcher=Gateway())),
    Row("latency-2k-low-latency", "as latency-2k, with that flow.profile", (),
        partial(_latency_2k, launcher=Gateway(flow={"profile": "low-latency"})), asked=True),
    Row("latency-2k-economy", "as latency-2k, with that flow.profile", (Target("p99_ms", 30),),
        partial(_latency_2k, launcher=Gateway(flow={"profile": "economy"})), asked=True),
    Row("baseline-paho-confluent-2k", "as latency-2k, librdkafka's own linger of 5 ms", (),
        partial(_latency_2k, launcher=Baseline("paho_confluent", linger_ms=5))),
    Row("baseline-telegraf-2k", "as latency-2k, written every 20 ms", (),
        partial(_latency_2k, launcher=Telegraf(flush_interval="20ms")), asked=True),
    Row("commands-live", "1k commands/s through mosquitto, record to device",
        (Target("p50_ms", 8), Target("p99_ms", 20)), partial(_commands_live, launcher=CommandGateway())),
    Row("baseline-commands-live", "as commands-live: a plain aiokafka to paho bridge", (),
        partial(_commands_live, launcher=CommandBridge())),
    Row("commands-saturated", "a backlog of commands for 10,000 devices, one way",
        (_cpu(60), Target("messages_per_s", 10_000, at_least=True)),
        partial(_commands_saturated, launcher=CommandGateway())),
    Row("baseline-commands-saturated", "as commands-saturated: a plain aiokafka to paho bridge", (),
        partial(_commands_saturated, launcher=CommandBridge())),
    Row("commands-waiting", "100,000 commands for devices that are away: memory beside the payload",
        (Target("bytes_each", 600),),
        lambda site: commands_waiting(site, CommandGateway({"expiry": "1h"}), site.scaled(_COMMANDS))),
    Row("idle", "no message, brokers up: percent of a core, a worker and its supervisor",
        (Target("worker_percent", 0.5), Target("supervisor_percent", 0.1), _RSS),
        lambda site: idle(site, Gateway(workers=1), site.scaled(30))),
    Row("start", "process start to ready", (Target("seconds", 2), _RSS),
        partial(started, launcher=Gateway()), minimum_runs=5),
    Row("topics-100k", "as saturated-qos1 with 100,000 topics, beside 1,000: CPU, bytes for each",
        (Target("times_small", 1.2),), partial(topics, count=100_000), asked=True),
    Row("topics-1m", "the same with a million topics", (Target("times_small", 2),), partial(topics, count=1_000_000),
        asked=True),
    Row("devices-churn", "a million topics with one message each: the last fifth beside the second",
        (Target("times_small", 1.2), _RSS), devices_churn, asked=True),
    Row("sessions-64", "as saturated-qos1 in 64 sessions, beside one", (Target("times_small", 1.2), _RSS), sessions_64,
        asked=True),
    Row("partitions-1000", "5k msg/s through mosquitto to 1,000 partitions, beside 12", (_RSS,), partitions_1000,
        asked=True),
    Row("routes-500", "200k topics, one message each, with 499 more routes, beside none",
        (Target("times_small", 1.2), _RSS), routes_500, asked=True),
    Row("spool-write", "appends of 16 KiB to 1 MiB against write and fsync, the worst size",
        (Target("raw_share", 0.5, at_least=True),), spool_write),
    Row("auth-echo", "auth serve on one core, answering a constant", (), auth_echo, kafka=False),
    Row("auth-login-cached", "logins that are remembered", (Target("share_of_echo", 0.5, at_least=True),), auth_cached,
        kafka=False),
    Row("auth-login-cold", "100,000 devices with generated secrets in SQLite, each once",
        (Target("share_of_echo", 0.25, at_least=True), Target("seconds", 60)), auth_cold, kafka=False),
    Row("auth-authorise", "topics, judged by the database's rules", (Target("share_of_echo", 0.5, at_least=True),),
        auth_authorise, kafka=False),
    Row("auth-login-mixed", "500 remembered logins/s beside 20 new ones/s with argon2id", (Target("p99_ms", 25),),
        auth_mixed, kafka=False),
    Row("auth-large", "100,000 users and 1,000,000 rules against 1,000 and 10,000; seconds to start",
        (Target("share_of_small", 0.85, at_least=True), Target("seconds", 2)), auth_large, kafka=False),
    _spark("spark-bronze", "2 million 200-byte records into bronze", "bronze", 120_000),
    Row("spark-silver", "as spark-bronze, into silver", (Target("rows_per_cpu_s", 50_000, at_least=True),
        Target("share_of_bronze", 0.4, at_least=True), Target("times_plain", 1.15)), spark_silver, asked=True),
    Row("spark-silver-ids", "as spark-silver, with message ids and 1 % copies", (Target("times_plain", 1.6),),
        partial(spark_silver, load="ids"), asked=True),
    Row("spark-silver-year", "as spark-silver, 100,000 records of 365 days", (), partial(spark_silver, load="days"),
        asked=True),
    Row("spark-devices", "100,000 devices with ten readings each into devices, the last five from the job's state on",
        (), partial(spark_fleet, job="devices"), asked=True),
    Row("spark-gold", "the same into gold", (), partial(spark_fleet, job="gold"), asked=True),
    Row("spark-steady", "5k msg/s for two minutes, publish to the row in silver", (Target("p99_s", 10),), spark_steady,
        asked=True),
    Row("spark-first-batch", "process start of silver to its first batch, jars there", (Target("seconds", 18),),
        partial(spark_first_batch, name="silver"), asked=True),
    Row("anomalies-nab", "the detector of the job anomalies on NAB's series in --nab",
        (Target("nab_score", 51.7, at_least=True),), anomalies_nab, kafka=False, asked=True),
    Row("anomalies-nab-gaussian", "NAB's windowed Gaussian on them", (), nab_gaussian, kafka=False, asked=True),
    Row("anomalies-nab-rolling", "a rolling z-score on them", (), nab_rolling, kafka=False, asked=True),
)  # fmt: skip

# ours, theirs: what is compared where both were measured in a call.
RATIOS: Final = (
    ("saturated-qos1", "metrics-off"),
    ("workers-2", "saturated-qos1"),
    ("workers-4", "saturated-qos1"),
    ("saturated-qos1", "baseline-paho-aiokafka"),
    ("saturated-qos1", "baseline-paho-confluent"),
    ("drain-qos1", "baseline-paho-aiokafka-drain"),
    ("drain-qos1", "baseline-paho-confluent-drain"),
    ("drain-qos1", "baseline-telegraf-drain"),
    ("latency-2k", "baseline-paho-confluent-2k"),
    ("latency-2k", "baseline-telegraf-2k"),
    ("latency-2k-low-latency", "baseline-paho-confluent-2k"),
    ("latency-2k-economy", "baseline-paho-confluent-2k"),
    ("commands-live", "baseline-commands-live"),
    ("commands-saturated", "baseline-commands-saturated"),
)

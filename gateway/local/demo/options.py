"""What a run of the demo is asked to do, and the settings file it gives to the gateway and the Spark job."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from config.wording import as_toml
from gateway.devices.physics import FAULTY_SIGNAL, UNITS

TOPIC = "telemetry"
STATUS_TOPIC = "device-status"
COMMANDS_TOPIC = "commands"
STATUSES_TOPIC = "command-status"
ANSWERS_TOPIC = "command-answers"
ALERTS_TOPIC = "anomalies"
ROUTE = "telemetry"
INSTANCE = "demo"
FILTERS = ("devices/+/telemetry", "devices/+/status")
"""What its routes subscribe to."""
PARTITIONS = 6
"""Enough to show that they are used in parallel; each costs Spark a task per batch, and there are two cores."""
SPARK_TRIGGER = "3s"
WARM_UP = 20
"""Readings after which the job ``anomalies`` judges a signal; fewer than its default, for a run of a minute."""
FAULTY_FROM = 25
"""The reading from which on the first device measures wrong, until it is told to recalibrate."""
LAKE = "lake"
"""Folder of the tables, in that of the run."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    devices: int = 200
    rate: float = 1.0
    """Messages per second of each device."""
    duration_s: float = 60.0
    """How long messages flow."""
    seed: int = 1
    spark: bool = True
    json: bool = False
    chaos: bool = False
    """Whether the gateway is killed and Kafka frozen meanwhile, beside a plain bridge to compare with."""
    auth: bool = False
    """Whether the MQTT broker asks an access service, and each device logs in with a secret of its own."""

    keep: Path | None = None
    """Folder to leave data and logs in; None removes them."""


_ALONE = """One process, without a supervisor: the
# demo looks at one gateway and shares this machine's CPUs with brokers, devices and Spark.
workers = 0"""
_SUPERVISED = """One worker, under a supervisor that
# starts it again when it is killed.
workers = 1"""
_ONE_SESSION = """
# While the gateway is away messages wait in its sessions. From several they come back side by side; order over a
# restart is promised for one.
sessions = 1
"""


def commands_toml() -> str:
    """The tables of commands and their answers: for the gateway, and for the access service, which makes rules of
    them."""
    return f"""\
[[routes]]
name = "answers"
filters = ["devices/+/res"]
topic = "{ANSWERS_TOPIC}"
device = "${{topic[1]}}"
key = "${{device}}"
metadata_headers = ["topic", "properties", "device"]

[[commands]]
name = "demo"
topics = ["{COMMANDS_TOPIC}"]
status_topic = "{STATUSES_TOPIC}"
answers = "answers"
secret = "{secrets.token_hex(32)}"
expiry = "20s"
answer_timeout = "5s"
settle = "1s"

"""


def gateway_toml(
    root: Path,
    *,
    mqtt_port: int,
    bootstrap: str,
    http_port: int,
    supervised: bool = False,
    password_file: Path | None = None,
) -> str:
    """The settings file of this run: everything not said here is the gateway's default.

    ``password_file``: of the gateway's user at the MQTT broker; None where it
    lets everybody in.
    """
    text = as_toml
    login = ""
    if password_file is not None:
        login = f'username = "gateway"\npassword_file = {text(str(password_file))}\n'
    servers = ", ".join(text(server) for server in bootstrap.split(","))
    return f"""\
# Written by `gateway demo`. Everything not said here is the gateway's default. {_SUPERVISED if supervised else _ALONE}
instance = "{INSTANCE}"
data_dir = {text(str(root / "gateway"))}

[mqtt]
addresses = ["mqtt://127.0.0.1:{mqtt_port}"]
{login}{_ONE_SESSION if supervised else ""}
[kafka]
bootstrap_servers = [{servers}]

[kafka.topics]
create = true
partitions = {PARTITIONS}
replication = 1

[[kafka.topics.declare]]
name = "{STATUS_TOPIC}"
partitions = 1
replication = 1
cleanup_policy = "compact"

[[routes]]
name = "{ROUTE}"
filters = ["{FILTERS[0]}"]
topic = "{TOPIC}"
device = "${{topic[1]}}"
key = "${{device}}"
metadata_headers = ["topic", "device"]

[[routes]]
name = "status"
filters = ["{FILTERS[1]}"]
topic = "{STATUS_TOPIC}"
device = "${{topic[1]}}"
key = "${{device}}"

{commands_toml()}[http]
port = {http_port}

[stream]
topics = ["{TOPIC}"]
checkpoint = {text(str(root / "checkpoints"))}
trigger = "{SPARK_TRIGGER}"

[stream.lake]
path = {text(str(root / LAKE))}

[stream.anomalies]
topic = "{ALERTS_TOPIC}"
warm_up = {WARM_UP}
# A day of the simulated weather takes four minutes, so other signals change faster than any real ones.
threshold = 3
score_from = 10
skip = {text(sorted(set(UNITS) - {FAULTY_SIGNAL}))}

[stream.gold]
windows = ["10s tumbling"]
trigger = "{SPARK_TRIGGER}"
"""

"""The typed settings tree: one TOML file, ``GATEWAY_*`` environment variables, secret files."""

from __future__ import annotations

__all__ = ["Settings"]

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

class TlsSettings(_Model):
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = None
    server_name: str | None = None
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    verify: bool = True

class ProxySettings(_Model):
    host: str
    port: int
    username: str | None = None
    password: SecretStr | None = None

class StatusSettings(_Model):
    enabled: bool = True
    topic: str = "gateways/${instance}/status"

class MqttSettings(_Model):
    addresses: tuple[str, ...] = ("mqtt://127.0.0.1:1883",)      # mqtt, mqtts, ws, wss; several = fail-over in order
    protocol: Literal["5", "3.1.1"] = "5"
    username: str | None = None
    password: SecretStr | None = None
    persistent: bool = True                     # persistent session; needs stable client ids
    client_id: str = "${instance}-${worker}-${session}"
    session_expiry: timedelta = timedelta(hours=1)
    keepalive: timedelta = timedelta(seconds=30)
    receive_maximum: int = 1000                 # the window per session
    max_packet_bytes: int = 1 << 20
    sessions: int = 4
    distribution: Literal["shared", "partitioned"] = "shared"
    share_group: str = "gateway"
    connect_timeout: timedelta = timedelta(seconds=10)
    reconnect_initial: timedelta = timedelta(seconds=0.5)
    reconnect_max: timedelta = timedelta(seconds=30)
    reconnect_jitter: float = 0.2
    stable_after: timedelta = timedelta(minutes=1)
    tls: TlsSettings = TlsSettings()
    proxy: ProxySettings | None = None
    websocket_path: str = "/mqtt"
    websocket_headers: dict[str, str] = {}
    status: StatusSettings = StatusSettings()

class SaslSettings(_Model):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str
    password: SecretStr

class TopicSettings(_Model):
    name: str
    partitions: int = 12
    replication: int = -1                        # -1: the broker's default
    retention: timedelta | None = None
    cleanup_policy: Literal["delete", "compact", "compact,delete"] | None = None

class TopicsSettings(_Model):
    create: bool = False
    partitions: int = 12                         # for topics not declared below
    replication: int = -1
    declare: tuple[TopicSettings, ...] = ()

class KafkaSettings(_Model):
    bootstrap_servers: tuple[str, ...] = ("127.0.0.1:9092",)
    client_id: str = "${instance}-${worker}"
    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings | None = None
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    batch_bytes: int = 256 * 1024
    max_request_bytes: int = 100 * 1024 * 1024    # the broker's socket.request.max.bytes
    max_record_bytes: int = 1_000_000             # larger records are dead-lettered
    request_timeout: timedelta = timedelta(seconds=5)
    metadata_max_age: timedelta = timedelta(seconds=1)
    delivery_timeout: timedelta = timedelta(seconds=120)
    retry_backoff: timedelta = timedelta(milliseconds=100)
    topics: TopicsSettings = TopicsSettings()

class FlowSettings(_Model):
    linger_max: timedelta = timedelta(milliseconds=20)
    read_pacing_max: timedelta = timedelta(milliseconds=5)
    memory_bytes: int = 32 * 1024 * 1024
    route_cache_entries: int = 50_000
    property_cache_entries: int = 10_000

class RouteSettings(_Model):
    name: str
    filters: tuple[str, ...]
    topic: str
    key: str = "${topic}"
    qos: Literal[0, 1, 2] = 1
    device: str | None = None                     # e.g. "${topic[1]}", "${property.device}", "${payload.device}"
    message_id: str | None = None
    headers: dict[str, str] = {}                  # extra headers: name -> template
    metadata_headers: tuple[Literal["topic", "qos", "retain", "dup", "properties", "gateway", "message_id", "device", "received"], ...] = ()
    empty_payload: Literal["empty", "tombstone"] = "empty"
    allowed_topics: str = r"[A-Za-z0-9._-]{1,249}"   # what a topic made from a template may look like (never __*)
    max_topics: int = 100                         # cap on distinct topics made from this route's template

class DeadLetterSettings(_Model):
    topic: str = "gateway-dead-letters"
    max_per_second: float = 100.0
    max_share: float = 0.01

class HttpSettings(_Model):
    host: str = "127.0.0.1"
    port: int = 9464
    overdue_after: timedelta = timedelta(seconds=30)   # /readyz turns red when a message waits longer than this

class LogSettings(_Model):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"

class StreamSettings(_Model):
    master: str = "local[2]"
    output: Path = Path("data/telemetry")
    quarantine: Path = Path("data/quarantine")
    checkpoint: Path = Path("data/checkpoints")
    topics: tuple[str, ...] = ()                  # empty: the routes' topics
    trigger: timedelta = timedelta(seconds=5)
    available_now: bool = False
    window: timedelta = timedelta(seconds=10)
    watermark: timedelta = timedelta(minutes=5)
    max_ahead: timedelta = timedelta(minutes=5)   # event time is clamped to receive time + this
    shuffle_partitions: int = 2
    max_offsets_per_trigger: int | None = None

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GATEWAY_", env_nested_delimiter="__", frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)
    instance: str = "gateway"
    worker: int = 0
    data_dir: Path = Path("data")
    mqtt: MqttSettings = MqttSettings()
    kafka: KafkaSettings = KafkaSettings()
    flow: FlowSettings = FlowSettings()
    routes: tuple[RouteSettings, ...] = ()
    dead_letter: DeadLetterSettings = DeadLetterSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    stream: StreamSettings = StreamSettings()
    shutdown_timeout: timedelta = timedelta(seconds=25)

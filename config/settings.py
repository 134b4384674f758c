"""The typed settings tree. ``config.loading.load`` fills it; every other room reads it.

The tables live in ``config.tables`` and are exported here, so that ``from config.settings import …`` finds them all.
"""

__all__ = [
    "AdminSettings",
    "AuthSettings",
    "CanarySettings",
    "CommandSettings",
    "DeadLetterSettings",
    "EmqxSettings",
    "FlowSettings",
    "HttpSettings",
    "InterceptorSettings",
    "KafkaSettings",
    "LedgerSettings",
    "LogSettings",
    "MetadataHeader",
    "MqttSettings",
    "OAuthSettings",
    "ProxySettings",
    "RouteSettings",
    "SaslSettings",
    "ServerTlsSettings",
    "SessionGroupSettings",
    "Settings",
    "SpoolSettings",
    "StatusSettings",
    "StreamSettings",
    "TlsSettings",
    "TokenSettings",
    "TopicSettings",
    "TopicsSettings",
]

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from config.tables.auth import AuthSettings
from config.tables.commands import CommandSettings
from config.tables.http import HttpSettings
from config.tables.interceptors import InterceptorSettings
from config.tables.kafka import KafkaSettings, SaslSettings, TopicSettings, TopicsSettings
from config.tables.ledger import LedgerSettings
from config.tables.mqtt import MqttSettings, ProxySettings, SessionGroupSettings, StatusSettings
from config.tables.operate import AdminSettings, CanarySettings, EmqxSettings
from config.tables.routes import MetadataHeader, RouteSettings
from config.tables.service import DeadLetterSettings, FlowSettings, LogSettings
from config.tables.spool import SpoolSettings
from config.tables.stream import StreamSettings
from config.tables.tls import ServerTlsSettings, TlsSettings
from config.tables.tokens import OAuthSettings, TokenSettings
from config.values.grammar import Count, Duration
from config.values.names import Folder


class Settings(BaseSettings):
    """All settings of a gateway. The constructor takes arguments and defaults only; ``config.loading.load.load`` reads
    the sources."""

    model_config = SettingsConfigDict(
        env_prefix="GATEWAY_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    instance: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "gateway"
    """Name of this gateway in client ids, its status topic, logs and metrics: 1 to 64 letters, digits, `.`, `_`, `-`;
    unique on a broker."""

    workers: Annotated[Count, Field(ge=0, le=1024)] | None = None
    """Number of worker processes, each with its own sessions and Kafka producer. Unset: one for each CPU of this
    process (affinity and container quota counted), or 1 where `mqtt.client_id` or `mqtt.distribution` allows only one.
    0: no supervisor; this process is worker number `worker`, for a process manager of your own."""

    worker: Annotated[Count, Field(ge=0, le=1023)] = 0
    """Number of this worker process within the instance, only with `workers = 0`."""

    data_dir: Folder = Path("data")
    """Folder of this instance: its identity, the spool, records of its MQTT sessions, and locks. A copy of it is
    refused ([lifecycle.md](lifecycle.md#whose-a-data-directory-is)). A missing folder is created."""

    mqtt: MqttSettings = MqttSettings()
    """The MQTT side."""

    kafka: KafkaSettings = KafkaSettings()
    """The Kafka side."""

    flow: FlowSettings = FlowSettings()
    """Limits of memory and waiting."""

    routes: tuple[RouteSettings, ...] = ()
    """Routes from MQTT filters to Kafka topics ([routing.md](routing.md)). The first one that matches takes the
    message. `gateway run` needs one."""

    commands: tuple[CommandSettings, ...] = ()
    """Commands to devices: from Kafka topics to MQTT topics, with a status of each
    ([commands-to-devices.md](commands-to-devices.md)). None: nothing is published to devices."""

    interceptors: tuple[InterceptorSettings, ...] = ()
    """Interceptors for the records of all routes, in this order, before each route's own."""

    dead_letter: DeadLetterSettings = DeadLetterSettings()
    """Messages that can never be delivered ([dead-letters.md](dead-letters.md))."""

    spool: SpoolSettings = SpoolSettings()
    """Batches on disk while Kafka cannot take them ([spool.md](spool.md))."""

    ledger: LedgerSettings = LedgerSettings()
    """The count of every message, written to Kafka ([ledger.md](ledger.md))."""

    http: HttpSettings = HttpSettings()
    """The port of metrics, health and the status page."""

    log: LogSettings = LogSettings()
    """Logs ([logs.md](logs.md))."""

    emqx: EmqxSettings = EmqxSettings()
    """EMQX's REST API, which counts what EMQX dropped before the gateway received it."""

    admin: AdminSettings = AdminSettings()
    """Kafka's administration: `gateway topics`, `groups`, `leaders`, `cluster` ([kafka.md](kafka.md))."""

    canary: CanarySettings = CanarySettings()
    """A synthetic device whose messages go the whole way."""

    stream: StreamSettings = StreamSettings()
    """The Spark jobs ([streaming.md](streaming.md))."""

    auth: AuthSettings = AuthSettings()
    """The access service, which EMQX asks who may connect, publish and subscribe ([auth.md](auth.md))."""

    shutdown_timeout: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(hours=1))] = timedelta(seconds=25)
    """Longest time for a stop. The rest is delivered again later, and the process ends with status 75."""

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """Every topic that dead letters go to, the common one first. No route may write to one of them."""
        own = (route.dead_letter_topic for route in self.routes)
        return tuple(dict.fromkeys([self.dead_letter.topic, *(topic for topic in own if topic is not None)]))

    @property
    def own_topics(self) -> frozenset[str]:
        """Kafka topics of the gateway itself; no route may write to them."""
        statuses = (commands.status_topic for commands in self.commands)
        return frozenset({*self.dead_letter_topics, self.ledger.topic, *statuses} - {""})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only: ``config.loading.load`` merges the sources itself, because it records each value's origin."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

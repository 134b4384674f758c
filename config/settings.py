"""The typed settings tree. ``config.loading.load`` fills it; every other room reads it.

The tables live in the modules beside this one and are exported here, so that ``from config.settings import …`` finds
them all.
"""

__all__ = [
    "AdminSettings",
    "AuthSettings",
    "CanarySettings",
    "DeadLetterSettings",
    "EmqxSettings",
    "FlowSettings",
    "HttpSettings",
    "HttpTlsSettings",
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

from config.auth import AuthSettings
from config.http import HttpSettings, HttpTlsSettings
from config.interceptors import InterceptorSettings
from config.kafka import KafkaSettings, SaslSettings, TopicSettings, TopicsSettings
from config.ledger import LedgerSettings
from config.mqtt import MqttSettings, ProxySettings, SessionGroupSettings, StatusSettings
from config.operate import AdminSettings, CanarySettings, EmqxSettings
from config.routes import MetadataHeader, RouteSettings
from config.service import DeadLetterSettings, FlowSettings, LogSettings
from config.spool import SpoolSettings
from config.stream import StreamSettings
from config.tls import TlsSettings
from config.tokens import OAuthSettings, TokenSettings
from config.values.grammar import Count, Duration


class Settings(BaseSettings):
    """All settings of a gateway. Made directly it takes its arguments and defaults alone; ``config.loading.load.load``
    reads
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
    """Name of this gateway in client ids, its status topic, logs and metrics: 1 to 64 letters, digits, `.`, `_`, `-`.
    Two gateways on one broker need different names, or they end each other's sessions."""

    workers: Annotated[Count, Field(ge=0, le=1024)] | None = None
    """Number of worker processes that `gateway run` starts and watches, each with sessions and a Kafka producer of its
    own. Not set: one for each CPU that this process may use (affinity and container quota counted), or 1 where
    `mqtt.client_id` or `mqtt.distribution` leave no room for several. More workers than CPUs only cost memory. 0: no
    supervisor; this process is worker number `worker` itself, for those who have a process manager of their own."""

    worker: Annotated[Count, Field(ge=0, le=1023)] = 0
    """Number of this worker process within the instance, from 0; it keeps client ids and files apart. Only with
    `workers = 0`, and then to be set by whatever starts several; a supervisor numbers its workers itself."""

    data_dir: Path = Path("data")
    """Folder for what belongs to this instance: its identity, the spool, the MQTT sessions that wait for it, and locks
    that keep a second process with the same client ids from starting. A copy of it is refused. Relative to the working
    directory; made if it is not there."""

    mqtt: MqttSettings = MqttSettings()
    """The MQTT side."""

    kafka: KafkaSettings = KafkaSettings()
    """The Kafka side."""

    flow: FlowSettings = FlowSettings()
    """How much is held, and for how long."""

    routes: tuple[RouteSettings, ...] = ()
    """The ways from MQTT filters to Kafka topics, tried in this order; the first that matches wins. `gateway run`
    needs one."""

    interceptors: tuple[InterceptorSettings, ...] = ()
    """Interceptors for the records of all routes, in this order, before each route's own. A route without any, here
    or there, pays nothing for them."""

    dead_letter: DeadLetterSettings = DeadLetterSettings()
    """Messages that can never be delivered."""

    spool: SpoolSettings = SpoolSettings()
    """Batches on disk while Kafka cannot take them."""

    ledger: LedgerSettings = LedgerSettings()
    """The account of every message, written to Kafka."""

    http: HttpSettings = HttpSettings()
    """Metrics and health."""

    log: LogSettings = LogSettings()
    """Logs."""

    emqx: EmqxSettings = EmqxSettings()
    """EMQX's REST API, which tells what was lost before the gateway."""

    admin: AdminSettings = AdminSettings()
    """The commands that administrate Kafka: `gateway topics`, `groups`, `leaders`, `cluster`."""

    canary: CanarySettings = CanarySettings()
    """A synthetic device that goes the whole way."""

    stream: StreamSettings = StreamSettings()
    """The Spark jobs."""

    auth: AuthSettings = AuthSettings()
    """The service that EMQX asks who may connect, publish and subscribe."""

    shutdown_timeout: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(hours=1))] = timedelta(seconds=25)
    """Longest time for a stop: what is not acknowledged by then is delivered again later, and the process ends with
    status 75. 25 s fits the 30 s after which Kubernetes kills."""

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """Every topic that dead letters go to, the common one first. No route may write to one of them."""
        own = (route.dead_letter_topic for route in self.routes)
        return tuple(dict.fromkeys([self.dead_letter.topic, *(topic for topic in own if topic is not None)]))

    @property
    def own_topics(self) -> frozenset[str]:
        """Kafka topics that the gateway writes for itself: no route may write to them."""
        return frozenset({*self.dead_letter_topics, self.ledger.topic} - {""})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments alone: ``config.loading.load`` merges the sources itself, since it has to know where each value
        came
        from."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

"""Settings for those who operate the gateway: EMQX's REST API, Kafka's administration, the canary."""

__all__ = ["AdminSettings", "CanarySettings", "EmqxSettings"]

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from config.kafka import SaslSettings
from config.tls import TlsSettings
from config.values.addresses import KafkaAddressText, parse_http_url
from config.values.grammar import Duration
from config.values.model import Table


def _check_emqx_url(text: str) -> str:
    parse_http_url(text)
    _, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    if "?" in host or path or (slash and not host):
        raise ValueError('the address of EMQX\'s REST API ends with the port, "http://host:18083": /api/v5 is added')
    return text.rstrip("/")


class EmqxSettings(Table):
    url: Annotated[str, AfterValidator(_check_emqx_url)] | None = None
    """EMQX's REST API, `http://host:18083`. With it the gateway reads what EMQX dropped for its client ids before they
    got it: loss that it cannot see itself. Unset: nobody looks."""

    api_key: Annotated[str, Field(min_length=1)] | None = None
    """An API key of EMQX (dashboard, System, API Key, or its `api_key.bootstrap_file`); the role `viewer` suffices,
    where EMQX knows roles. Required with `url`."""

    api_secret: SecretStr | None = None
    """The secret of `api_key`. Required with `url`. Best given as `api_secret_file`: then it is read again for each
    question, so that a new one needs no restart."""

    interval: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=1))] = timedelta(seconds=15)
    """How often EMQX is asked. 15 s is how often Prometheus usually looks. Short: requests without use. Long: a queue
    that drops is seen late."""

    timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=1))] = timedelta(seconds=5)
    """Longest wait for an answer; traffic does not wait for it. 5 s is more than a healthy cluster takes. Short: a busy
    EMQX counts as away. It may not exceed `interval`."""

    tls: TlsSettings = TlsSettings()
    """TLS to the REST API; used with `https` alone."""


class AdminSettings(Table):
    bootstrap_servers: Annotated[tuple[KafkaAddressText, ...], Field(min_length=1, max_length=64)] | None = None
    """`host:port` of brokers for the administrating commands, where `admin.security` is that of another listener than
    the gateway's. Unset: `kafka.bootstrap_servers`."""

    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    """`security.protocol` of the administrating commands. Unset: that of `kafka.security`, with `kafka.tls` and
    `kafka.sasl`; set, `admin.tls` and `admin.sasl` count instead."""

    tls: TlsSettings = TlsSettings()
    """TLS to Kafka for these commands, where `admin.security` is set."""

    sasl: SaslSettings | None = None
    """User and password for these commands, where `admin.security` is set: rights to create topics or elect leaders
    need not be those of the gateway that runs."""

    timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=10))] = timedelta(
        seconds=10
    )
    """Longest wait for an answer to one question. 10 s outlasts the election of a controller."""

    audit_file: Path | None = None
    """File to which every action (not every look) is appended: when, who, what, with what result. Unset: `admin.log`
    in `data_dir`."""

    watch_groups: tuple[Annotated[str, Field(min_length=1, max_length=32767)], ...] = ()
    """Consumer groups that worker 0 looks at while the gateway runs, so that a reader that stopped shows in metrics and
    among the problems. The user needs Describe on the groups and their topics, and Read for ages. None: nobody looks,
    since most gateways may not; each costs a few small requests and, together, some 13 MiB."""

    watch_interval: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=1))] = timedelta(seconds=30)
    """How often they are looked at. 30 s. Short: a consumer that commits more seldom looks stopped in between."""

    watch_lag: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=30))] = timedelta(minutes=5)
    """How old the oldest record may be that such a group has not finished, before it is a problem. 5 minutes outlast a
    restart of the consumer. Short: each of its pauses is one."""


class CanarySettings(Table):
    enabled: bool = False
    """Whether a synthetic device publishes, and its messages are read back from Kafka: success and latency of the
    whole way as metrics. Off: its messages would be a surprise among the others."""

    topic: Annotated[str, Field(min_length=1, max_length=65535)] = "canary/${instance}"
    """MQTT topic that the canary publishes to, with `${instance}` as the one placeholder. A route has to take it; one
    of its own, to a Kafka topic of its own, keeps the canary away from readers of telemetry."""

    interval: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(hours=1))] = timedelta(seconds=10)
    """How often a message is sent. 10 s finds a failure within half a minute."""

    timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(hours=1))] = timedelta(seconds=15)
    """How long a message may take to come back before it counts as failed. 15 s outlasts an election."""

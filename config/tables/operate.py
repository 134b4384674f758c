"""Settings for those who operate the gateway: EMQX's REST API, Kafka's administration, the canary."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from config.tables.kafka import SaslSettings
from config.tables.tls import TlsSettings
from config.values.addresses import KafkaAddressText, parse_http_url
from config.values.grammar import Duration, duration, within
from config.values.model import Table


def _check_emqx_url(text: str) -> str:
    """The URL without a slash at the end. Raises ValueError with a sentence."""
    parse_http_url(text)
    _, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    if "?" in host or path or (slash and not host):
        raise ValueError('the address of EMQX\'s REST API ends with the port, "http://host:18083": /api/v5 is added')
    return text.rstrip("/")


class EmqxSettings(Table):
    url: Annotated[str, AfterValidator(_check_emqx_url)] | None = None
    """Address of EMQX's REST API, `http://host:18083`. Unset: what EMQX drops for the gateway's client ids is not
    measured."""

    api_key: Annotated[str, Field(min_length=1)] | None = None
    """API key of EMQX, from its dashboard or its `api_key.bootstrap_file`; required with `url`. The role `viewer` is
    enough."""

    api_secret: SecretStr | None = None
    """Secret of `api_key`. Required with `url`. An `api_secret_file` is read again for each request."""

    interval: Annotated[Duration, within("1s", "1h")] = duration("15s")
    """Time between requests; drops are noticed so much later."""

    timeout: Annotated[Duration, within("100ms", "1m")] = duration("5s")
    """Longest wait for an answer, at most `interval`; traffic does not wait. Short: a busy EMQX counts as
    unreachable."""

    tls: TlsSettings = TlsSettings()
    """TLS to the REST API, used with `https`."""


class AdminSettings(Table):
    bootstrap_servers: Annotated[tuple[KafkaAddressText, ...], Field(min_length=1, max_length=64)] | None = None
    """`host:port` of brokers for these commands, if `admin.security` belongs to another listener. Unset:
    `kafka.bootstrap_servers`."""

    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    """`security.protocol` of these commands, with `admin.tls` and `admin.sasl`. Unset: `kafka.security`, `kafka.tls`
    and `kafka.sasl` apply."""

    tls: TlsSettings = TlsSettings()
    """TLS to Kafka for these commands, if `admin.security` is set."""

    sasl: SaslSettings | None = None
    """Credentials for these commands, if `admin.security` is set. The running gateway then needs no rights to change
    topics."""

    timeout: Annotated[Duration, within("100ms", "10m")] = duration("10s")
    """Longest wait for the answer to one request."""

    audit_file: Path | None = None
    """File with a line for every change: time, user, action, result. Unset: `admin.log` in `data_dir`."""

    watch_groups: tuple[Annotated[str, Field(min_length=1, max_length=32767)], ...] = ()
    """Consumer groups whose lag worker 0 measures. The user needs Describe on the groups and their topics, and Read for
    the lag in seconds. Watching takes a few small requests and about 13 MiB."""

    watch_interval: Annotated[Duration, within("1s", "1h")] = duration("30s")
    """Time between measurements of these groups. Short: a consumer that commits less often looks stopped."""

    watch_lag: Annotated[Duration, within("1s", "30d")] = duration("5m")
    """Age of a group's oldest unfinished record that is a problem. 5 minutes outlast a restart of the consumer."""


class CanarySettings(Table):
    enabled: bool = False
    """Whether a synthetic device publishes messages and reads them back from Kafka, for metrics of the whole way. Off
    by default, because its messages go into a Kafka topic."""

    topic: Annotated[str, Field(min_length=1, max_length=16_000)] = "canary/${instance}"
    """MQTT topic of the canary; its only placeholder is `${instance}`. A route must match it, best to a Kafka topic of
    its own."""

    interval: Annotated[Duration, within("100ms", "1h")] = duration("10s")
    """Time between messages. 10 s finds a failure within half a minute."""

    timeout: Annotated[Duration, within("100ms", "1h")] = duration("15s")
    """How long a message may take to come back before it counts as failed. 15 s outlasts an election."""

"""Settings of the Kafka side."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tables.tls import TlsSettings
from config.tables.tokens import TokenSettings
from config.values.addresses import KafkaAddressText
from config.values.grammar import ByteCount, Count, Duration, duration, within
from config.values.model import Table
from config.values.names import KafkaTopicName, ReplicationFactor


class SaslSettings(Table):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """How the gateway authenticates. SCRAM never sends the password. PLAIN sends it, OAUTHBEARER `token`: only with
    `SASL_SSL`."""

    username: Annotated[str, Field(min_length=1)] | None = None
    """Kafka user; required except with OAUTHBEARER. It needs Write on topics of routes, dead letters and ledger, and
    Create with `kafka.topics.create`."""

    password: SecretStr | None = None
    """Password of the user; required except with OAUTHBEARER. A `password_file` is read again for each connection."""

    token: TokenSettings | None = None
    """Token for OAUTHBEARER; required with it. Connections are renewed before it expires, or
    `connections.max.reauth.ms` ends them."""

    extensions: dict[str, str] = Field(default={})
    """SASL extensions sent with the token (RFC 7628), name to value, for example `logicalCluster`. Logs show the
    values: write no secrets here."""


class TopicSettings(Table):
    name: KafkaTopicName
    """Name of the Kafka topic, 1 to 249 characters."""

    partitions: Annotated[Count, Field(ge=1, le=100_000)] = 12
    """Partitions of a created topic; `gateway topics apply` adds them to an existing one. 12 divides evenly among 2, 3,
    4 or 6 consumers."""

    replication: ReplicationFactor = -1
    """Copies of each partition of a created topic; -1: the broker's `default.replication.factor`. 1 loses the topic
    with its broker."""

    retention: Annotated[Duration, Field(ge=timedelta(milliseconds=1))] | None = None
    """`retention.ms` of a topic that is created, or changed by `gateway topics apply`. Unset: the broker's default."""

    cleanup_policy: Literal["delete", "compact", "compact,delete"] | None = None
    """`cleanup.policy`, set as `retention` is. `compact` keeps the last record of each key: for state, not
    telemetry."""


class TopicsSettings(Table):
    create: bool = False
    """Whether the gateway creates missing topics at start, and deleted ones again with their former number of
    partitions. Off: a missing topic ends the start with an error, and messages of a deleted topic wait."""

    partitions: Annotated[Count, Field(ge=1, le=100_000)] = 12
    """Partitions of created topics that `declare` does not name, dead-letter topics included."""

    replication: ReplicationFactor = -1
    """Replication of created topics that `declare` does not name; -1 is the broker's default."""

    declare: tuple[TopicSettings, ...] = ()
    """Topics with settings of their own."""


class KafkaSettings(Table):
    bootstrap_servers: Annotated[tuple[KafkaAddressText, ...], Field(min_length=1, max_length=64)] = ("127.0.0.1:9092",)
    """`host:port` of brokers from which the gateway learns the cluster. Two or three are enough."""

    client_id: Annotated[str, Field(min_length=1, max_length=249)] = "${instance}-${worker}"
    """Name of the gateway in the brokers' logs and quotas; placeholders `${instance}` and `${worker}`."""

    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's `security.protocol`. SASL needs `kafka.sasl`."""

    tls: TlsSettings = TlsSettings()
    """TLS to Kafka, used with `SSL` and `SASL_SSL`. New connections use changed files."""

    sasl: SaslSettings | None = None
    """Credentials, used with `SASL_PLAINTEXT` and `SASL_SSL`."""

    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    """Codec of the batches. zstd and snappy cost about 1 µs per record in this client, lz4 and gzip 4 to 8."""

    batch_bytes: Annotated[ByteCount, Field(ge=1024, le=100 << 20)] = 256 * 1024
    """Size at which a partition's batch is closed, before compression. Large: more memory for each partition."""

    max_request_bytes: Annotated[ByteCount, Field(ge=1024, le=(1 << 31) - 1)] = 100 * 1024 * 1024
    """The broker's `socket.request.max.bytes`. Requests have at most 1 MiB, or one larger batch: the start checks."""

    max_message_bytes: Annotated[ByteCount, Field(ge=1024, le=(1 << 31) - 1)] = 1_048_588
    """The broker's `message.max.bytes` (a topic's `max.message.bytes`), its largest batch. The start checks
    `batch_bytes` and `max_record_bytes` against it."""

    max_record_bytes: Annotated[ByteCount, Field(ge=1024, le=1 << 30)] = 1_000_000
    """Largest payload of a record, before compression; a larger one is dead-lettered. 1,000,000 fits the broker's
    default with room for key and headers."""

    request_timeout: Annotated[Duration, within("100ms", "10m")] = duration("5s")
    """Longest wait for a broker's answer, also the time to notice a hanging broker. Short: answers of a busy broker are
    dropped and records sent again. Long: the gap after a failure can be twice as long. The broker waits for its
    replicas for four fifths of it."""

    metadata_max_age: Annotated[Duration, within("100ms", "1h")] = duration("1s")
    """Age at which partitions and leaders are fetched again."""

    delivery_timeout: Annotated[Duration, within("100ms", "1d")] = duration("2m")
    """Longest time from closing a batch to Kafka's answer, retries included. After it the producer is replaced and the
    batch sent again: no loss, but possible duplicates. 120 s outlasts an election."""

    retry_backoff: Annotated[Duration, within("1ms", "1m")] = duration("100ms")
    """First pause before Kafka is asked again. Each further pause is twice as long, spread by ± 20 %. The longest is
    1 s for sending a batch again and trying another producer, 10 s after a refused batch or login, or this one if it
    is longer."""

    topics: TopicsSettings = TopicsSettings()
    """Topics that the gateway creates or expects."""

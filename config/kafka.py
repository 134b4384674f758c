"""Settings of the Kafka side."""

__all__ = ["KafkaSettings", "SaslSettings", "TopicSettings", "TopicsSettings"]

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tls import TlsSettings
from config.tokens import TokenSettings
from config.values.addresses import KafkaAddressText
from config.values.grammar import ByteCount, Count, Duration
from config.values.model import Table
from config.values.names import KafkaTopicName, ReplicationFactor


class SaslSettings(Table):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """How the gateway proves itself. SCRAM-SHA-512 never sends the password; PLAIN does, and belongs on `SASL_SSL`
    alone, as OAUTHBEARER does, which shows `token` in place of user and password."""

    username: Annotated[str, Field(min_length=1)] | None = None
    """The Kafka user; every mechanism but OAUTHBEARER needs one. It needs the right to write to the routes' topics and
    to the dead-letter topic, and to create them where `kafka.topics.create` is on."""

    password: SecretStr | None = None
    """Its password; every mechanism but OAUTHBEARER needs one. Best given as `password_file` or in the secrets
    directory: then it is read again for each connection, so that a new one needs no restart."""

    token: TokenSettings | None = None
    """The token that OAUTHBEARER shows, and needs. Connections are renewed before it expires, and before the broker's
    `connections.max.reauth.ms` ends them."""

    extensions: dict[str, str] = Field(default={})
    """SASL extensions that OAUTHBEARER sends beside the token (RFC 7628), name to value, as some providers want them
    (`logicalCluster`). Names are letters; no secrets belong here, for they are shown. None: nothing is sent."""


class TopicSettings(Table):
    name: KafkaTopicName
    """Name of the Kafka topic: 1 to 249 of letters, digits, `.`, `_` and `-`."""

    partitions: Annotated[Count, Field(ge=1, le=100_000)] = 12
    """Partitions of the topic when the gateway creates it. 12 divides well among 2, 3, 4 or 6 brokers and consumers.
    One keeps everything in one order; many cost a batch each and can later be added but never removed."""

    replication: ReplicationFactor = -1
    """Copies of each partition when the gateway creates it; -1 is the broker's `default.replication.factor`. 1 loses
    the topic with its broker; more than there are brokers is refused by Kafka."""

    retention: Annotated[Duration, Field(gt=timedelta(0))] | None = None
    """How long records are kept (`retention.ms`) when the gateway creates the topic. Unset: the broker's default, a
    week unless changed. Short: consumers that are away longer miss records."""

    cleanup_policy: Literal["delete", "compact", "compact,delete"] | None = None
    """`cleanup.policy` when the gateway creates the topic. Unset: the broker's default (`delete`). `compact` keeps
    the last record of each key for ever, which suits state and not telemetry."""


class TopicsSettings(Table):
    create: bool = False
    """Whether missing topics are created at start, and made anew, with as many partitions as they had, when they are
    deleted later. Off, because partitions and replication are decisions of whoever runs Kafka; a missing topic then
    ends the start with an error that names it, and a deleted one's messages wait until it is there again."""

    partitions: Annotated[Count, Field(ge=1, le=100_000)] = 12
    """Partitions of created topics that `declare` does not name, the dead-letter topic among them."""

    replication: ReplicationFactor = -1
    """Replication of created topics that `declare` does not name; -1 is the broker's default."""

    declare: tuple[TopicSettings, ...] = ()
    """Topics with settings of their own, a table each."""


class KafkaSettings(Table):
    bootstrap_servers: Annotated[tuple[KafkaAddressText, ...], Field(min_length=1, max_length=64)] = ("127.0.0.1:9092",)
    """`host:port` of brokers to learn the cluster from; two or three are enough, one is a single point of failure at
    start. The default is a broker on this machine."""

    client_id: Annotated[str, Field(min_length=1, max_length=249)] = "${instance}-${worker}"
    """Name that brokers see in logs and quotas; placeholders `${instance}` and `${worker}`. Not unique by need."""

    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's `security.protocol`. PLAINTEXT suits a broker on this machine or in a closed network; SASL needs
    `kafka.sasl`."""

    tls: TlsSettings = TlsSettings()
    """TLS to Kafka; used with `SSL` and `SASL_SSL` alone. When its files change, connections made from then on use the
    new ones."""

    sasl: SaslSettings | None = None
    """User and password, or a token; used with `SASL_PLAINTEXT` and `SASL_SSL` alone."""

    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    """Codec of the batches. zstd and snappy cost about 1 µs a record here, lz4 and gzip 4 to 8, since their code is
    slower in this client. `none` costs no time, and network and disk instead."""

    batch_bytes: Annotated[ByteCount, Field(ge=1024, le=100 << 20)] = 256 * 1024
    """Size at which a partition's batch is closed, before compression. 256 KiB spreads the cost of a batch over a
    thousand small records. Small: more requests and worse compression. Large: more memory for each partition, and the
    broker's limit is near."""

    max_request_bytes: Annotated[ByteCount, Field(ge=1024, le=(1 << 31) - 1)] = 100 * 1024 * 1024
    """The broker's `socket.request.max.bytes`, its default here. Nothing is limited by it: batches of all partitions
    of a broker travel in one request, so their sum is checked against it at start."""

    max_message_bytes: Annotated[ByteCount, Field(ge=1024, le=(1 << 31) - 1)] = 1_048_588
    """The broker's `message.max.bytes` (a topic's `max.message.bytes`), its default here: the largest batch that it
    accepts. Nothing is limited by it: `batch_bytes` and `max_record_bytes` are checked against it at start."""

    max_record_bytes: Annotated[ByteCount, Field(ge=1024, le=1 << 30)] = 1_000_000
    """Largest payload of a record, before compression; a larger one is dead-lettered. 1,000,000 fits the broker's
    default limit with room for key, headers and frame. Larger than the broker accepts: it refuses the batch, which is
    then split until the record stands alone."""

    request_timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=10))] = timedelta(
        seconds=5
    )
    """Longest wait for a broker's answer. 5 s, because a broker that hangs is noticed no sooner. Short: a busy
    broker's answers are dropped and records sent again. Long: the gap after a failure grows to it, sometimes twice.
    The broker is told to wait for its replicas for four fifths of it at most, so that it answers what is missing."""

    metadata_max_age: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(hours=1))] = timedelta(
        seconds=1
    )
    """Age at which the knowledge of partitions and leaders is fetched anew. 1 s finds a new leader soon after a
    failure, for one small request. Long: partitions without a leader, and new ones, are noticed that much later."""

    delivery_timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(hours=24))] = timedelta(
        seconds=120
    )
    """Longest time for a batch from closing to Kafka's answer, retries included. When it is over, the producer is
    replaced and the batch sent again; nothing is lost, duplicates may appear. 120 s is Kafka's own default and
    outlasts an election."""

    retry_backoff: Annotated[Duration, Field(ge=timedelta(milliseconds=1), le=timedelta(minutes=1))] = timedelta(
        milliseconds=100
    )
    """Wait before a failed request is sent again. 100 ms is Kafka's own default. Short: a struggling broker gets no
    pause. Long: every leader change costs it."""

    topics: TopicsSettings = TopicsSettings()
    """Topics that the gateway creates or expects."""

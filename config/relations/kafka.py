"""Relations between the settings of the Kafka side, and of routes and topics."""

from collections import Counter
from collections.abc import Iterator

from config.relations.client_tls import unverified
from config.relations.mqtt import placeholders_known
from config.relations.rules import Rule, names_apart, when
from config.settings import KafkaSettings, Settings
from config.values.names import check_kafka_topic

_FRAME_BYTES = 1024  # a batch's header and a record's own (some 90 bytes), key and ordinary headers
_NAMES_BYTES = 64 * 1024  # a request's head, and the names of some hundred topics


def largest_request(kafka: KafkaSettings) -> int:
    """Most bytes of a produce request: a mebibyte of batches (``bridge.kafka.batch``), or one larger batch; and names
    of topics."""
    return max(1 << 20, kafka.batch_bytes, kafka.max_record_bytes) + _NAMES_BYTES


def _declared_once(settings: Settings) -> Iterator[str]:
    """Refuses a topic that is declared twice."""
    counts = Counter(topic.name for topic in settings.kafka.topics.declare)
    for name, count in counts.items():
        if count > 1:
            yield (
                f'<kafka.topics.declare> names the topic "{name}" {count} times: which settings it should get is not '
                "clear; keep one."
            )


def _route_topics(settings: Settings) -> Iterator[str]:
    """Refuses routes' topics whose names Kafka does not take, or that are topics of dead letters."""
    taken = {settings.dead_letter.topic: "dead_letter.topic"}
    for number, route in enumerate(settings.routes):
        if route.dead_letter_topic is not None:
            taken.setdefault(route.dead_letter_topic, f"routes.{number}.dead_letter_topic")
    for number, route in enumerate(settings.routes):
        if "$" in route.topic:
            continue  # a template: bridge.routing.template reads it, and bridge.routing.topic_rule checks what it makes
        try:
            check_kafka_topic(route.topic)
        except ValueError as error:
            yield f"<routes.{number}.topic>: {error}."
        if route.topic in taken:
            yield (
                f"<routes.{number}.topic> is also <{taken[route.topic]}>: good records and dead letters could not be "
                "told apart; choose another topic for one of them."
            )


def _compacted(settings: Settings) -> Iterator[str]:
    """Refuses compaction of the topics of ledger and dead letters."""
    takes = {settings.ledger.topic: "the ledger"} | dict.fromkeys(settings.dead_letter_topics, "dead letters")
    for number, topic in enumerate(settings.kafka.topics.declare):
        if topic.name in takes and "compact" in (topic.cleanup_policy or ""):
            yield (
                f'<kafka.topics.declare.{number}.cleanup_policy> for "{topic.name}", which takes {takes[topic.name]}: '
                "Kafka would keep only the last record of each key; leave cleanup_policy out."
            )


def _ledger_topic(settings: Settings) -> Iterator[str]:
    """Refuses routes to the ledger's topic."""
    for number, route in enumerate(settings.routes):
        if route.topic == settings.ledger.topic:
            yield (
                f"<routes.{number}.topic> is also <ledger.topic>: the account and what it counts could not be told "
                "apart; choose another topic for one of them."
            )


def _keys(settings: Settings) -> Iterator[str]:
    """Refuses routes without a key whose topic or tombstones need one."""
    compacted = {topic.name for topic in settings.kafka.topics.declare if "compact" in (topic.cleanup_policy or "")}
    for number, route in enumerate(settings.routes):
        if route.key:
            continue
        if route.empty_payload == "tombstone":
            yield (
                f"<routes.{number}.key>, but <routes.{number}.empty_payload>: a tombstone deletes its key, and there "
                'is none; give a key, or set empty_payload to "empty".'
            )
        elif route.topic in compacted:
            yield (
                f"<routes.{number}.key>, but <routes.{number}.topic> is declared with compaction: Kafka refuses "
                "records without a key there; give a key."
            )


REFUSED = (
    placeholders_known("kafka.client_id", "instance", "worker"),
    when(
        lambda s: s.kafka.delivery_timeout < s.kafka.request_timeout,
        "<kafka.delivery_timeout> is shorter than <kafka.request_timeout>: a batch would expire while its first "
        "request may still succeed, and be written twice; raise the first or lower the second.",
    ),
    when(
        lambda s: s.kafka.retry_backoff >= s.kafka.delivery_timeout,
        "<kafka.retry_backoff> is not shorter than <kafka.delivery_timeout>: a batch would expire before its first "
        "retry; lower the first or raise the second.",
    ),
    when(
        lambda s: s.kafka.metadata_max_age >= s.kafka.delivery_timeout,
        "<kafka.metadata_max_age> is not shorter than <kafka.delivery_timeout>: a batch would expire before a moved "
        "leader is noticed; lower the first or raise the second.",
    ),
    when(
        lambda s: s.kafka.batch_bytes > s.kafka.max_message_bytes,
        "<kafka.batch_bytes> is more than <kafka.max_message_bytes>: the broker would refuse full batches that do not "
        "compress well, and each would be split; lower the first, or raise the broker's limit and then the second.",
    ),
    when(
        lambda s: s.kafka.max_record_bytes + _FRAME_BYTES > s.kafka.max_message_bytes,
        f"<kafka.max_record_bytes> and {_FRAME_BYTES} bytes of frame, key and headers are more than "
        "<kafka.max_message_bytes>: the broker would refuse records that the gateway lets pass; lower the first, or "
        "raise the broker's limit and then the second.",
    ),
    when(
        lambda s: largest_request(s.kafka) > s.kafka.max_request_bytes,
        "<kafka.max_request_bytes> is less than a request of 1 MiB, or of one larger batch (<kafka.batch_bytes>, "
        "<kafka.max_record_bytes>), and its frame: the broker would close the connection; raise the broker's limit and "
        "then the first.",
    ),
    Rule(("kafka.topics.declare",), _declared_once),
    names_apart("routes", "metrics and dead letters"),
    Rule(("routes", "dead_letter.topic"), _route_topics),
    Rule(("routes", "dead_letter.topic", "ledger.topic", "kafka.topics.declare"), _compacted),
    when(
        lambda s: s.ledger.topic in s.dead_letter_topics,
        "<ledger.topic> is also a topic of dead letters (dead_letter.topic, routes[].dead_letter_topic): the account "
        "and what it counts could not be told apart; choose another topic for one of them.",
        "dead_letter.topic",
        "routes",
    ),
    Rule(("routes", "ledger.topic"), _ledger_topic),
    Rule(("routes", "kafka.topics.declare"), _keys),
)  # fmt: skip

WARNED = (unverified("kafka"),)

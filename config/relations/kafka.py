"""Relations between the settings of the Kafka side, and of routes and topics."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from collections import Counter
from typing import TYPE_CHECKING

from config.relations.mqtt import tls_files, unverified, wrong_placeholder
from config.relations.rules import Rule, View
from config.values.grammar import format_bytes
from config.values.names import check_kafka_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

_FRAME_BYTES = 1024  # a batch's header and a record's own (some 90 bytes), key and ordinary headers


def _tls(view: View) -> Iterator[str]:
    if view.changed("kafka", "tls") and not view.settings.kafka.security.endswith("SSL"):
        yield (
            f"{view.say('kafka', 'tls')} is given, but {view.say('kafka', 'security')}: nothing would be encrypted; "
            "set kafka.security to SSL or SASL_SSL, or remove the table."
        )
    yield from tls_files(view, "kafka")


def _client_id(view: View) -> Iterator[str]:
    if (wrong := wrong_placeholder(view.settings.kafka.client_id, ("instance", "worker"))) is not None:
        yield f"{view.say('kafka', 'client_id')}: {wrong}."


def _times(view: View) -> Iterator[str]:
    kafka = view.settings.kafka
    delivery = view.say("kafka", "delivery_timeout")
    if kafka.delivery_timeout < kafka.request_timeout:
        yield (
            f"{delivery} is shorter than {view.say('kafka', 'request_timeout')}: a batch would be given up while its "
            "first request may still succeed, and be written twice; raise the first or lower the second."
        )
    if kafka.retry_backoff >= kafka.delivery_timeout:
        yield (
            f"{view.say('kafka', 'retry_backoff')} is not shorter than {delivery}: a batch would be given up before "
            "its first retry; lower the first or raise the second."
        )
    if kafka.metadata_max_age >= kafka.delivery_timeout:
        yield (
            f"{view.say('kafka', 'metadata_max_age')} is not shorter than {delivery}: a batch would be given up "
            "before a moved leader is noticed; lower the first or raise the second."
        )


def _message_sizes(view: View) -> Iterator[str]:
    kafka = view.settings.kafka
    limit = view.say("kafka", "max_message_bytes")
    if kafka.batch_bytes > kafka.max_message_bytes:
        yield (
            f"{view.say('kafka', 'batch_bytes')} is more than {limit}: the broker would refuse full batches that do "
            "not compress well, and each would be split; lower the first, or raise the broker's limit and then the "
            "second."
        )
    if kafka.max_record_bytes + _FRAME_BYTES > kafka.max_message_bytes:
        yield (
            f"{view.say('kafka', 'max_record_bytes')} and {_FRAME_BYTES} bytes of frame, key and headers are more "
            f"than {limit}: the broker would refuse records that the gateway lets pass; lower the first, or raise the "
            "broker's limit and then the second."
        )


def _request_size(view: View) -> Iterator[str]:
    kafka, limit = view.settings.kafka, view.settings.kafka.max_request_bytes
    partitions = _partitions(view)
    largest = min(partitions * kafka.batch_bytes, max(view.settings.flow.memory_bytes, kafka.batch_bytes))
    if largest > limit:
        yield (
            f"{view.say('kafka', 'batch_bytes')} for each of {partitions} partitions, within "
            f"{view.say('flow', 'memory_bytes')}, makes requests of {format_bytes(largest)} when one broker leads "
            f"them all, more than {view.say('kafka', 'max_request_bytes')}: the broker would close the connection; "
            "lower batch_bytes or memory_bytes, or raise the broker's limit and then max_request_bytes."
        )


def _partitions(view: View) -> int:
    """How many partitions the settings let the gateway write to: as declared, or else as topics would be created."""
    settings = view.settings
    declared = {topic.name: topic.partitions for topic in settings.kafka.topics.declare}
    default = settings.kafka.topics.partitions
    names = {*settings.dead_letter_topics, *(route.topic for route in settings.routes if "$" not in route.topic)}
    made = sum(route.max_topics for route in settings.routes if "$" in route.topic)
    return sum(declared.get(name, default) for name in names) + made * default


def _declared_once(view: View) -> Iterator[str]:
    counts = Counter(topic.name for topic in view.settings.kafka.topics.declare)
    for name, count in counts.items():
        if count > 1:
            yield (
                f'{view.say("kafka", "topics", "declare")} names the topic "{name}" {count} times: which settings it '
                "should get "
                "is not clear; keep one."
            )


def _route_names(view: View) -> Iterator[str]:
    first: dict[str, int] = {}
    for number, route in enumerate(view.settings.routes):
        if route.name in first:
            yield (
                f"{view.say('routes', number, 'name')} is also the name of {view.say('routes', first[route.name])}: "
                "metrics and dead letters would not tell them apart; give each its own."
            )
        first.setdefault(route.name, number)


def _route_topics(view: View) -> Iterator[str]:
    taken = {view.settings.dead_letter.topic: view.say("dead_letter", "topic")}
    for number, route in enumerate(view.settings.routes):
        if route.dead_letter_topic is not None:
            taken.setdefault(route.dead_letter_topic, view.say("routes", number, "dead_letter_topic"))
    for number, route in enumerate(view.settings.routes):
        say = view.say("routes", number, "topic")
        if "$" in route.topic:
            continue  # a template: bridge.routing.template reads it, and bridge.routing.topic_rule checks what it makes
        try:
            check_kafka_topic(route.topic)
        except ValueError as error:
            yield f"{say}: {error}."
        if route.topic in taken:
            yield (
                f"{say} is also {taken[route.topic]}: good records and dead letters could not be told apart; choose "
                "another topic for one of them."
            )


def _compacted_dead_letters(view: View) -> Iterator[str]:
    for number, topic in enumerate(view.settings.kafka.topics.declare):
        if topic.name in view.settings.dead_letter_topics and "compact" in (topic.cleanup_policy or ""):
            yield (
                f'{view.say("kafka", "topics", "declare", number, "cleanup_policy")} for "{topic.name}", which takes '
                "dead letters: Kafka would keep only the last one of each key; leave cleanup_policy out."
            )


def _ledger_topic(view: View) -> Iterator[str]:
    ledger = view.settings.ledger.topic
    if not ledger:
        return
    say = view.say("ledger", "topic")
    if ledger in view.settings.dead_letter_topics:
        yield (
            f"{say} is also a topic of dead letters (dead_letter.topic, routes[].dead_letter_topic): the account and "
            "what it counts could not be told apart; choose another topic for one of them."
        )
    for number, route in enumerate(view.settings.routes):
        if route.topic == ledger:
            yield (
                f"{view.say('routes', number, 'topic')} is also {say}: the account and what it counts could not be "
                "told apart; choose another topic for one of them."
            )


def _keys(view: View) -> Iterator[str]:
    compacted = {
        topic.name for topic in view.settings.kafka.topics.declare if "compact" in (topic.cleanup_policy or "")
    }
    for number, route in enumerate(view.settings.routes):
        if route.key:
            continue
        key = view.say("routes", number, "key")
        if route.empty_payload == "tombstone":
            yield (
                f"{key}, but {view.say('routes', number, 'empty_payload')}: a tombstone deletes its key, and there is "
                "none; give "
                'a key, or set empty_payload to "empty".'
            )
        elif route.topic in compacted:
            yield (
                f"{key}, but {view.say('routes', number, 'topic')} is declared with compaction: Kafka refuses records "
                "without a key there; give a key."
            )


REFUSED = (
    Rule(("kafka.security", "kafka.tls"), _tls),
    Rule(("kafka.client_id",), _client_id),
    Rule(("kafka.delivery_timeout", "kafka.request_timeout", "kafka.retry_backoff", "kafka.metadata_max_age"), _times),
    Rule(("kafka.batch_bytes", "kafka.max_record_bytes", "kafka.max_message_bytes"), _message_sizes),
    Rule(
        (
            "kafka.batch_bytes",
            "kafka.max_request_bytes",
            "kafka.topics",
            "flow.memory_bytes",
            "routes",
            "dead_letter.topic",
        ),
        _request_size,
    ),
    Rule(("kafka.topics.declare",), _declared_once),
    Rule(("routes",), _route_names),
    Rule(("routes", "dead_letter.topic"), _route_topics),
    Rule(("routes", "dead_letter.topic", "kafka.topics.declare"), _compacted_dead_letters),
    Rule(("routes", "dead_letter.topic", "ledger.topic"), _ledger_topic),
    Rule(("routes", "kafka.topics.declare"), _keys),
)


def _unverified(view: View) -> Iterator[str]:
    if not view.settings.kafka.tls.verify:
        yield unverified(view, "kafka")


WARNED = (Rule(("kafka.tls",), _unverified),)

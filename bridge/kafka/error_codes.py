"""The meaning of Kafka's error codes for a batch: one table, by Kafka's protocol documentation.

aiokafka's classes are not used: they have only one code above 72, and take several retriable codes (2, 9, 13) for
final. A contract test reads names and flags from Kafka's own jar.
"""

from typing import Final, Literal

import aiokafka.errors as kafka_errors

from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    ReplicasMissingError,
    RetriableError,
    TimestampError,
    UnreachableError,
)
from bridge.wire import DeadLetterReason
from config.error_words import words

Outcome = Literal["stored", "retry", "poisoned", "timestamp", "refused", "incarnation"]
"""``retry``: send the same bytes again. ``poisoned``: Kafka will never take one of its records. ``timestamp``: send the
records with other timestamps. ``refused``: hold the batch until an operator corrects a right or a setting.
``incarnation``: replace the producer (ids, connections, protocol versions), also for codes outside the table."""

_STORED: Final = {0: "NONE", 46: "DUPLICATE_SEQUENCE_NUMBER"}  # 46: stored before, its offset is unknown
_RETRY: Final = {
    # Not retriable by Kafka's flag, because the batch may be stored. With the same sequence number it is stored once,
    # and one partition's broken log must not cost the others their producer.
    -1: "UNKNOWN_SERVER_ERROR",
    2: "CORRUPT_MESSAGE", 3: "UNKNOWN_TOPIC_OR_PARTITION", 5: "LEADER_NOT_AVAILABLE", 6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT", 8: "BROKER_NOT_AVAILABLE", 9: "REPLICA_NOT_AVAILABLE", 13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS", 15: "COORDINATOR_NOT_AVAILABLE", 16: "NOT_COORDINATOR",
    19: "NOT_ENOUGH_REPLICAS", 20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 41: "NOT_CONTROLLER",
    51: "CONCURRENT_TRANSACTIONS", 56: "KAFKA_STORAGE_ERROR", 72: "LISTENER_NOT_FOUND", 74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH", 78: "OFFSET_NOT_AVAILABLE", 80: "PREFERRED_LEADER_NOT_AVAILABLE",
    83: "ELIGIBLE_LEADERS_NOT_AVAILABLE", 89: "THROTTLING_QUOTA_EXCEEDED", 100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
    # For consumers and operators only; retriable too.
    70: "FETCH_SESSION_ID_NOT_FOUND", 71: "INVALID_FETCH_SESSION_EPOCH", 84: "ELECTION_NOT_NEEDED",
    88: "UNSTABLE_OFFSET_COMMIT", 106: "FETCH_SESSION_TOPIC_ID_ERROR", 122: "SHARE_SESSION_NOT_FOUND",
    123: "INVALID_SHARE_SESSION_EPOCH", 133: "SHARE_SESSION_LIMIT_REACHED",
}  # fmt: skip
_TIMESTAMP: Final = 32
_BAD_RECORD = "it has a record without a key for a compacted topic, or one that the broker's own check refuses"
_POISONED: Final = {
    10: ("MESSAGE_TOO_LARGE", "it is larger than the topic's max.message.bytes"),
    17: ("INVALID_TOPIC_EXCEPTION", "no topic may have that name"),
    18: ("RECORD_LIST_TOO_LARGE", "it is larger than the topic's segment.bytes"),
    44: ("POLICY_VIOLATION", "a policy of the cluster, or of a proxy before it, forbids a record of it"),
    87: ("INVALID_RECORD", _BAD_RECORD),
}
"""Codes that the same records get again, and their reasons. A batch of one record becomes a dead letter."""
_RIGHTS = "Check kafka.sasl and the ACLs: Write and Describe on the topics."
_REFUSED: Final = {
    29: ("TOPIC_AUTHORIZATION_FAILED", _RIGHTS),
    31: ("CLUSTER_AUTHORIZATION_FAILED", "Check the ACLs: IdempotentWrite on the cluster, or Write on any topic."),
    33: ("UNSUPPORTED_SASL_MECHANISM", "Set kafka.sasl.mechanism to one that the listener has."),
    34: ("ILLEGAL_SASL_STATE", _RIGHTS),
    43: ("UNSUPPORTED_FOR_MESSAGE_FORMAT", "The topic's message.format.version is older than headers: raise it."),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _RIGHTS),
    54: ("SECURITY_DISABLED", "The broker has no authorizer, but something asks for one: check its settings."),
    58: ("SASL_AUTHENTICATION_FAILED", "Check kafka.sasl.username, password and mechanism."),
    76: ("UNSUPPORTED_COMPRESSION_TYPE", "The broker does not know this codec: set another kafka.compression."),
}
_INCARNATION: Final = {
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    49: "INVALID_PRODUCER_ID_MAPPING",
    59: "UNKNOWN_PRODUCER_ID",
    90: "PRODUCER_FENCED",
}
_NAMES: Final[dict[int, str]] = {
    **_STORED,
    **_RETRY,
    **{code: name for code, (name, _) in (*_POISONED.items(), *_REFUSED.items())},
    **_INCARNATION,
    _TIMESTAMP: "INVALID_TIMESTAMP",
}
_PLACE_LOST: Final = frozenset({45, 59})
_NO_LEADER: Final = frozenset({3, 5, 6, 100, 103})
_FEW_REPLICAS: Final = frozenset({19, 20})
_TOO_LARGE: Final = frozenset({10, 18})
_REFUSED_CLASSES = (kafka_errors.AuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
_UNREACHABLE_CLASSES = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.StaleMetadata,
)


class AnswerError(kafka_errors.BrokerResponseError):  # type: ignore[misc]
    """A broker's error. ``records`` are the numbers of the records that it names (KIP-467)."""

    def __init__(self, code: int, records: tuple[int, ...] = ()) -> None:
        super().__init__(_NAMES.get(code, f"error {code}"))  # a text, for ``error_words.words``
        self.errno = code
        self.records = records

    def __str__(self) -> str:
        return str(self.args[0])


def outcome(error: int | kafka_errors.KafkaError) -> Outcome:
    """What to do with a batch after an error code, or after an error that aiokafka raised without one."""
    if isinstance(error, kafka_errors.BrokerResponseError):
        error = error.errno
    if isinstance(error, int):
        if error in _STORED:
            return "stored"
        if error in _RETRY:
            return "retry"
        if error in _POISONED:
            return "poisoned"
        if error == _TIMESTAMP:
            return "timestamp"
        return "refused" if error in _REFUSED else "incarnation"
    if isinstance(error, _REFUSED_CLASSES):
        return "refused"
    return "retry" if error.retriable else "incarnation"


def loses_place(error: kafka_errors.KafkaError) -> bool:
    """Whether Kafka has lost the producer's place in a partition's sequence, with batches or without."""
    return isinstance(error, AnswerError) and error.errno in _PLACE_LOST


def translate(error: BaseException, topic: str | None = None) -> BridgeError:
    """Our most specific error for one of aiokafka's; ``topic`` is the batch's topic."""
    if isinstance(error, BridgeError):
        return error
    a_batch = f"a batch to topic {topic}" if topic is not None else "us"
    if not isinstance(error, kafka_errors.KafkaError):
        return IncarnationError(words(error))
    code = error.errno if isinstance(error, kafka_errors.BrokerResponseError) else None
    text = words(error)
    match outcome(error):
        case "refused":
            advice = _REFUSED[code][1] if code in _REFUSED else _RIGHTS
            return RefusedError(f"Kafka refused {a_batch}: {text}. {advice}")
        case "poisoned":
            assert code is not None
            reason = DeadLetterReason.TOO_LARGE if code in _TOO_LARGE else DeadLetterReason.INVALID_RECORD
            sentence = f"Kafka will not take {a_batch}: {_POISONED[code][1]} ({text})."
            return PoisonedError(sentence, reason, _named(error))
        case "timestamp":
            return TimestampError(
                f"Kafka refuses timestamps in {a_batch} ({text}): compare the gateway's clock with the broker's, and "
                "look at the topic's message.timestamp.after.max.ms and message.timestamp.before.max.ms.",
                _named(error),
            )
        case "retry":
            kind = RetriableError
            if code in _FEW_REPLICAS:
                kind = ReplicasMissingError
                text = f"fewer copies are in sync than min.insync.replicas asks for ({text})"
            elif code in _NO_LEADER:
                kind = LeaderMissingError
            elif isinstance(error, _UNREACHABLE_CLASSES):
                kind = UnreachableError
            return kind(f"Kafka did not take {a_batch} now: {text}.")
        case _:
            return IncarnationError(f"A batch to topic {topic} failed: {text}." if topic is not None else text)


def _named(error: kafka_errors.KafkaError) -> tuple[int, ...]:
    return error.records if isinstance(error, AnswerError) else ()

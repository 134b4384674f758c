"""Each of Kafka's error codes was read in its protocol documentation, and this is what each means for a batch.

The names and numbers are those of Kafka 4.3.1; an integration test compares them with its jar.
"""

from __future__ import annotations

import aiokafka.errors as kafka_errors
import pytest

from bridge.errors import (
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    ReplicasMissingError,
    RetriableError,
    TimestampError,
    UnreachableError,
)
from bridge.kafka.error_codes import AnswerError, outcome, translate
from bridge.wire import DeadLetterReason

REVIEWED: dict[str, dict[int, str]] = {
    "stored": {
        0: "NONE",
        46: "DUPLICATE_SEQUENCE_NUMBER",
    },
    "retry": {
        -1: "UNKNOWN_SERVER_ERROR",
        2: "CORRUPT_MESSAGE",
        3: "UNKNOWN_TOPIC_OR_PARTITION",
        5: "LEADER_NOT_AVAILABLE",
        6: "NOT_LEADER_OR_FOLLOWER",
        7: "REQUEST_TIMED_OUT",
        8: "BROKER_NOT_AVAILABLE",
        9: "REPLICA_NOT_AVAILABLE",
        13: "NETWORK_EXCEPTION",
        14: "COORDINATOR_LOAD_IN_PROGRESS",
        15: "COORDINATOR_NOT_AVAILABLE",
        16: "NOT_COORDINATOR",
        19: "NOT_ENOUGH_REPLICAS",
        20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        41: "NOT_CONTROLLER",
        51: "CONCURRENT_TRANSACTIONS",
        56: "KAFKA_STORAGE_ERROR",
        70: "FETCH_SESSION_ID_NOT_FOUND",
        71: "INVALID_FETCH_SESSION_EPOCH",
        72: "LISTENER_NOT_FOUND",
        74: "FENCED_LEADER_EPOCH",
        75: "UNKNOWN_LEADER_EPOCH",
        78: "OFFSET_NOT_AVAILABLE",
        80: "PREFERRED_LEADER_NOT_AVAILABLE",
        83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        84: "ELECTION_NOT_NEEDED",
        88: "UNSTABLE_OFFSET_COMMIT",
        89: "THROTTLING_QUOTA_EXCEEDED",
        100: "UNKNOWN_TOPIC_ID",
        103: "INCONSISTENT_TOPIC_ID",
        106: "FETCH_SESSION_TOPIC_ID_ERROR",
        122: "SHARE_SESSION_NOT_FOUND",
        123: "INVALID_SHARE_SESSION_EPOCH",
        133: "SHARE_SESSION_LIMIT_REACHED",
    },
    "poisoned": {
        10: "MESSAGE_TOO_LARGE",
        17: "INVALID_TOPIC_EXCEPTION",
        18: "RECORD_LIST_TOO_LARGE",
        44: "POLICY_VIOLATION",
        87: "INVALID_RECORD",
    },
    "timestamp": {
        32: "INVALID_TIMESTAMP",
    },
    "refused": {
        29: "TOPIC_AUTHORIZATION_FAILED",
        31: "CLUSTER_AUTHORIZATION_FAILED",
        33: "UNSUPPORTED_SASL_MECHANISM",
        34: "ILLEGAL_SASL_STATE",
        43: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        54: "SECURITY_DISABLED",
        58: "SASL_AUTHENTICATION_FAILED",
        76: "UNSUPPORTED_COMPRESSION_TYPE",
    },
    "incarnation": {
        1: "OFFSET_OUT_OF_RANGE",
        4: "INVALID_FETCH_SIZE",
        11: "STALE_CONTROLLER_EPOCH",
        12: "OFFSET_METADATA_TOO_LARGE",
        21: "INVALID_REQUIRED_ACKS",
        22: "ILLEGAL_GENERATION",
        23: "INCONSISTENT_GROUP_PROTOCOL",
        24: "INVALID_GROUP_ID",
        25: "UNKNOWN_MEMBER_ID",
        26: "INVALID_SESSION_TIMEOUT",
        27: "REBALANCE_IN_PROGRESS",
        28: "INVALID_COMMIT_OFFSET_SIZE",
        30: "GROUP_AUTHORIZATION_FAILED",
        35: "UNSUPPORTED_VERSION",
        36: "TOPIC_ALREADY_EXISTS",
        37: "INVALID_PARTITIONS",
        38: "INVALID_REPLICATION_FACTOR",
        39: "INVALID_REPLICA_ASSIGNMENT",
        40: "INVALID_CONFIG",
        42: "INVALID_REQUEST",
        45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        47: "INVALID_PRODUCER_EPOCH",
        48: "INVALID_TXN_STATE",
        49: "INVALID_PRODUCER_ID_MAPPING",
        50: "INVALID_TRANSACTION_TIMEOUT",
        52: "TRANSACTION_COORDINATOR_FENCED",
        55: "OPERATION_NOT_ATTEMPTED",
        57: "LOG_DIR_NOT_FOUND",
        59: "UNKNOWN_PRODUCER_ID",
        60: "REASSIGNMENT_IN_PROGRESS",
        61: "DELEGATION_TOKEN_AUTH_DISABLED",
        62: "DELEGATION_TOKEN_NOT_FOUND",
        63: "DELEGATION_TOKEN_OWNER_MISMATCH",
        64: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        65: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        66: "DELEGATION_TOKEN_EXPIRED",
        67: "INVALID_PRINCIPAL_TYPE",
        68: "NON_EMPTY_GROUP",
        69: "GROUP_ID_NOT_FOUND",
        73: "TOPIC_DELETION_DISABLED",
        77: "STALE_BROKER_EPOCH",
        79: "MEMBER_ID_REQUIRED",
        81: "GROUP_MAX_SIZE_REACHED",
        82: "FENCED_INSTANCE_ID",
        85: "NO_REASSIGNMENT_IN_PROGRESS",
        86: "GROUP_SUBSCRIBED_TO_TOPIC",
        90: "PRODUCER_FENCED",
        91: "RESOURCE_NOT_FOUND",
        92: "DUPLICATE_RESOURCE",
        93: "UNACCEPTABLE_CREDENTIAL",
        94: "INCONSISTENT_VOTER_SET",
        95: "INVALID_UPDATE_VERSION",
        96: "FEATURE_UPDATE_FAILED",
        97: "PRINCIPAL_DESERIALIZATION_FAILURE",
        98: "SNAPSHOT_NOT_FOUND",
        99: "POSITION_OUT_OF_RANGE",
        101: "DUPLICATE_BROKER_REGISTRATION",
        102: "BROKER_ID_NOT_REGISTERED",
        104: "INCONSISTENT_CLUSTER_ID",
        105: "TRANSACTIONAL_ID_NOT_FOUND",
        107: "INELIGIBLE_REPLICA",
        108: "NEW_LEADER_ELECTED",
        109: "OFFSET_MOVED_TO_TIERED_STORAGE",
        110: "FENCED_MEMBER_EPOCH",
        111: "UNRELEASED_INSTANCE_ID",
        112: "UNSUPPORTED_ASSIGNOR",
        113: "STALE_MEMBER_EPOCH",
        114: "MISMATCHED_ENDPOINT_TYPE",
        115: "UNSUPPORTED_ENDPOINT_TYPE",
        116: "UNKNOWN_CONTROLLER_ID",
        117: "UNKNOWN_SUBSCRIPTION_ID",
        118: "TELEMETRY_TOO_LARGE",
        119: "INVALID_REGISTRATION",
        120: "TRANSACTION_ABORTABLE",
        121: "INVALID_RECORD_STATE",
        124: "FENCED_STATE_EPOCH",
        125: "INVALID_VOTER_KEY",
        126: "DUPLICATE_VOTER",
        127: "VOTER_NOT_FOUND",
        128: "INVALID_REGULAR_EXPRESSION",
        129: "REBOOTSTRAP_REQUIRED",
        130: "STREAMS_INVALID_TOPOLOGY",
        131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
        132: "STREAMS_TOPOLOGY_FENCED",
    },
}
CODES = [(code, name, meaning) for meaning, codes in REVIEWED.items() for code, name in codes.items()]
CLASSES = {
    "retry": RetriableError, "poisoned": PoisonedError, "timestamp": TimestampError, "refused": RefusedError,
    "incarnation": IncarnationError,
}  # fmt: skip
KNOWN = [(code, name, meaning) for code, name, meaning in CODES if meaning not in {"stored", "incarnation"}]


@pytest.mark.parametrize(("code", "name", "meaning"), CODES, ids=str)
def test_a_code_has_its_reviewed_meaning(code: int, name: str, meaning: str) -> None:
    assert outcome(code) == meaning
    assert outcome(AnswerError(code)) == meaning
    if meaning == "stored":
        return
    error = translate(AnswerError(code), "telemetry")
    assert isinstance(error, CLASSES[meaning])
    sentence = str(error)
    assert "telemetry" in sentence
    assert sentence.endswith(".")
    assert ".." not in sentence


@pytest.mark.parametrize(("code", "name", "_meaning"), KNOWN, ids=str)
def test_a_code_that_is_acted_upon_is_named(code: int, name: str, _meaning: str) -> None:
    assert name in str(translate(AnswerError(code), "telemetry"))


def test_a_code_of_a_kafka_to_come_costs_the_producer_and_nothing_else() -> None:
    error = translate(AnswerError(999), "telemetry")
    assert type(error) is IncarnationError
    assert "error 999" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, LeaderMissingError), (5, LeaderMissingError), (6, LeaderMissingError), (100, LeaderMissingError),
        (19, ReplicasMissingError), (20, ReplicasMissingError), (56, RetriableError), (-1, RetriableError),
    ],
)  # fmt: skip
def test_a_retry_says_what_it_waits_for(code: int, kind: type[RetriableError]) -> None:
    assert type(translate(AnswerError(code), "telemetry")) is kind


@pytest.mark.parametrize(
    ("code", "reason"),
    [(10, "TOO_LARGE"), (18, "TOO_LARGE"), (17, "INVALID_RECORD"), (44, "INVALID_RECORD"),
     (87, "INVALID_RECORD")],
)  # fmt: skip
def test_a_poisoned_record_s_reason(code: int, reason: str) -> None:
    error = translate(AnswerError(code), "telemetry")
    assert isinstance(error, PoisonedError)
    assert error.reason is DeadLetterReason[reason]


def test_the_records_that_kafka_names_are_in_the_error() -> None:
    for code, kind in ((87, PoisonedError), (32, TimestampError)):
        error = translate(AnswerError(code, (3, 7)), "telemetry")
        assert isinstance(error, kind)
        assert error.records == (3, 7)


def test_what_is_wrong_with_a_topic_or_the_settings_buries_no_message() -> None:
    """Rights, codecs and formats: every record would be refused, and none is at fault."""
    for code in (29, 31, 43, 53, 54, 58, 76):
        assert type(translate(AnswerError(code), "telemetry")) is RefusedError


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (kafka_errors.KafkaConnectionError("reset"), UnreachableError),
        (kafka_errors.NodeNotReadyError("not there"), UnreachableError),
        (kafka_errors.RequestTimedOutError(), UnreachableError),
        (kafka_errors.StaleMetadata("who?"), UnreachableError),
        (kafka_errors.CorrelationIdError("7, not 8"), RetriableError),
        (kafka_errors.AuthenticationFailedError("bad password"), RefusedError),
        (kafka_errors.UnsupportedSaslMechanismError("SCRAM"), RefusedError),
        (kafka_errors.SaslAuthenticationFailed("bad password"), RefusedError),
        (kafka_errors.IncompatibleBrokerVersion("too old"), IncarnationError),
        (kafka_errors.KafkaError("anything else"), IncarnationError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_what_the_client_raises_by_itself(raised: kafka_errors.KafkaError, kind: type[Exception]) -> None:
    assert type(translate(raised, "telemetry")) is kind

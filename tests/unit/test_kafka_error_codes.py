"""Each of Kafka's error codes was read in its protocol documentation, and this is what each means for a batch.

An integration test compares numbers and names with Kafka's own jar.
"""

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
from tests.kinds import is_a

MEANINGS = {
    "stored": {0, 46},
    "retry": {
        *(-1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
        *(100, 103, 106, 122, 123, 133),
    },
    "poisoned": {10, 17, 18, 44, 87},
    "timestamp": {32},
    "refused": {29, 31, 33, 34, 43, 53, 54, 58, 76},
}
REVIEWED = range(-1, 134)
"""Those of Kafka 4.3.1. What has no meaning above costs the producer."""
CODES = {code: meaning for meaning, codes in MEANINGS.items() for code in codes}
CLASSES = {
    "retry": RetriableError, "poisoned": PoisonedError, "timestamp": TimestampError, "refused": RefusedError,
    "incarnation": IncarnationError,
}  # fmt: skip


def test_each_code_has_its_reviewed_meaning() -> None:
    for code in REVIEWED:
        answer, meaning = AnswerError(code), CODES.get(code, "incarnation")
        assert outcome(code) == outcome(answer) == meaning, code
        if meaning == "stored":
            continue
        error = translate(answer, "telemetry")
        assert isinstance(error, CLASSES[meaning]), code
        sentence = str(error)
        assert "telemetry" in sentence
        assert str(answer) in sentence
        assert meaning == "incarnation" or str(answer) != f"error {code}", "what is acted upon has a name"
        assert sentence.endswith("."), sentence
        assert ".." not in sentence


def test_a_code_of_a_kafka_to_come_costs_the_producer_and_nothing_else() -> None:
    error = translate(AnswerError(999), "telemetry")
    assert type(error) is IncarnationError
    assert "error 999" in str(error)


@pytest.mark.parametrize(("code", "kind"), [
    (3, LeaderMissingError), (5, LeaderMissingError), (6, LeaderMissingError), (100, LeaderMissingError),
    (19, ReplicasMissingError), (20, ReplicasMissingError), (56, RetriableError), (-1, RetriableError),
])  # fmt: skip
def test_a_retry_says_what_it_waits_for(code: int, kind: type[Exception]) -> None:
    assert type(translate(AnswerError(code), "telemetry")) is kind


@pytest.mark.parametrize(("code", "reason"), [
    (10, "TOO_LARGE"), (18, "TOO_LARGE"), (17, "INVALID_RECORD"), (44, "INVALID_RECORD"), (87, "INVALID_RECORD"),
])  # fmt: skip
def test_a_poisoned_record_s_reason(code: int, reason: str) -> None:
    assert is_a(PoisonedError, translate(AnswerError(code), "telemetry")).reason is DeadLetterReason[reason]


def test_the_records_that_kafka_names_are_in_the_error() -> None:
    for code, kind in ((87, PoisonedError), (32, TimestampError)):
        assert is_a(kind, translate(AnswerError(code, (3, 7)), "telemetry")).records == (3, 7)


@pytest.mark.parametrize(("raised", "kind"), [
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
], ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__)  # fmt: skip
def test_what_the_client_raises_by_itself(raised: kafka_errors.KafkaError, kind: type[Exception]) -> None:
    assert type(translate(raised, "telemetry")) is kind

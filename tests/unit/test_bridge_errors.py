"""Every way Kafka can fail has one answer: send again, take apart, hold, or replace the producer."""

from __future__ import annotations

import inspect

import aiokafka.errors as kafka_errors
import pytest

from bridge import errors
from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    RetriableError,
    TopicMissingError,
    UnreachableError,
)
from bridge.kafka_connection import InvalidRecordError, translate
from bridge.wire import DeadLetterReason
from config.errors import ExitStatus
from gateway.metrics import send_failure_labels

KAFKA_ERRORS = sorted(
    {
        one
        for one in (*vars(kafka_errors).values(), InvalidRecordError)
        if inspect.isclass(one)
        and issubclass(one, kafka_errors.KafkaError)
        and one is not kafka_errors.BrokerResponseError
    },
    key=lambda one: one.__name__,
)
POISONED = {
    "MessageSizeTooLargeError": DeadLetterReason.TOO_LARGE,
    "RecordListTooLargeError": DeadLetterReason.TOO_LARGE,
    "InvalidRecordError": DeadLetterReason.INVALID_RECORD,
    "InvalidTimestampError": DeadLetterReason.INVALID_RECORD,
    "InvalidTopicError": DeadLetterReason.INVALID_RECORD,
    "UnsupportedForMessageFormatError": DeadLetterReason.INVALID_RECORD,
}
REFUSED = {
    "AuthenticationFailedError",
    "ClusterAuthorizationFailedError",
    "IllegalSaslStateError",
    "SaslAuthenticationFailed",
    "TopicAuthorizationFailedError",
    "TransactionalIdAuthorizationFailed",
    "UnsupportedSaslMechanismError",
}
BRANCHES = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, BridgeError)]


@pytest.mark.parametrize("kind", KAFKA_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_client_has_one_answer(kind: type[kafka_errors.KafkaError]) -> None:
    error = kind("what the broker said") if kind is not kafka_errors.NoOffsetForPartitionError else kind({})
    ours = translate(error, "telemetry")
    if kind.__name__ in POISONED:
        assert isinstance(ours, PoisonedError)
        assert ours.reason is POISONED[kind.__name__]
    elif kind.__name__ in REFUSED:
        assert type(ours) is RefusedError
    else:
        assert type(ours) is IncarnationError
    sentence = str(ours)
    assert "telemetry" in sentence
    assert kind.__name__ in sentence
    assert sentence.endswith(".")
    assert ".." not in sentence


def test_what_is_poison_is_no_matter_of_an_operating_system_s_number() -> None:
    """EPIPE is 32 as well, the number of INVALID_TIMESTAMP: a broken pipe must not bury a message."""
    for number in (10, 17, 18, 32, 43, 87):
        assert type(translate(OSError(number, "broken"))) is IncarnationError


def test_an_error_of_ours_stays_itself() -> None:
    for error in (LeaderMissingError("x"), PoisonedError("x", DeadLetterReason.TOO_LARGE), RefusedError("x")):
        assert translate(error) is error


def test_only_what_may_be_sent_again_as_it_is_is_retriable() -> None:
    retriable = {cls for cls in BRANCHES if issubclass(cls, RetriableError)}
    assert retriable == {RetriableError, LeaderMissingError, UnreachableError}


def test_the_exit_status_says_whether_another_try_is_vain() -> None:
    assert {cls.__name__: cls.exit_status for cls in BRANCHES if cls.exit_status is not ExitStatus.FAILED} == {
        "UnreachableError": ExitStatus.UNAVAILABLE,
        "TopicMissingError": ExitStatus.UNAVAILABLE,
        "RefusedError": ExitStatus.REFUSED,
        "SpoolError": ExitStatus.CONFIG,
    }
    assert issubclass(TopicMissingError, BridgeError)


def test_each_failure_of_a_batch_has_a_label_of_its_own_in_the_metrics() -> None:
    failures = [
        IncarnationError("x"),
        LeaderMissingError("x"),
        PoisonedError("x", DeadLetterReason.TOO_LARGE),
        RefusedError("x"),
        UnreachableError("x"),
    ]
    reasons = [send_failure_labels(error)[0] for error in failures]
    assert len(set(reasons)) == len(failures), reasons

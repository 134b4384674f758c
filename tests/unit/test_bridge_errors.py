"""Every way Kafka can fail has one answer: send again, take apart, hold, or replace the producer."""

import inspect

from bridge import errors
from bridge.errors import BridgeError, IncarnationError, LeaderMissingError, PoisonedError, RefusedError, RetriableError
from bridge.kafka.error_codes import translate
from bridge.wire import DeadLetterReason
from config.errors import ExitStatus

BRANCHES = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, BridgeError)]


def test_what_is_poison_is_no_matter_of_an_operating_system_s_number() -> None:
    """EPIPE is 32 as well, the number of INVALID_TIMESTAMP: a broken pipe must not bury a message."""
    for number in (10, 17, 18, 32, 43, 87):
        assert type(translate(OSError(number, "broken"))) is IncarnationError


def test_an_error_of_ours_stays_itself() -> None:
    for error in (LeaderMissingError("x"), PoisonedError("x", DeadLetterReason.TOO_LARGE), RefusedError("x")):
        assert translate(error) is error


def test_only_what_may_be_sent_again_as_it_is_is_retriable() -> None:
    retriable = {cls.__name__ for cls in BRANCHES if issubclass(cls, RetriableError)}
    assert retriable == {"RetriableError", "LeaderMissingError", "ReplicasMissingError", "UnreachableError"}


def test_the_exit_status_says_whether_another_try_is_vain() -> None:
    assert {cls.__name__: cls.exit_status for cls in BRANCHES if cls.exit_status is not ExitStatus.FAILED} == {
        "UnreachableError": ExitStatus.UNAVAILABLE,
        "TopicMissingError": ExitStatus.UNAVAILABLE,
        "RefusedError": ExitStatus.REFUSED,
        "SpoolError": ExitStatus.CONFIG,
        "SpoolWriteError": ExitStatus.UNAVAILABLE,
    }

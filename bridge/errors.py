"""The data path's branch of the error tree.

GatewayError
└── BridgeError
    ├── RetriableError          the same batch may be sent again
    │   ├── LeaderMissingError      nobody leads the partition now
    │   ├── ReplicasMissingError    fewer replicas are in sync than the topic asks for
    │   └── UnreachableError        no broker answered
    ├── PoisonedError           a record in the batch can never be written as it is
    ├── TimestampError          Kafka refuses the timestamps of some records: a clock is wrong, no record is
    ├── IncarnationError        this producer incarnation is of no more use; a new one may succeed
    ├── RefusedError            Kafka refused our credentials or rights
    ├── TopicMissingError       a topic does not exist and is not ours to create
    └── SpoolError              the spool cannot be used: another's, a newer one's, or not readable
        ├── SpoolFullError          it holds spool.max_bytes already: wait until some of it is delivered
        └── SpoolWriteError         the disk took nothing; the same may be stored once it does
"""

from __future__ import annotations

__all__ = [
    "BridgeError",
    "IncarnationError",
    "LeaderMissingError",
    "PoisonedError",
    "RefusedError",
    "ReplicasMissingError",
    "RetriableError",
    "SpoolError",
    "SpoolFullError",
    "SpoolWriteError",
    "TimestampError",
    "TopicMissingError",
    "UnreachableError",
]

from bridge.wire import DeadLetterReason
from config.errors import ExitStatus, GatewayError


class BridgeError(GatewayError):
    """Any failure on the way from a received message to an acknowledged record."""


class RetriableError(BridgeError):
    """The same batch may be sent again, by the same producer."""


class LeaderMissingError(RetriableError):
    """The partition has no leader at the moment; Kafka elects one, or its brokers are down."""


class ReplicasMissingError(RetriableError):
    """Too few replicas are in sync for the topic's ``min.insync.replicas``: brokers are down, or far behind."""


class UnreachableError(RetriableError):
    """No broker answered."""

    exit_status = ExitStatus.UNAVAILABLE


class PoisonedError(BridgeError):
    """Kafka will never take a record of this batch: too large, or invalid.

    ``records`` are the numbers of those that Kafka names (KIP-467). It names none of what is too large, nor does one
    older than 2.4: then splitting finds which it is."""

    def __init__(
        self,
        sentence: str,
        reason: DeadLetterReason = DeadLetterReason.INVALID_RECORD,
        records: tuple[int, ...] = (),
    ) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.records = records


class TimestampError(BridgeError):
    """Kafka refuses the timestamps of some records. No record is at fault for a clock: another timestamp will do.

    ``records`` are the numbers of those that Kafka names (KIP-467), none where it is older than 2.4."""

    def __init__(self, sentence: str, records: tuple[int, ...] = ()) -> None:
        super().__init__(sentence)
        self.records = records


class IncarnationError(BridgeError):
    """The producer's sequence numbers are lost or its delivery time has passed: replace it, then send again."""


class RefusedError(BridgeError):
    """Kafka refused our credentials, or our right to write. No record's fault: hold it and tell the operator."""

    exit_status = ExitStatus.REFUSED


class TopicMissingError(BridgeError):
    """A topic that settings name does not exist."""

    exit_status = ExitStatus.UNAVAILABLE


class SpoolError(BridgeError):
    """The spool cannot be used as it is; trying again is vain until somebody corrects it."""

    exit_status = ExitStatus.CONFIG


class SpoolFullError(SpoolError):
    """There is no room for these batches. Nothing of them was stored."""

    exit_status = ExitStatus.FAILED


class SpoolWriteError(SpoolError):
    """The disk is full or broken. Nothing of what was to be stored is, and it may be tried again."""

    exit_status = ExitStatus.UNAVAILABLE

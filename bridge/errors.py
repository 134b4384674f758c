"""The data path's branch of the error tree.

GatewayError
└── BridgeError
    ├── RetriableError          the same batch may be sent again
    │   ├── LeaderMissingError      the partition has no leader now
    │   ├── ReplicasMissingError    fewer replicas are in sync than the topic asks for
    │   └── UnreachableError        no broker answered
    ├── PoisonedError           a record in the batch can never be written as it is
    ├── TimestampError          Kafka refuses the timestamps of some records: a clock is wrong, no record is
    ├── IncarnationError        this producer cannot go on; another one may succeed
    ├── RefusedError            Kafka refused the credentials, or rights are missing
    ├── TopicMissingError       a topic does not exist, and the gateway may not create it
    └── SpoolError              the spool cannot be used: another's, a newer one's, or not readable
        ├── SpoolFullError          it holds spool.max_bytes already: wait until some of it is delivered
        └── SpoolWriteError         the disk took nothing; the same may be stored once it does
"""

from bridge.wire import DeadLetterReason
from config.errors import ExitStatus, GatewayError


class BridgeError(GatewayError):
    """Any failure on the way from a received message to an acknowledged record."""


class RetriableError(BridgeError):
    """A failure after which the same producer may send the same batch again."""


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
        records: tuple[int, ...] = (),  # numbers in the batch; empty: unknown
    ) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.records = records


class TimestampError(BridgeError):
    """Kafka refuses the timestamps of some records. A clock is wrong, no record is: another timestamp is accepted.

    ``records`` are the numbers of those that Kafka names (KIP-467), none where it is older than 2.4."""

    def __init__(self, sentence: str, records: tuple[int, ...] = ()) -> None:
        super().__init__(sentence)
        self.records = records


class IncarnationError(BridgeError):
    """The producer's sequence numbers are lost or its delivery time has passed: replace it, then send again."""


class RefusedError(BridgeError):
    """Kafka refused the credentials, or the right to write is missing. No record is at fault: the batch is held."""

    exit_status = ExitStatus.REFUSED


class TopicMissingError(BridgeError):
    """A topic that settings name does not exist."""

    exit_status = ExitStatus.UNAVAILABLE


class SpoolError(BridgeError):
    """The spool cannot be used until an operator corrects it."""

    exit_status = ExitStatus.CONFIG


class SpoolFullError(SpoolError):
    """There is no room for these batches. None was stored."""

    exit_status = ExitStatus.FAILED


class SpoolWriteError(SpoolError):
    """The disk is full or failing. No batch was stored, and the write may be repeated."""

    exit_status = ExitStatus.UNAVAILABLE

"""What can go wrong in the Spark jobs, as sentences for people, and how they are told.

GatewayError
├── ConfigError                 bad settings, or a checkpoint that belongs to something else
└── StreamError
    ├── KafkaUnavailableError   a broker or a topic is not there (status 69): worth a retry
    ├── MasterUnavailableError  the Spark cluster is not there (status 69): worth a retry
    ├── KafkaRefusedError       Kafka refused our credentials or rights (status 77)
    ├── DataLossError           records vanished from Kafka before they were read (status 1)
    └── UnfinishedBatchError    stopped before the last batch was written; it is repeated at the next start (status 75)
"""

import sys

from config.errors import ExitStatus, GatewayError
from config.prose import fitted


class StreamError(GatewayError):
    """A Spark job ended because of a failure. ``query`` is the name of the one that failed, if it was one of them."""

    query: str | None = None


class KafkaUnavailableError(StreamError):
    exit_status = ExitStatus.UNAVAILABLE


class MasterUnavailableError(StreamError):
    exit_status = ExitStatus.UNAVAILABLE


class KafkaRefusedError(StreamError):
    exit_status = ExitStatus.REFUSED


class DataLossError(StreamError):
    """Kafka no longer has records that were not read yet. The job stops rather than step over them in silence."""


class UnfinishedBatchError(StreamError):
    exit_status = ExitStatus.UNDRAINED


def tell(sentence: str) -> None:
    """Writes a note or a warning to standard error, at once, in lines that fit a terminal."""
    print(fitted(sentence, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201 (what people read)

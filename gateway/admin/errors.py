"""The administration's branch of the error tree.

GatewayError
└── AdminError
    ├── AdminRetriableError     the same may succeed in a moment
    │   ├── BrokerUnreachableError  no connection to a broker came about
    │   └── BrokerSilentError       a broker was connected and did not answer in time
    ├── AdminRefusedError       Kafka refused our login or our rights
    ├── AdminMissingError       a topic or a group that was asked for is not there
    ├── AdminUnsupportedError   this Kafka does not know the question
    └── AdminUsageError         what was asked for makes no sense as it was said
"""

from __future__ import annotations

__all__ = [
    "AdminError",
    "AdminMissingError",
    "AdminRefusedError",
    "AdminRetriableError",
    "AdminUnsupportedError",
    "AdminUsageError",
    "BrokerSilentError",
    "BrokerUnreachableError",
]

from config.errors import ExitStatus, GatewayError


class AdminError(GatewayError):
    """Something that Kafka's administration did not do. ``code`` is Kafka's own error code, None where it gave none."""

    def __init__(self, text: str, *, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class AdminRetriableError(AdminError):
    """The same may succeed in a moment."""

    exit_status = ExitStatus.UNAVAILABLE


class BrokerUnreachableError(AdminRetriableError):
    """No connection to a broker came about: refused, not resolved, no TLS."""


class BrokerSilentError(AdminRetriableError):
    """A broker took the connection and did not answer in time: frozen, or very busy."""


class AdminRefusedError(AdminError):
    """Kafka refused our login or our rights; trying again is vain."""

    exit_status = ExitStatus.REFUSED


class AdminMissingError(AdminError):
    """A topic or a group that was asked for is not there."""

    exit_status = ExitStatus.NOT_FOUND


class AdminUnsupportedError(AdminError):
    """This Kafka does not know the question: it is older than the version that brought it."""


class AdminUsageError(AdminError):
    """What was asked for makes no sense as it was said."""

    exit_status = ExitStatus.USAGE

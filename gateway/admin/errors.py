"""The administration's branch of the error tree.

GatewayError
└── AdminError
    ├── AdminRetriableError     a retry may succeed
    │   ├── BrokerUnreachableError  no connection to a broker
    │   └── BrokerSilentError       a connected broker did not answer in time
    ├── AdminRefusedError       Kafka refused the login, or rights are missing
    ├── AdminMissingError       the topic or group does not exist
    └── AdminUnsupportedError   this Kafka does not know the request
"""

from config.errors import ExitStatus, GatewayError


class AdminError(GatewayError):
    """A request to Kafka's administration failed."""


class AdminRetriableError(AdminError):
    """A retry may succeed."""

    exit_status = ExitStatus.UNAVAILABLE


class BrokerUnreachableError(AdminRetriableError):
    """No connection to a broker: refused, not resolved, or TLS failed."""


class BrokerSilentError(AdminRetriableError):
    """A broker accepted the connection and did not answer in time: frozen, or very busy."""


class AdminRefusedError(AdminError):
    """Kafka refused the login, or rights are missing; a retry fails too."""

    exit_status = ExitStatus.REFUSED


class AdminMissingError(AdminError):
    """The topic or group does not exist."""

    exit_status = ExitStatus.NOT_FOUND


class AdminUnsupportedError(AdminError):
    """This Kafka is too old to know the request."""

"""What can go wrong while real brokers are fetched and started.

GatewayError
└── EmbeddedError
    ├── JavaError        no usable Java, and none could be installed
    ├── DownloadError    a jar or wheel could not be fetched
    │   └── ChecksumError    what arrived, or what lies in the cache, is not what the repository pins
    └── StartError       a broker's process ended, or did not come up in time
        └── PortTakenError   something else listens where the broker should
"""

from config.errors import ExitStatus, GatewayError


class EmbeddedError(GatewayError):
    """An embedded broker cannot be provided. The sentence says what is missing and what to do."""

    exit_status = ExitStatus.UNAVAILABLE


class JavaError(EmbeddedError):
    """No Java of the needed version is here, and the wheel that carries one could not be installed."""


class DownloadError(EmbeddedError):
    """Jars could not be fetched. What had arrived is kept, so a second attempt goes on where this one stopped."""


class ChecksumError(DownloadError):
    """A file's SHA-256 differs from the one pinned in the repository. It is never used."""


class StartError(EmbeddedError):
    """A broker did not start. The message has its log's last lines and, where the log tells, the likely cause."""


class PortTakenError(StartError):
    """The port asked for is in use."""

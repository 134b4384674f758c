"""The root of the error tree, and the exit statuses it maps to.

    GatewayError
    ├── ConfigError            bad settings; the process ends with status 78
    ├── bridge.errors          RetriableError, FatalError, PoisonedError, … (the data path)
    └── …                      each package adds one branch

The first question about a failure is "may I try again?", so that is a class (``bridge.errors.RetriableError``), not a code.
"""

from __future__ import annotations

__all__ = ["ConfigError", "ExitStatus", "GatewayError"]

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a process of ours ends with; sysexits(3) numbers where one fits. A supervisor need not retry CONFIG or REFUSED."""

    OK = 0
    FAILED = 1  # an unexpected failure; the log has the traceback
    USAGE = 2  # wrong command-line arguments (argparse's own number)
    MISSING_MESSAGES = 3  # the demo's or a verification's account does not balance
    UNAVAILABLE = 69  # a broker could not be reached, or a topic is missing
    UNDRAINED = 75  # stopped at the deadline with messages unacknowledged; they will be redelivered
    REFUSED = 77  # a broker refused our credentials or rights
    CONFIG = 78  # bad settings


class GatewayError(Exception):
    """Any failure of ours that has a sentence for people. ``exit_status`` is what a command that cannot go on ends with."""

    exit_status = ExitStatus.FAILED


class ConfigError(GatewayError):
    """Settings that cannot be used. Raised before anything starts."""

    exit_status = ExitStatus.CONFIG

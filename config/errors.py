"""The root of the error tree, and the exit statuses it maps to.

    GatewayError
    ├── ConfigError              bad settings; the process ends with status 78
    ├── bridge.errors            the data path: what may be retried, what may not, what poisons a batch
    ├── gateway.mqtt.errors      the MQTT connection
    ├── gateway.local.runtime.errors  the brokers of laptop and tests
    ├── gateway.admin.errors     Kafka's administration
    ├── auth.errors              credentials, and the service that EMQX asks
    ├── streaming.errors         the Spark jobs
    └── …                        an error that only one module raises stands in that module

Each of these modules draws its own branch, and a test compares the drawings with the classes.

The first question about a failure is "may I try again?", so that is a class (``bridge.errors.RetriableError``).
"""

from __future__ import annotations

__all__ = ["ConfigError", "ExitStatus", "GatewayError", "forget_frames", "sentence"]

from enum import IntEnum
from typing import Self


class ExitStatus(IntEnum):
    """What a process of ours ends with; sysexits(3) numbers where one fits. Retrying CONFIG or REFUSED is vain."""

    _value_: int
    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "all is well"
    FAILED = 1, "an unexpected failure; the log has the traceback"
    USAGE = 2, "wrong command-line arguments"  # argparse's own number
    MISSING_MESSAGES = 3, "the demo's or a verification's account does not balance"
    NOT_FOUND = 4, "nothing is there that was asked for"
    INCOMPLETE = 5, "only a part was done; the output says what was not, and why"
    UNJUDGED = 6, "a verification found nothing missing, but could not judge everything"
    UNAVAILABLE = 69, "a broker could not be reached, a topic is missing, or the disk is full"
    UNDRAINED = 75, "stopped at the deadline with messages unacknowledged; they will be delivered again"
    REFUSED = 77, "a broker refused the credentials or rights; trying again is vain"
    CONFIG = 78, "bad settings; trying again is vain"


class GatewayError(Exception):
    """Any failure of ours that has a sentence for people. A command that cannot go on ends with ``exit_status``."""

    exit_status = ExitStatus.FAILED


class ConfigError(GatewayError):
    """Settings that cannot be used. Raised before anything starts.

    ``problems`` holds one sentence for each thing to correct, so that a user corrects them in one go; ``str()`` is
    all of them, a line each. No sentence carries the value of a secret.
    """

    exit_status = ExitStatus.CONFIG

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"  - {problem}" for problem in self.problems]
        return "\n".join([f"{len(lines)} settings cannot be used:", *lines])


def forget_frames(error: BaseException) -> None:
    """Let go of the frames that an expected error and its causes came through, once it has been dealt with.

    An error that a future carried knows the frame that awaited it, and that frame knows the future: a cycle, which
    keeps everything in those frames, a batch of 256 KiB or a closed connection, until the garbage collector comes. In
    a long-running worker that is seldom (``gateway.base.memory``). Not for a defect: its frames are what one looks for.
    """
    known: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in known:
            known.add(id(one))
            one.__traceback__ = None
            waiting += (one.__cause__, one.__context__)


def sentence(text: str) -> str:
    """``text`` with a full stop, unless it ends as a sentence does; one that asks ends with its question mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."

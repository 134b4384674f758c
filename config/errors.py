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

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of our processes; sysexits(3) numbers where one fits. docs/commands.md says what they mean."""

    OK = 0
    FAILED = 1
    USAGE = 2  # argparse's own number
    MISSING_MESSAGES = 3
    NOT_FOUND = 4
    INCOMPLETE = 5
    UNJUDGED = 6
    UNFULFILLED = 7  # a device did not do what it was told
    UNAVAILABLE = 69
    UNDRAINED = 75
    REFUSED = 77  # a retry fails too, as for CONFIG
    CONFIG = 78


class GatewayError(Exception):
    """A failure with a sentence for people. A command that fails with it ends with ``exit_status``."""

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
    """Drop the frames of an expected error and of its causes, once it has been handled.

    An error from a future refers to the frame that awaited it, and that frame to the future. The cycle keeps all that
    these frames hold, such as a batch of 256 KiB, until the garbage collector runs, which a long-running worker seldom
    does (``gateway.base.process.memory``). Not for defects: their traceback needs the frames.
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

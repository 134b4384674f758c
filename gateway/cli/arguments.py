"""Options and their values that several commands have: the settings file, numbers, moments."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from config.errors import ExitStatus, GatewayError, sentence
from config.values.files import read_at_most, read_stream_at_most
from gateway.cli.parser import loading

if TYPE_CHECKING:
    from config.loading.load import Loaded
    from config.settings import LogSettings, Settings

_Result = TypeVar("_Result")
_Number = TypeVar("_Number", int, float)

_LARGEST_INPUT: Final = 256 << 20  # bytes
_LONGEST_S: Final = 36_500 * 86_400.0  # less than clocks and MQTT's expiry can carry


class UsageError(GatewayError):
    """Arguments that do not go together, or name nothing."""

    exit_status = ExitStatus.USAGE


class NotFoundError(GatewayError):
    """What was asked for is not there."""

    exit_status = ExitStatus.NOT_FOUND


def add_number(
    parser: argparse._ActionsContainer,
    *names: str,
    within: tuple[_Number, _Number],
    default: _Number,
    metavar: str = "N",
    what: str = "",
) -> None:
    """Add an option for a number within bounds. The help ends with the default."""
    text = f"{what} (default: {default:,g})".lstrip()
    parser.add_argument(*names, type=between(*within), default=default, metavar=metavar, help=text)


def load_noted(path: Path | None, *, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """``config.loading.load.load``, with a note on stderr when all settings are defaults: the folder may be wrong."""
    with loading():
        from config.loading.load import load  # not at the top: help should not pay for pydantic
    from gateway.cli.table import mention

    loaded = load(path, overrides=overrides)
    if loaded.all_defaults:
        mention(loaded.all_defaults)
    return loaded


def with_settings(
    run: Callable[[argparse.Namespace, Settings], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    """A command that runs with the settings of ``--config``, under ``quiet``."""

    @functools.wraps(run)
    def command(arguments: argparse.Namespace) -> int:
        settings = load_noted(arguments.config).settings
        return run_quietly(run(arguments, settings), settings.log)

    return command


def utf8(text: str) -> str:
    """``text``, if it can be a name of Kafka or MQTT. Raises ArgumentTypeError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no UTF-8 text") from None
    return text


def read_input(name: str) -> bytes:
    """The bytes of a file, or of standard input for ``-``: as many as an MQTT message has at most. Raises ValueError
    with the reason as a sentence."""
    try:
        if name == "-":
            return read_stream_at_most(sys.stdin.buffer, _LARGEST_INPUT)
        return read_at_most(Path(name), _LARGEST_INPUT)
    except OSError as error:
        raise ValueError(sentence(error.strerror or "the reason is not known")) from None


def agreed(question: str) -> bool:
    """Whether the user answers yes to the question, which stands on the terminal's stderr."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.buffer.readline().strip().lower() in {b"y", b"yes"}


def positive(text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def between(lowest: _Number, highest: _Number) -> Callable[[str], _Number]:
    """The parser of a number within bounds, both included. It is whole if ``lowest`` is."""
    kind, name = type(lowest), "whole number" if isinstance(lowest, int) else "number"

    def parse(text: str) -> _Number:
        try:
            value = kind(text)
            if lowest <= value <= highest:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is no {name} from {lowest:,} to {highest:,}")

    return parse


def duration(text: str) -> float:
    """A length such as ``30s`` or ``2min``, in seconds."""
    from config.values.grammar import parse_duration

    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 100 years")
    return seconds


def a_second_or_more(text: str) -> float:
    """A ``duration`` that must not be 0: without a pause a server would be asked without end."""
    if (seconds := duration(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1 s")
    return seconds


def moment(text: str) -> int:
    """Milliseconds since 1970 of a time (UTC without a zone), or of a length before now: ``2h``, ``2h ago``."""
    from gateway.base.moments import parse_moment

    try:
        # Not before 1970: Kafka takes times of -1 and -2 for something else.
        return max(0, parse_moment(text.removesuffix(" ago"), time.time_ns() // 1_000_000))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def require_span(since_ms: int | None, until_ms: int | None) -> None:
    """Raises UsageError for a span without any time: all would seem well in it."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise UsageError("--since is not before --until.")


def topic_prefix(text: str) -> str:
    """The value of ``--prefix`` for MQTT topics, without slashes around it. Raises UsageError."""
    if not text.strip("/") or any(character in text for character in "+#\0") or text.startswith("$"):
        raise UsageError(f"--prefix {text!r}: an MQTT topic to publish to has no + or # and does not begin with $.")
    return text.strip("/")


def topic_filters(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The values of an option for MQTT topic filters. Raises UsageError."""
    from bridge.routing.filters import FilterError, validate_filter

    try:
        for text in texts:
            validate_filter(text)
    except FilterError as error:
        raise UsageError(f"{option}: {error}") from None
    return tuple(texts)


def login(name: str | None, file: Path | None, options: str) -> tuple[str, str] | None:
    """A user name and the password in ``file``; None without both. ``options`` names the two. Raises UsageError."""
    if name is None and file is None:
        return None
    if name is None or file is None:
        raise UsageError(f"{options} go together.")
    from config.values.secret_files import read_secret

    try:
        return name, read_secret(file)
    except ValueError as error:
        raise UsageError(f"{options.rpartition(' ')[2]} {file}: {error}") from None


@contextlib.contextmanager
def quiet(log: LogSettings) -> Iterator[None]:
    """The log of a command whose output is for people or a pipe: errors alone, on stderr."""
    from gateway.base import logs

    undo = logs.configure(log.model_copy(update={"level": "error"}))
    try:
        yield
    finally:
        undo()


def run_quietly(command: Coroutine[Any, Any, _Result], log: LogSettings) -> _Result:
    """The result of a command, run under ``quiet``."""
    import asyncio

    with quiet(log):
        return asyncio.run(command)

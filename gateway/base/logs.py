"""Structured logs: an event name that never changes, plus fields. JSON on stderr, readable lines on a terminal.

Modules log with ``structlog.stdlib.get_logger(__name__)``; context that belongs to an object (session, partition) is
bound once. Libraries that use the standard ``logging`` come out of the same renderer as the event ``library_message``.

- An event that may come in floods has a ``repeat_key``: the same logger, event and key appear at most once in ten
  seconds, and the next line has the number of omitted ones in ``suppressed``. Library messages are always limited so,
  and no event comes more than a hundred times a minute (``gateway.base.log_limits``).
- Secrets are not logged: secret types, and values of keys named like one, are masked; bytes are shown as their
  length, since they may be a payload.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from gateway.base.log_limits import LogLimits

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from config.settings import LogSettings

_configured: Final[list[LogLimits]] = []  # in this process; one but for tests
_MASK: Final = "**********"
_SECRET_KEY: Final = re.compile(
    r"(password|passwd|secret|token|authorization|credential|private_key)(?!.*_file$)", re.IGNORECASE
)
_SECRET_TEXT: Final = re.compile(
    r"(?i)\b(password|passwd|secret|token)([\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;)&]+)"
)
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+@")
_DEPTH_LIMIT: Final = 5

_NO_ERRORS: Final = (
    "Topic %s not found in cluster metadata",
    "Topic %s is not available during auto-create initialization",
)
# Below a warning, libraries log their own details.
_LIBRARIES: Final = ("aiohttp", "aiokafka", "asyncio", "concurrent", "kafka", "paho", "py.warnings")


def redact(value: object, _depth: int = 0) -> object:
    """``value`` with every possible secret or payload masked; containers are copied, other values returned."""
    if hasattr(value, "get_secret_value"):  # pydantic's SecretStr and SecretBytes, and our own of that shape
        return _MASK
    if isinstance(value, str):
        return _USERINFO.sub(f"{_MASK}@", _SECRET_TEXT.sub(rf"\1\2{_MASK}", value))
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if _depth >= _DEPTH_LIMIT:
        return "…" if isinstance(value, Mapping | list | tuple | set | frozenset) else value
    if isinstance(value, Mapping):
        return {
            key: _MASK if isinstance(key, str) and _SECRET_KEY.search(key) else redact(item, _depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item, _depth + 1) for item in value]
    if isinstance(value, BaseException):
        return redact(str(value), _depth)
    return value


def configure(
    settings: LogSettings,
    *,
    context: Mapping[str, object] | None = None,
    stream: TextIO | None = None,
    now_ns: Callable[[], int] = time.monotonic_ns,
    later: Callable[[float, Callable[[], None]], None] | None = None,
) -> Callable[[], None]:
    """Sends all logs of this process through one renderer; returns what undoes it. Call it once, before anything logs.

    Args:
        settings: level and format; ``auto`` is readable lines on a terminal, JSON otherwise.
        context: fields of every line, such as instance and worker.
        stream: where lines go, stderr if not given.
        now_ns: the monotonic clock of the limits, in nanoseconds.
        later: has a function called after so many seconds, in a thread of its own if not given.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    console = settings.format == "console" or (settings.format == "auto" and terminal)
    handler = logging.StreamHandler(stream)
    handler.addFilter(_is_wanted)
    limits = LogLimits(now_ns, later or _in_a_thread)
    handler.addFilter(limits)
    handler.setFormatter(
        _formatter(dict(context or {}), console=console, colors=terminal and "NO_COLOR" not in os.environ)
    )
    before = {name: logging.getLogger(name).level for name in ("", *_LIBRARIES)}
    root = logging.getLogger()
    root.addHandler(handler)
    set_level(settings.level)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Off, or loggers made at import would keep for ever what was configured when they wrote their first line.
        cache_logger_on_first_use=False,
    )

    _configured.append(limits)

    def undo() -> None:
        limits.finish()
        _configured.remove(limits)
        root.removeHandler(handler)
        for name, old_level in before.items():
            logging.getLogger(name).setLevel(old_level)
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()

    return undo


def _is_wanted(record: logging.LogRecord) -> bool:
    """False for a library's error that is none, such as a topic about to be created. The gateway reports missing topics
    itself."""
    return record.name != "aiokafka.cluster" or record.msg not in _NO_ERRORS


def finish() -> None:
    """Report omitted lines that no other line has reported. Call it before the process ends."""
    for limits in _configured:
        limits.finish()


def _in_a_thread(seconds: float, look: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, look)
    timer.daemon = True
    timer.name = "log-limits"
    timer.start()


def set_level(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _formatter(context: dict[str, object], *, console: bool, colors: bool) -> structlog.stdlib.ProcessorFormatter:
    def add_context(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**context, **event}

    renderer: Processor
    if console:
        # Plain tracebacks: the pretty ones print local variables, secrets and payloads among them.
        renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer(serializer=json.dumps, ensure_ascii=False, default=repr)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_library_message],
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            add_context,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _redact_event,
            _in_order,
            *([_printable] if console else []),
            renderer,
        ],
    )


def _library_message(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A line of a library: its text becomes the field ``message``, because it names no event."""
    event["message"] = event["event"]
    event["event"] = "library_message"
    suppressed = getattr(event["_record"], "suppressed", 0)
    if suppressed:
        event["suppressed"] = suppressed
    return event


def _redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    redacted = redact(event)
    assert isinstance(redacted, dict)
    return redacted


def _printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Names from devices and brokers must not control the terminal; structlog quotes only texts with spaces."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(
                letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1] for letter in value
            )
    return event


def _in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The fields people read first come first."""
    first: dict[str, Any] = {key: event.pop(key) for key in ("timestamp", "level", "event", "logger") if key in event}
    return {**first, **event}

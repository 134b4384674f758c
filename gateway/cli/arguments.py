"""What several commands ask for in the same words: the settings file, numbers, moments."""

from __future__ import annotations

__all__ = ["UsageError", "add_config", "add_json", "between", "load_noted", "moment", "positive", "run_quietly"]

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from config.errors import ExitStatus, GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from config.loading.load import Loaded
    from config.settings import LogSettings

_Result = TypeVar("_Result")


class UsageError(GatewayError):
    """Arguments that do not go together, or name nothing."""

    exit_status = ExitStatus.USAGE


def add_config(parser: argparse.ArgumentParser, what: str = "the gateway's settings") -> None:
    """Add ``--config FILE``."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"{what} (default: $GATEWAY_CONFIG, then ./gateway.toml)"
    )


def load_noted(path: Path | None, *, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """As ``config.loading.load.load``, but says so where nothing at all sets one: what follows is about the defaults
    then, and
    somebody in the wrong folder would not know."""
    from config.loading.load import load  # not at the top: help should not pay for pydantic
    from gateway.cli.table import mention

    loaded = load(path, overrides=overrides)
    if loaded.all_defaults:
        mention(loaded.all_defaults)
    return loaded


def add_json(parser: argparse.ArgumentParser, help_text: str = "print one JSON object instead of text") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=help_text)


def positive(text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def between(lowest: float, highest: float, *, whole: bool = False) -> Callable[[str], float]:
    """A number within bounds, both included."""

    def parse(text: str) -> float:
        try:
            value: float = int(text) if whole else float(text)
        except ValueError:
            value = float("nan")
        if not lowest <= value <= highest:
            kind = "whole number" if whole else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is no {kind} from {lowest:,} to {highest:,}")
        return value

    return parse


def moment(text: str) -> int:
    """Milliseconds since 1970 of a time (UTC unless it says otherwise), or of so long ago: ``2h``, ``2h ago``."""
    from gateway.base.moments import parse_moment

    try:
        return parse_moment(text.removesuffix(" ago"), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_quietly(command: Coroutine[Any, Any, _Result], log: LogSettings) -> _Result:
    """Run a command whose output is for people or a pipe: logs go to stderr, and only what is an error."""
    import asyncio

    from gateway.base import logs

    undo = logs.configure(log.model_copy(update={"level": "error"}))
    try:
        return asyncio.run(command)
    finally:
        undo()

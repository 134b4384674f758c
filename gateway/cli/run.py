"""``gateway run``: the bridge itself."""

from __future__ import annotations

__all__ = ["add_parser"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:
    """Add ``gateway run`` to the command's parser."""
    parser = commands.add_parser(
        "run", help="bridge messages until stopped", description="Bridge messages from MQTT to Kafka until stopped."
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with settings (default: $GATEWAY_CONFIG, then ./gateway.toml)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    import structlog

    from config.load import load, require_runnable
    from gateway import logs, memory

    memory.use_one_arena()
    loaded = load(arguments.config)
    require_runnable(loaded)
    settings = loaded.settings
    logs.configure(settings.log, context={"instance": settings.instance, "worker": settings.worker})
    log = structlog.get_logger("run")
    for warning in loaded.warnings:
        log.warning("settings.doubtful", warning=warning)
    from gateway.worker import run_worker

    report, signals = asyncio.run(run_worker(settings))
    if not report.clean:
        return ExitStatus.UNDRAINED
    signals.reraise()
    return ExitStatus.OK

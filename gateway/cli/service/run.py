"""``gateway run``: the bridge itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from config.errors import ExitStatus, GatewayError
from gateway.cli.parser import Commands, loading

if TYPE_CHECKING:
    import socket

    from config.loading.load import Loaded
    from gateway.base.lifecycle import StopReport
    from gateway.base.signals import StopSignals


_GENTLE = 10  # added to the nice value: a tenth of a CPU that is short
_EPILOG = """\
the least that a gateway.toml needs:
  [mqtt]
  addresses = ["mqtt://127.0.0.1:1883"]
  [kafka]
  bootstrap_servers = ["127.0.0.1:9092"]
  [[routes]]
  name = "telemetry"
  filters = ["devices/+/telemetry"]
  topic = "telemetry"

`gateway config check` checks the settings, `gateway config reference` explains each of them.
The topics must exist (`gateway topics apply` makes them). `gateway dev up` starts brokers to try it with.

exit status: 0 stopped with everything acknowledged, 69 a broker or a topic is missing, 75 stopped before everything
was acknowledged (it will be delivered again), 77 a broker refuses the login or rights, 78 bad settings
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("run", _run, epilog=_EPILOG, json="")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="worker processes, 0 for none but this one (default: the setting workers; a worker for each CPU)",
    )
    # A supervisor gives these to its workers.
    parser.add_argument("--slot", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--channel", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=("worker", "successor", "retiring"), help=argparse.SUPPRESS)


def _run(arguments: argparse.Namespace) -> int:
    """Bridge messages from MQTT to Kafka until stopped, in several worker processes. SIGTERM drains and keeps the MQTT
    sessions, SIGUSR2 replaces the workers one after the other, SIGHUP reads the settings again and takes the changes
    (as `gateway reload`, which also reports the result)."""
    from gateway.base.process import memory
    from gateway.base.process.held_signals import hold_back

    hold_back()
    memory.keep_heap_small()
    with memory.loading():
        from gateway.base import lean  # noqa: F401 - it works by being imported
    if arguments.channel is not None:
        import socket

        return _run_member(socket.socket(fileno=arguments.channel), arguments.role)
    with memory.loading():
        loaded = _load(arguments)
        from gateway.supervisor.cpu import worker_count

        count = worker_count(loaded.settings)
    if count == 0:
        _import_worker()
        return _run_alone(loaded, lambda: _load(arguments))
    from gateway.supervisor.prefork import fork_workers

    prepared, channel = fork_workers(count, _import_worker, lambda: _import("gateway.supervisor.supervisor"))
    if channel is not None:
        return _run_member(channel, "worker")
    import asyncio
    import contextlib

    from gateway.supervisor.supervisor import supervise

    with contextlib.ExitStack() as channels:
        for one in prepared.values():
            channels.enter_context(one.channel)  # a start that fails uses none of them
        status, signals = asyncio.run(supervise(loaded, lambda: _load(arguments), prepared))
    if status is ExitStatus.OK:
        signals.reraise()
    return status


def _load(arguments: argparse.Namespace) -> Loaded:
    """The settings, with --workers. Blocks; raises ConfigError for settings that cannot be run with."""
    with loading():
        from config.loading.load import load, require_runnable

    loaded = load(arguments.config, overrides={} if arguments.workers is None else {"workers": arguments.workers})
    require_runnable(loaded)
    return loaded


def _run_alone(loaded: Loaded, load: Callable[[], Loaded]) -> int:
    """Without a supervisor: this process is the worker."""
    import asyncio

    import structlog

    from gateway.base import logs

    settings = loaded.settings
    logs.configure(settings.log, context={"instance": settings.instance, "worker": settings.worker})
    log = structlog.get_logger("run")
    for warning in loaded.warnings:
        log.warning("settings.doubtful", warning=warning)
    from gateway.worker.reload_alone import AloneReload
    from gateway.worker.run import run_worker

    return _end(*asyncio.run(run_worker(settings, reload=lambda: AloneReload(loaded, load))))


def _run_member(sock: socket.socket, role: str) -> int:
    """A supervisor's worker. Its settings and its failures go over the channel."""
    import asyncio
    import json

    from gateway.base import logs
    from gateway.base.process.held_signals import leave_to_supervisor
    from gateway.supervisor.channel import read_first

    leave_to_supervisor()
    if role == "successor":
        _load_gently()
    _import_worker()
    from config.loading.transfer import from_json
    from gateway.supervisor.member import Membership, name_process

    name_process()
    with sock as channel:
        text = read_first(channel)
        if not text:
            return ExitStatus.OK  # the supervisor ended before it sent settings
        try:
            settings = from_json(text)
        except GatewayError as error:
            channel.sendall(json.dumps({"say": "failed", "sentence": str(error)}).encode() + b"\n")
            return error.exit_status
        logs.configure(settings.log, context={"instance": settings.instance, "worker": settings.worker})
        from gateway.worker.run import run_worker

        try:
            membership = Membership(channel, settings, retiring=role == "retiring", successor=role == "successor")
            return _end(*asyncio.run(run_worker(settings, membership)))
        except GatewayError as error:
            return error.exit_status  # the supervisor reports it once for all workers


def _import_worker() -> None:
    """What a worker needs, and the supervisor does not: 14 MiB."""
    # Without prometheus_client the first scrape would hold up the event loop for it.
    _import("config.loading.transfer", "gateway.worker.worker", "gateway.supervisor.member", "prometheus_client")


def _import(*modules: str) -> None:
    """Import modules that stay for the life of the process."""
    import importlib

    from gateway.base.process import memory

    with memory.loading():
        for name in modules:
            importlib.import_module(name)


def _load_gently() -> None:
    """Import the modules of a worker, a second of CPU, at a lower priority than the worker that it replaces.

    The old worker must keep up: at EMQX's window of 32, a message that waits for a CPU delays 31 others. On Linux a
    priority belongs to a thread and ends with it; a process could not raise its own again.
    """
    import os
    import threading

    def load() -> None:
        if sys.platform == "linux":
            os.nice(_GENTLE)
        _import_worker()

    thread = threading.Thread(target=load, name="load")
    thread.start()
    thread.join()


def _end(report: StopReport, signals: StopSignals) -> int:
    """The exit status of a worker; one that has drained ends by the signal that stopped it."""
    from gateway.base import logs

    logs.finish()
    if not report.clean:
        return ExitStatus.UNDRAINED
    signals.reraise()
    return ExitStatus.OK

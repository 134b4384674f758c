"""The trial's gateway: the real worker, in a process of its own (``python -m gateway.tools.trial.subject``).

Its settings are the first line on standard input, secrets included; it speaks JSON lines: ``ready``, ``stored`` for the
batches that Kafka has, ``failed`` with a sentence, ``stopped`` with what it cost. A line ``stop``, or the end of
standard input, which is the end of its parent, makes it retire: it unsubscribes, drains, and ends its MQTT sessions.
"""

from __future__ import annotations

__all__ = ["main"]

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from config.errors import GatewayError
from config.loading.transfer import from_json
from gateway.base import logs, memory
from gateway.base.lifecycle import State, StopRequest, StopVerb
from gateway.worker.worker import Worker

if TYPE_CHECKING:
    from bridge.produce.batch import Batch
    from config.settings import Settings

_REPORT_S = 0.05


class _TrialWorker(Worker):
    """The worker as it is, but that it tells which offsets Kafka acknowledged when, and needs no dead-letter topic."""

    def __init__(self, settings: Settings, stop: StopRequest) -> None:
        self.stored: list[tuple[int, int, int, int]] = []  # partition, first offset, records, monotonic nanoseconds
        self.sent_bytes = 0
        super().__init__(settings, stop)

    def routed_topics(self) -> list[str]:
        return sorted(self.router.kafka_topics)

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        super().batch_stored(batch, partition, offset, now_ns)
        self.stored.append((partition, offset, batch.count, now_ns))
        self.sent_bytes += batch.builder.size()


def _say(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: the end of standard input says so as well
        os.write(sys.stdout.fileno(), line)


async def _run(settings: Settings) -> int:
    stop = StopRequest()
    worker = _TrialWorker(settings, stop)
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.request, StopVerb.RETIRE)

    def on_state(_old: State, new: State) -> None:
        if new is State.RUNNING:
            memory.settle()
            _say("ready", cpu_s=time.process_time())

    worker.service.lifecycle.listen(on_state)
    tasks = [
        asyncio.create_task(_obey(commands, stop)),
        asyncio.create_task(_report(worker)),
    ]
    try:
        report = await worker.service.run(stop)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.chains.close()
    _say_stored(worker)
    _say("stopped", clean=report.clean, cpu_s=time.process_time(), batch_bytes=worker.sent_bytes)
    return 0


async def _obey(commands: asyncio.StreamReader, stop: StopRequest) -> None:
    while line := await commands.readline():
        if line.strip() == b"cpu":
            _say("cpu", cpu_s=time.process_time())
        else:
            break
    stop.request(StopVerb.RETIRE)


async def _report(worker: _TrialWorker) -> None:
    while True:
        await asyncio.sleep(_REPORT_S)
        _say_stored(worker)


def _say_stored(worker: _TrialWorker) -> None:
    stored, worker.stored = worker.stored, []
    for start in range(0, len(stored), 500):
        _say("stored", batches=stored[start : start + 500])


def main() -> int:
    """Runs the worker that the first line describes; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to interpret
    memory.use_one_arena()
    try:
        settings = from_json(_first_line())
        logs.configure(settings.log, context={"instance": settings.instance, "worker": 0})
        return asyncio.run(_run(settings))
    except GatewayError as error:
        _say("failed", sentence=str(error), status=int(error.exit_status), reason=getattr(error, "reason", ""))
        return int(error.exit_status)


def _first_line() -> str:
    """Byte by byte, so that nothing behind the line's end is taken from whoever reads on."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in {b"\n", b""}:
        line += byte
    return line.decode()


if __name__ == "__main__":
    sys.exit(main())

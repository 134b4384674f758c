"""The trial's gateway: the real worker, in a process of its own (``python -m gateway.tools.trial.subject``).

The first line on standard input has its settings with secrets. It writes JSON lines: ``ready``, ``stored`` for batches
that Kafka has, ``commands`` when it begins or ceases to send these, ``failed`` with a sentence, ``stopped`` with its
cost. A line ``stop``, or the end of standard input (when the parent ends), makes it retire: it unsubscribes, drains,
and ends its MQTT sessions.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from bridge.produce.batch import Batch
from bridge.waiting import end_tasks
from config.errors import GatewayError
from config.loading.transfer import from_json
from config.settings import Settings
from gateway.base import logs
from gateway.base.lifecycle import State, StopRequest, StopVerb
from gateway.base.process import memory
from gateway.base.process.child import say, words_of_parent
from gateway.components.kafka_side import KafkaSide
from gateway.worker.worker import Worker

_REPORT_S = 0.05


class _TrialKafka(KafkaSide):
    """The worker's Kafka side, without dead-letter topics."""

    def routed_topics(self) -> list[str]:
        return sorted(self.router.kafka_topics)


class _TrialWorker(Worker):
    """A worker that notes offsets and times of Kafka's acknowledgements. It needs no dead-letter topic."""

    kafka_side = _TrialKafka

    def __init__(self, settings: Settings, stop: StopRequest) -> None:
        self.stored: list[tuple[int, int, int, int]] = []  # partition, first offset, records, monotonic nanoseconds
        self.sent_bytes = 0
        self._messages = settings.routes[0].topic  # batches of other topics are not noted
        super().__init__(settings, stop)
        self.kafka.counts.listeners.append(self._note)

    def _note(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        if batch.slot.topic != self._messages:
            return  # devices' answers
        self.stored.append((partition, offset, batch.count, now_ns))
        self.sent_bytes += batch.builder.size()


async def _run(settings: Settings) -> int:
    stop = StopRequest()
    worker = _TrialWorker(settings, stop)
    loop = asyncio.get_running_loop()
    commands = await words_of_parent()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.request, StopVerb.RETIRE)

    def on_state(_old: State, new: State) -> None:
        if new is State.RUNNING:
            memory.freeze_loaded_objects()
            say("ready", cpu_s=time.process_time())

    worker.service.lifecycle.listen(on_state)
    tasks = [
        asyncio.create_task(_obey(commands, stop)),
        asyncio.create_task(_report(worker)),
    ]
    try:
        report = await worker.service.run(stop)
    finally:
        await end_tasks(*tasks)
        worker.mqtt.chains.close()
    _say_stored(worker)
    say("stopped", clean=report.clean, cpu_s=time.process_time(), batch_bytes=worker.sent_bytes)
    return 0


async def _obey(commands: asyncio.StreamReader, stop: StopRequest) -> None:
    """Report the CPU time for each line "cpu"; another line, or the parent's end, retires the worker."""
    while line := await commands.readline():
        if line.strip() == b"cpu":
            say("cpu", cpu_s=time.process_time())
        else:
            break
    stop.request(StopVerb.RETIRE)


async def _report(worker: _TrialWorker) -> None:
    """Tell the parent regularly which batches Kafka has, and changes of the open partitions of commands."""
    said: list[tuple[str, int, str]] = []
    while True:
        await asyncio.sleep(_REPORT_S)
        _say_stored(worker)
        if worker.commanding is not None and (entries := worker.commanding.openings()) != said:
            said = entries
            say("commands", entries=entries)


def _say_stored(worker: _TrialWorker) -> None:
    stored, worker.stored = worker.stored, []
    for start in range(0, len(stored), 500):
        say("stored", batches=stored[start : start + 500])


def main() -> int:
    """Run the worker of the first line's settings; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    memory.keep_heap_small()
    try:
        settings = from_json(_first_line())
        logs.configure(settings.log, context={"instance": settings.instance, "worker": 0})
        return asyncio.run(_run(settings))
    except GatewayError as error:
        say("failed", sentence=str(error), status=int(error.exit_status), reason=getattr(error, "reason", ""))
        return int(error.exit_status)


def _first_line() -> str:
    """The first line, read byte by byte, so that later commands stay in the pipe for ``_obey``."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in {b"\n", b""}:
        line += byte
    return line.decode()


if __name__ == "__main__":
    sys.exit(main())

"""A Kafka consumer that watches the messages arrive (``python -m gateway.local.demo.witness``), a process of its own.

End-to-end latency is from the device's timestamp (taken when it measured, before MQTT) to the moment this consumer
holds the record; devices and witness share the machine's clock. It is a process of its own because drawing the view
would delay it. Its only argument is one JSON object (bootstrap, topic, partitions, and distinct: whether to tell
repetitions apart); it prints a JSON line twice a second and ends, after a last line, when a line arrives on its
standard input, or at once when that ends.
"""

import asyncio
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from gateway.base.process.child import run, say, words_of_parent
from gateway.devices.account import Tally
from gateway.local.demo.latency import Latencies
from gateway.local.demo.records import read_identity

_PROGRESS_S = 0.5


class _Witness:
    def __init__(self, bootstrap: str, topic: str, partitions: int, *, distinct: bool) -> None:
        self._parts = [TopicPartition(topic, number) for number in range(partitions)]
        self._consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
        self._latencies = Latencies()
        self._read = 0
        self._tally: Tally[str] | None = Tally() if distinct else None  # tells copies apart

    async def run(self) -> None:
        """Reads for ever from the topic's beginning."""
        await self._consumer.start()
        self._consumer.assign(self._parts)
        await self._consumer.seek_to_beginning(*self._parts)
        while True:
            batches = await self._consumer.getmany(timeout_ms=1000)
            now_ms = time.time_ns() // 1_000_000
            for records in batches.values():
                self._read += len(records)
                for record in records:
                    identity = read_identity(record.value)
                    if identity is not None:
                        self._latencies.add(now_ms - identity.ts_ms)
                        if self._tally is not None:
                            self._tally.add(identity.device, identity.sequence)

    async def report(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            self.report_now()
            self._latencies.tick()

    def report_now(self) -> None:
        """Print the counts and latencies so far, as a line of JSON."""
        latencies = self._latencies
        say(
            "progress",
            at_s=time.monotonic(),  # one clock for all processes of the machine
            read=self._read,
            ends={part.partition: self._consumer.highwater(part) or 0 for part in self._parts},
            recent_p50_ms=latencies.recent(0.5),
            recent_p99_ms=latencies.recent(0.99),
            p50_ms=latencies.overall(0.5),
            p99_ms=latencies.overall(0.99),
            distinct=None if self._tally is None else self._tally.distinct,
        )


async def _run(arguments: dict[str, Any]) -> int:
    """Read and report until a line comes from the parent (then a last report), or its end."""
    witness = _Witness(**arguments)
    tasks = [asyncio.create_task(witness.run()), asyncio.create_task(witness.report())]
    stop = asyncio.create_task((await words_of_parent()).readline())
    await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            print(f"the witness broke: {task.exception()!r}", file=sys.stderr)
            return 1
        task.cancel()
    if stop.result():
        witness.report_now()
    return 0


if __name__ == "__main__":
    sys.exit(run(_run))

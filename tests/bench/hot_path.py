"""The hot path beside a fixed piece of work in one process: how many times its CPU a message costs.

Decoder, dispatch, accumulator, batch builder, sender and flow are the gateway's; Kafka and the socket are left out. A
ratio of the two says nothing about the machine, so it can be kept in the repository and compared anywhere.
"""

import asyncio
import gc
import json
import statistics
import time
from typing import Final

from bridge.kafka.batch import KafkaBatch
from bridge.ports import Answered, BatchBuilder
from bridge.produce.batch import Span
from gateway.mqtt.ingest import Ingest
from tests.bench.payloads import DEVICES, PROPERTIES, build_stream, device_topic
from tests.brokers.data_path import MemoryPath, MemoryProducer, make_settings

MESSAGES: Final = 2_000  # of the fixed work, 2 ms: a round fits between two switches of a busy machine
# Messages of a read and of a round: a drain, and everyday traffic.
READS: Final = {"large-reads": (1_000, 2_000), "small-reads": (4, 400)}
_TURNS: Final = 3  # of the event loop, from a batch's answer to the acknowledgement
_WARM_UP: Final = 3  # rounds


class _Producer(MemoryProducer):
    """Takes batches of Kafka's bytes, and keeps nothing."""

    def create_batch(self, *, compressed: bool) -> BatchBuilder:
        return KafkaBatch(self._batch_bytes, 0)

    def hand_over(self, topic: str, partition: int, batch: BatchBuilder, answered: Answered) -> None:
        assert isinstance(batch, KafkaBatch)
        batch.stamp(1, 0, 0)
        asyncio.get_running_loop().call_soon(answered, 0, None)


class _Session:
    """A connection without a socket."""

    pace_ns = idle_ticks = 0
    handshaking = False

    def __init__(self, ingest: Ingest) -> None:
        self.ingest = ingest
        self.acknowledged = 0

    def read(self) -> None: ...

    def listen(self) -> None: ...

    def ignore(self) -> None: ...

    def hand_over(self, span: Span) -> None:
        ingest = self.ingest
        span.owed.append((self, ingest.ids, ingest.ids2))
        ingest.ids, ingest.ids2 = [], []

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        self.acknowledged += len(ids)
        b"@\x02".join(ids)

    def send_acknowledgements(self) -> None: ...


def fixed_work(data: bytes, partitions: dict[bytes, int]) -> int:
    """What everything is compared with: a plain decoder of a stream. A change of it makes the stored ratios void."""
    batches: list[list[tuple[bytes, bytes]]] = [[] for _ in range(12)]
    position = 0
    while position < len(data):
        length = data[position + 1]
        start = position + 2
        if length > 127:
            length = length & 127 | data[start] << 7
            start += 1
        body = start + 2 + (data[start] << 8 | data[start + 1])
        stop = start + length
        topic = data[start + 2 : body]
        batches[partitions[topic]].append((topic, data[body:stop]))
        position = stop
    return sum(len(b"".join([topic + payload for topic, payload in batch])) for batch in batches)


async def _measure(rounds: int) -> dict[str, float]:
    stream = build_stream(MESSAGES, qos=1, period=MESSAGES, properties=PROPERTIES)
    data, offsets = stream.data, stream.offsets
    reads = {
        name: [data[offsets[at] : offsets[at + size]] for at in range(0, messages, size)]
        for name, (size, messages) in READS.items()
    }
    partitions = {device_topic(device): device % 12 for device in range(DEVICES)}
    path = MemoryPath(make_settings(mqtt={"protocol": "5"}))
    path.sender.producer = _Producer(path.settings.kafka.batch_bytes)
    found: dict[str, list[float]] = {name: [] for name in READS}
    async with path:
        session = _Session(path.ingest())
        path.flow.add(session)
        gc.freeze()  # a collection in either piece of work then looks at that work alone
        for number in range(_WARM_UP + rounds):
            for name, (_size, messages) in READS.items():
                began = time.process_time_ns()
                fixed_work(data, partitions)
                between = time.process_time_ns()
                await _take(path, session, reads[name])
                ended = time.process_time_ns()
                if number >= _WARM_UP:
                    each = (ended - between) / messages
                    found[name].append(each / ((between - began) / MESSAGES))
        taken = (_WARM_UP + rounds) * sum(messages for _size, messages in READS.values())
        assert session.acknowledged == path.ledger.delivered == taken, f"{session.acknowledged} of {taken} acknowledged"
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


async def _take(path: MemoryPath, session: _Session, reads: list[bytes]) -> None:
    for read in reads:
        _used, count = session.ingest.feed(read)
        path.ledger.received += count
        path.flow.flush()
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def measure(rounds: int = 40) -> dict[str, float]:
    """How many times the CPU of the fixed work a message costs, for each size of reads: medians of rounds in turn."""
    return asyncio.run(_measure(rounds))


def main() -> None:
    """Prints the ratios as `hot_path.json` has them."""
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()

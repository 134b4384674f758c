"""Settings of the spool: batches on disk while Kafka cannot take them."""

from typing import Annotated, Literal

from pydantic import Field

from config.values.grammar import ByteCount, Duration, duration, within
from config.values.model import Table

_SPARE_BYTES = 64 << 20  # what a spool needs beside its files


class SpoolSettings(Table):
    enabled: bool = True
    """Whether batches that Kafka cannot take go to disk, below `data_dir`. Off: reading pauses when `flow.memory_bytes`
    is full, and the MQTT broker drops what its queue cannot hold."""

    after: Annotated[Duration, within("0s", "1h")] = duration("1s")
    """How long a partition's oldest batch waits for Kafka before the partition is spooled. 1 s is short, because EMQX
    queues only 1000 messages a session. 0 sends every batch through the disk (store and forward)."""

    max_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 50)] = 1 << 30
    """Compressed bytes that each worker may store. 1 GiB is about an hour of 4,000 messages a second of 75 bytes each
    when compressed. Full: reading pauses; the gateway loses nothing. The disk needs up to twice as much and 64 MiB
    more, for each worker."""

    acknowledge: Literal["fsync", "never"] = "fsync"
    """When a spooled message is acknowledged to MQTT. `fsync`: as soon as the disk has it, which is then the only copy.
    `never`: only when Kafka has it. The spool then takes QoS 0 messages only, others wait in their window, and losing
    the disk loses nothing acknowledged."""

    replay_max_bytes_per_second: Annotated[ByteCount, Field(ge=64 * 1024, le=1 << 40)] = 64 << 20
    """Most bytes that a worker reads back and sends to Kafka in a second. At or below the live rate, a backlog never
    ends."""

    def disk_bytes(self, workers: int) -> int:
        """What the spools of so many workers may come to take on the disk of ``data_dir``."""
        return workers * (2 * self.max_bytes + _SPARE_BYTES) if self.enabled else 0

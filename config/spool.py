"""Settings of the spool: batches on disk while Kafka cannot take them."""

__all__ = ["SpoolSettings"]

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from config.values.grammar import ByteCount, Duration
from config.values.model import Table

_SPARE_BYTES = 64 << 20  # what a spool needs beside its files


class SpoolSettings(Table):
    enabled: bool = True
    """Whether batches that Kafka cannot take go to disk, below `data_dir`. Off: they wait in memory, reading pauses
    when `flow.memory_bytes` are full, and the MQTT broker drops what its own queue cannot hold."""

    after: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=1))] = timedelta(seconds=1)
    """How long a partition's oldest batch waits for Kafka before the partition is spooled. Short, because meanwhile
    the session's window is held and EMQX keeps only 1000 messages (a quarter of a second at 4,000 a second); long
    enough that a leader's planned move costs no disk. 0 is store-and-forward: every batch goes through the disk, for
    sites whose link is often away."""

    max_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 50)] = 1 << 30
    """Bytes of batches that each worker stores at most, as compressed. 1 GiB is about an hour of 4,000 messages a
    second of 75 bytes each when compressed. When it is full, reading pauses and nothing is lost here. The disk needs up
    to twice as much and 64 MiB more, for each worker: space is freed in files of 16 MiB."""

    acknowledge: Literal["fsync", "never"] = "fsync"
    """When a spooled message is acknowledged to MQTT. `fsync`: once the disk has it; until Kafka has it too, it exists
    on this disk alone. `never`: only Kafka acknowledges; the spool then takes messages of QoS 0 alone, which nobody
    acknowledges, the others wait in their session's window, and losing the disk loses nothing acknowledged."""

    replay_max_bytes_per_second: Annotated[ByteCount, Field(ge=64 * 1024, le=1 << 40)] = 64 << 20
    """Most that a worker reads back and sends to Kafka in a second. 64 MiB is over ten times what 15,000 small messages
    a second come to, so a backlog shrinks fast while new messages flow; it is about half of a gigabit network, so that
    a Kafka which has just come back is not flooded. At or below the live rate a backlog never ends."""

    def disk_bytes(self, workers: int) -> int:
        """What the spools of so many workers may come to take on the disk of ``data_dir``."""
        return workers * (2 * self.max_bytes + _SPARE_BYTES) if self.enabled else 0

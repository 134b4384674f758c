"""How far a running reassignment is, from the sizes of the replicas. No I/O."""

from __future__ import annotations

__all__ = ["Moving", "moving"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.admin.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.admin.model import LogDir, Reassignment, Topic


@dataclass(frozen=True, slots=True)
class Moving:
    """A partition on its way. ``copied`` has, for each broker that gets it, the bytes that are there; ``bytes`` is the
    leader's size; None where a broker does not tell. ``share`` is the slowest one's part of it, 0 to 1."""

    place: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    bytes: int | None
    copied: dict[int, int | None]
    in_sync: tuple[int, ...]  # those of ``adding`` that have caught up

    @property
    def share(self) -> float | None:
        if self.bytes is None or any(size is None for size in self.copied.values()):
            return None
        if not self.bytes:
            return 1.0
        return min((min(size or 0, self.bytes) / self.bytes for size in self.copied.values()), default=1.0)


def moving(
    reassignments: Iterable[Reassignment], topics: Iterable[Topic], dirs: Mapping[int, Iterable[LogDir]]
) -> tuple[Moving, ...]:
    """Each running reassignment with its progress; ``dirs`` are the folders by broker, of those that answered."""
    sizes = {
        (broker, TopicPartition(one.topic, one.partition)): one.bytes
        for broker, found in dirs.items()
        for folder in found
        for one in folder.replicas
        if not one.future
    }
    partitions = {TopicPartition(topic.name, one.number): one for topic in topics for one in topic.partitions}
    result = []
    for running in reassignments:
        place = TopicPartition(running.topic, running.partition)
        partition = partitions.get(place)
        leader = partition.leader if partition is not None else None
        isr = partition.isr if partition is not None else ()
        copied = {broker: sizes.get((broker, place), 0) if broker in dirs else None for broker in running.adding}
        result.append(
            Moving(
                place, leader, running.replicas, running.adding, running.removing,
                None if leader is None else sizes.get((leader, place)), copied,
                tuple(broker for broker in running.adding if broker in isr),
            )
        )  # fmt: skip
    return tuple(result)

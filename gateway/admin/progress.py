"""The progress of running reassignments, from the sizes of the replicas. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.admin.model import LogDir, Reassignment, Topic, TopicPartition


@dataclass(frozen=True, slots=True)
class Moving:
    """A partition that is being moved. ``copied`` has the bytes on each new broker, ``bytes`` the leader's size; None
    if unknown."""

    place: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    bytes: int | None
    copied: dict[int, int | None]
    in_sync: tuple[int, ...]  # brokers of ``adding`` that have caught up

    @property
    def share(self) -> float | None:
        """The part of ``bytes`` that the slowest new replica has, 0 to 1; None if a size is unknown."""
        if self.bytes is None or any(size is None for size in self.copied.values()):
            return None
        if not self.bytes:
            return 1.0
        return min((min(size or 0, self.bytes) / self.bytes for size in self.copied.values()), default=1.0)


def moving(
    reassignments: Iterable[Reassignment], topics: Iterable[Topic], dirs: Mapping[int, Iterable[LogDir]]
) -> tuple[Moving, ...]:
    """Each running reassignment with its progress. ``dirs`` are the folders of brokers that answered."""
    sizes = {
        (broker, TopicPartition(one.topic, one.partition)): one.bytes
        for broker, found in dirs.items()
        for folder in found
        for one in folder.replicas
        if not one.future  # the copy of a move to another disk of the same broker
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

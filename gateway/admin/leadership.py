"""How evenly partitions are led, as Kafka's controller computes it. No I/O."""

from __future__ import annotations

__all__ = ["BrokerLeadership", "leadership", "not_preferred"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.admin.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.admin.model import Broker, Partition, Topic


@dataclass(frozen=True, slots=True)
class BrokerLeadership:
    """``leads``: partitions that it leads. ``preferred``: those that name it first among their replicas; ``elsewhere``
    of them are led by another, or by nobody. ``replicas``: those that it has a copy of."""

    broker: int
    leads: int
    preferred: int
    elsewhere: int
    replicas: int

    @property
    def imbalance(self) -> float:
        """Share of the partitions preferring this broker that it does not lead, 0 to 1; the controller holds it
        against ``leader.imbalance.per.broker.percentage`` (10)."""
        return self.elsewhere / self.preferred if self.preferred else 0.0


def leadership(topics: Iterable[Topic], brokers: Iterable[Broker]) -> tuple[BrokerLeadership, ...]:
    """A line for each broker that is registered or named by a partition."""
    partitions = [partition for topic in topics for partition in topic.partitions]
    numbers = {broker.id for broker in brokers}
    numbers.update(replica for partition in partitions for replica in partition.replicas)
    return tuple(
        BrokerLeadership(
            broker=number,
            leads=sum(one.leader == number for one in partitions),
            preferred=sum(one.preferred == number for one in partitions),
            elsewhere=sum(one.preferred == number and one.leader != number for one in partitions),
            replicas=sum(number in one.replicas for one in partitions),
        )
        for number in sorted(numbers)
    )


def not_preferred(topics: Iterable[Topic]) -> tuple[tuple[TopicPartition, Partition], ...]:
    """Partitions that another than their preferred leader leads, or nobody."""
    return tuple(
        (TopicPartition(topic.name, one.number), one)
        for topic in topics
        for one in topic.partitions
        if one.leader != one.preferred
    )

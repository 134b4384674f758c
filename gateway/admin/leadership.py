"""The balance of leaders, as Kafka's controller computes it. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.admin.model import Broker, Partition, Topic, TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerLeadership:
    """``leads``: number of partitions that it leads. ``preferred``: of partitions whose first replica it is;
    ``elsewhere`` of these have another leader or none. ``replicas``: of partitions of which it has a copy."""

    broker: int
    leads: int
    preferred: int
    elsewhere: int
    replicas: int

    @property
    def imbalance(self) -> float:
        """Share of its preferred partitions that it does not lead, 0 to 1. The controller compares it with
        ``leader.imbalance.per.broker.percentage`` (10)."""
        return self.elsewhere / self.preferred if self.preferred else 0.0


def leadership(topics: Iterable[Topic], brokers: Iterable[Broker]) -> tuple[BrokerLeadership, ...]:
    """A row for each broker that is registered or named by a partition."""
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
    """Partitions without their preferred leader: with another one, or none."""
    return tuple(
        (TopicPartition(topic.name, one.number), one)
        for topic in topics
        for one in topic.partitions
        if one.leader != one.preferred
    )

"""The balance of leaders, as Kafka's controller computes it. No I/O."""

from collections.abc import Iterable, Sequence
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
    led = [(one.leader, one.replicas) for topic in topics for one in topic.partitions]
    named = {replica for _, replicas in led for replica in replicas}
    return leadership_of(led, named | {broker.id for broker in brokers})


def leadership_of(
    led: Iterable[tuple[int | None, Sequence[int]]], brokers: Iterable[int]
) -> tuple[BrokerLeadership, ...]:
    """A row for each of these brokers. ``led`` has the leader of each partition, and its replicas."""
    led = list(led)
    return tuple(
        BrokerLeadership(
            broker=number,
            leads=sum(leader == number for leader, _ in led),
            preferred=sum(number in replicas[:1] for _, replicas in led),
            elsewhere=sum(number in replicas[:1] and leader != number for leader, replicas in led),
            replicas=sum(number in replicas for _, replicas in led),
        )
        for number in sorted(brokers)
    )


def not_preferred(topics: Iterable[Topic]) -> tuple[tuple[TopicPartition, Partition], ...]:
    """Partitions without their preferred leader: with another one, or none."""
    return tuple(
        (TopicPartition(topic.name, one.number), one)
        for topic in topics
        for one in topic.partitions
        if one.leader != one.preferred
    )

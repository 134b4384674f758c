"""Whose word on a leader counts: the one with the latest epoch, not the one that came last."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata

from bridge.kafka.leaders import STALE_S, Leaders

PLACE = TopicPartition("t", 0)


def told(leader: int, epoch: int, *, error: int = 0, version: int = 7) -> Any:
    row = (0, 0, leader, epoch, [1, 2], [leader], []) if version >= 7 else (0, 0, leader, [1, 2], [leader], [])
    return SimpleNamespace(
        API_VERSION=version,
        controller_id=1,
        brokers=[(1, "a", 9092, None), (2, "b", 9092, None)],
        topics=[(error, "t", False, [] if error else [row])],
    )


class Cluster:
    """What aiokafka makes of answers."""

    def __init__(self) -> None:
        self.leaders = Leaders()
        self.metadata = ClusterMetadata()
        self.now_s = 100.0

    def hears(self, answer: Any) -> int | None:
        self.leaders.latest(answer, self.now_s)
        self.metadata.update_metadata(answer)
        leader: int | None = self.metadata.leader_for_partition(PLACE)
        return leader


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_broker_that_was_frozen_does_not_take_its_partitions_back(cluster: Cluster) -> None:
    assert cluster.hears(told(1, 4)) == 1
    assert cluster.hears(told(2, 5)) == 2
    assert cluster.hears(told(1, 4)) == 2, "it does not know of the election yet"
    assert cluster.metadata._partitions["t"][0].isr == [2]
    assert cluster.hears(told(1, 6)) == 1, "now it was elected"


def test_one_cut_off_from_its_controller_is_not_believed_however_long_that_lasts(cluster: Cluster) -> None:
    assert cluster.hears(told(2, 5)) == 2
    for _ in range(20):
        cluster.now_s += 1
        assert cluster.hears(told(1, 4)) == 2
        assert cluster.hears(told(2, 5)) == 2


@pytest.mark.parametrize("answers", [
    [(told(2, 5), 2), (told(-1, 5), -1)],  # as nobody leads for the moment
    [(told(2, 5), 2), (told(2, 0, error=3), None), (told(1, 0), 1)],
    [(told(1, -1, version=5), 1), (told(2, -1, version=5), 2)],
], ids=["news of the same epoch", "a topic made anew begins with its first epoch", "no epochs are told"])  # fmt: skip
def test_who_is_believed_at_once(cluster: Cluster, answers: list[tuple[Any, int | None]]) -> None:
    assert [cluster.hears(answer) for answer, _ in answers] == [leader for _, leader in answers]


def test_one_made_anew_between_two_looks_is_believed_after_a_while(cluster: Cluster) -> None:
    assert cluster.hears(told(2, 5)) == 2
    assert cluster.hears(told(1, 0)) == 2
    cluster.now_s += STALE_S - 0.1
    assert cluster.hears(told(1, 0)) == 2
    cluster.now_s += 0.2
    assert cluster.hears(told(1, 0)) == 1
    assert cluster.hears(told(1, 0)) == 1

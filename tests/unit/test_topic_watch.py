"""A topic's number of partitions is pinned; what happens to it is said, and repaired as settings say."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bridge.errors import RetriableError
from bridge.kafka.topic_watch import LOOKS_BEFORE_CREATION, TopicState, TopicWatch


class Cluster:
    """Metadata as a producer knows them, renewed by ``renew``, and the creation of topics."""

    def __init__(self, **topics: int) -> None:
        self.topics: dict[str, int] = dict(topics)
        self.hidden: set[str] = set()
        self.refreshed_ns = 1
        self.created: list[tuple[str, int | None]] = []
        self.refuses = 0

    def partition_count(self, topic: str) -> int | None:
        return None if topic in self.hidden else self.topics.get(topic)

    def refused(self, topic: str) -> bool:
        return topic in self.hidden

    def metadata_refreshed_ns(self) -> int:
        return self.refreshed_ns

    async def create(self, topics: list[str], partitions: int | None = None) -> None:
        if self.refuses:
            self.refuses -= 1
            raise RetriableError("No controller.")
        self.created += [(topic, partitions) for topic in topics]
        self.topics |= dict.fromkeys(topics, partitions or 1)

    def renew(self) -> None:
        self.refreshed_ns += 1


def watch_of(
    cluster: Cluster, *, creates: bool = False, failed: Callable[[BaseException], None] = lambda _error: None
) -> TopicWatch:
    watch = TopicWatch(
        lambda: cluster, cluster if creates else None, lambda: cluster.refreshed_ns * 10**9, failed, interval_s=0.001
    )
    watch.pin(cluster.topics)
    return watch


def watched(*, creates: bool = False, **topics: int) -> tuple[Cluster, TopicWatch]:
    cluster = Cluster(**topics)
    return cluster, watch_of(cluster, creates=creates)


def looks(watch: TopicWatch, cluster: Cluster, count: int) -> list[str]:
    """What the last of so many looks says is gone."""
    gone: list[str] = []
    for _ in range(count):
        cluster.renew()
        gone = watch.look()
    return gone


def state(watch: TopicWatch) -> TopicState:
    (one,) = watch.states()
    return one


def test_the_number_first_seen_stays_however_the_topic_grows_which_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster, watch = watched(telemetry=6)
    for size in (12, 18):
        cluster.topics["telemetry"] = size
        assert looks(watch, cluster, 5) == []
        assert capsys.readouterr().out.count("topic_has_more_partitions") == 1
        assert watch.partition_count("telemetry") == 6
        assert state(watch) == TopicState("telemetry", 6, size)
        assert state(watch).unused == size - 6
        assert state(watch).problem is None


def test_a_topic_that_is_not_there_yet_is_pinned_when_it_is() -> None:
    cluster, watch = watched()
    assert watch.partition_count("telemetry") is None
    assert watch.states() == []
    cluster.topics["telemetry"] = 3
    assert watch.partition_count("telemetry") == 3


def test_a_topic_is_gone_only_after_some_metadata_without_it() -> None:
    """An answer of a broker that does not know it yet must not make it twice."""
    cluster, watch = watched(telemetry=6)
    del cluster.topics["telemetry"]
    assert looks(watch, cluster, LOOKS_BEFORE_CREATION - 1) == []
    cluster.topics["telemetry"] = 6
    assert looks(watch, cluster, 1) == []
    del cluster.topics["telemetry"]
    assert looks(watch, cluster, LOOKS_BEFORE_CREATION - 1) == []
    assert looks(watch, cluster, 1) == ["telemetry"]
    assert watch.partition_count("telemetry") == 6, "its messages go on waiting where they are"


def test_old_metadata_say_nothing_anew() -> None:
    """A Kafka that does not answer has not lost a topic."""
    cluster, watch = watched(telemetry=6)
    del cluster.topics["telemetry"]
    cluster.renew()
    assert [watch.look() for _ in range(10)] == [[]] * 10


def test_a_topic_we_may_not_see_is_not_gone() -> None:
    cluster, watch = watched(telemetry=6)
    cluster.hidden.add("telemetry")
    assert looks(watch, cluster, 10) == []


def test_a_topic_made_anew_smaller_is_a_problem_with_a_way_out() -> None:
    cluster, watch = watched(telemetry=6)
    cluster.topics["telemetry"] = 2
    looks(watch, cluster, 1)
    problem = state(watch).problem
    assert problem is not None
    assert "made anew with 2 partitions" in problem
    assert "wait for 6" in problem
    assert "add partitions" in problem
    assert "only if none of the topic's messages are in its spool" in problem
    assert state(watch).unused == 0


async def run_until(watch: TopicWatch, cluster: Cluster, condition: Any) -> None:
    await watch.start()
    async with asyncio.timeout(60):
        while not condition():
            cluster.renew()
            await asyncio.sleep(0)
    await watch.stop(0)


async def test_a_topic_that_is_gone_is_made_anew_as_large_as_it_was() -> None:
    cluster, watch = watched(creates=True, telemetry=7, other=1)
    del cluster.topics["telemetry"]
    await run_until(watch, cluster, lambda: cluster.created)
    assert cluster.created == [("telemetry", 7)]
    looks(watch, cluster, 1)
    assert [one.there for one in watch.states()] == [1, 7]


async def test_a_topic_that_is_kept_is_made_anew_by_the_settings_and_not_pinned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The ledger's: messages and readiness do not depend on it."""
    cluster, watch = watched(creates=True)
    cluster.topics["ledger"] = 1
    watch.keep("ledger")
    cluster.topics["ledger"] = 2
    assert looks(watch, cluster, 1) == []
    assert capsys.readouterr().out == "", "its writer uses what is there"
    del cluster.topics["ledger"]
    await run_until(watch, cluster, lambda: cluster.created)
    assert cluster.created == [("ledger", None)]
    assert watch.states() == []
    assert "topic_gone" in capsys.readouterr().out


async def test_a_topic_that_is_let_go_while_others_are_made_is_not_made() -> None:
    """A reload takes its route away while an answer is waited for."""
    cluster = Cluster(first=2, second=3)
    defects: list[BaseException] = []
    watch = watch_of(cluster, creates=True, failed=defects.append)
    create = cluster.create

    async def create_slowly(topics: list[str], partitions: int | None = None) -> None:
        watch.release(["second"])
        await create(topics, partitions)

    cluster.create = create_slowly  # type: ignore[method-assign]
    del cluster.topics["first"], cluster.topics["second"]
    await run_until(watch, cluster, lambda: "first" in cluster.topics)
    await asyncio.sleep(0)
    assert not defects
    looks(watch, cluster, LOOKS_BEFORE_CREATION + 1)
    assert cluster.created == [("first", 2)]
    assert [one.name for one in watch.states()] == ["first"]


async def test_a_creation_that_fails_is_tried_again() -> None:
    cluster, watch = watched(creates=True, telemetry=2)
    cluster.refuses = 3
    del cluster.topics["telemetry"]
    await run_until(watch, cluster, lambda: cluster.created)
    assert cluster.refuses == 0


async def test_a_topic_of_somebody_else_s_is_not_made() -> None:
    cluster, watch = watched(telemetry=2)
    del cluster.topics["telemetry"]
    before = cluster.refreshed_ns
    await run_until(watch, cluster, lambda: cluster.refreshed_ns > before + 50)
    assert cluster.created == []


async def test_a_defect_is_not_swallowed() -> None:
    class Broken(Cluster):
        def partition_count(self, topic: str) -> int | None:
            if self.refreshed_ns > 1:
                raise RuntimeError("a defect")
            return super().partition_count(topic)

    cluster = Broken(telemetry=1)
    defects: list[BaseException] = []
    watch = TopicWatch(lambda: cluster, None, lambda: 0, defects.append, interval_s=0.001)
    watch.pin(["telemetry"])
    cluster.renew()
    await run_until(watch, Cluster(), lambda: defects)
    assert str(defects[0]) == "a defect"


def test_a_number_of_an_earlier_life_is_used_and_told_to_nobody() -> None:
    """The spool holds batches for those partitions, or Kafka is not there to be asked."""
    cluster = Cluster(telemetry=12)
    told: list[tuple[str, int]] = []
    watch = TopicWatch(
        lambda: cluster, None, lambda: 0, lambda _error: None, interval_s=0.001,
        pinned=lambda topic, count: told.append((topic, count)),
    )  # fmt: skip
    watch.preset("telemetry", 6)
    assert watch.pinned("other") is None
    assert watch.pinned("telemetry") == watch.partition_count("telemetry") == 6
    assert told == []
    assert looks(watch, cluster, 1) == []
    assert state(watch).unused == 6
    cluster.topics["other"] = 3
    assert watch.partition_count("other") == 3
    assert told == [("other", 3)]

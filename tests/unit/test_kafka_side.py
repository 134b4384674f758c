"""The Kafka side of a worker, without a Kafka."""

import asyncio
import errno
import socket
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from bridge.errors import UnreachableError
from bridge.produce.batch import Batch
from bridge.produce.dead_letter import DeadLetters
from bridge.produce.dispatch import SLOW
from bridge.routing.router import Router
from bridge.spool.files import Topics
from bridge.spool.record import SpoolBatch
from bridge.waiting import end_tasks
from config.settings import Settings
from gateway.base.lifecycle import StopRequest, StopVerb
from gateway.components.kafka_side import KafkaSide
from gateway.components.spooling import Spooling
from gateway.data_dir.directory import slots
from gateway.supervisor.member import Membership
from gateway.worker.worker import Worker
from tests.unit.fake_kafka import FakeBatch
from tests.waiting import until

ROUTE = {"name": "r", "filters": ["a"], "topic": "t"}


async def test_a_topic_is_released_when_the_last_record_for_it_is_written(tmp_path: Path) -> None:
    """Watched for ever, it would be a problem, or be created again, once its operator deletes it."""

    def made(*topics: str) -> Settings:
        routes = [{"name": topic, "filters": [f"devices/d{n}/#"], "topic": topic} for n, topic in enumerate(topics)]
        return Settings(data_dir=tmp_path, routes=routes, dead_letter={"topic": "dead"}, ledger={"topic": ""})

    worker = Worker(made("one", "two"), StopRequest())
    kafka = worker.kafka
    for topic in ("one", "two"):
        kafka.topic_watch.preset(topic, 3)
    slot = worker.mqtt.groups[0].accumulator.slot("two", 1, "two", 0)
    builder = FakeBatch(1000)
    builder.append(0, 0, b"key", b"value", [])
    slot.queue.in_flight = Batch(slot, builder, 0)

    after = made("one")
    router = Router(after.routes, instance=after.instance)
    router.before([worker.mqtt.router])
    worker.adopt(after, router, worker.mqtt.chains)
    kafka.release_unused()
    slot.queue.in_flight, batch = None, slot.queue.in_flight
    kafka.release_unused()
    assert kafka.topic_watch.pinned("two") == 3, "before the reload is finished there is a way back"
    slot.queue.in_flight = batch
    kafka.settle()
    assert kafka.topic_watch.pinned("two") == 3, "a record waits for it"
    slot.queue.in_flight = None
    dispatcher, late = worker.mqtt.groups[0].dispatcher, b"devices/d1/late"
    assert dispatcher.entry(2, late) is not SLOW
    kafka.release_unused()
    assert (kafka.topic_watch.pinned("one"), kafka.topic_watch.pinned("two")) == (3, None)
    assert late not in dispatcher.caches[2], "its next message asks for the topic, which may be gone"
    worker.mqtt.chains.close()


async def test_a_topic_that_a_template_makes_too_is_not_released(tmp_path: Path) -> None:
    """Without its number of partitions its records would wait in memory in an outage, instead of on disk."""
    worker = Worker(Settings(data_dir=tmp_path, routes=[ROUTE]), StopRequest())
    kafka = worker.kafka
    dead = worker.settings.dead_letter.topic
    for topic in ("t", dead):
        kafka.topic_watch.preset(topic, 3)
    route = {"name": "made", "filters": ["+"], "topic": "${topic[0]}", "dead_letter_topic": "its-own"}
    after = Settings(data_dir=tmp_path, routes=[route], dead_letter={"topic": "other"})
    worker.adopt(after, Router(after.routes, instance=after.instance), worker.mqtt.chains)
    accumulator = worker.mqtt.groups[0].accumulator
    accumulator.slot("made", 1, "t", 0)
    accumulator.slot("made", 1, dead, 0, dead_letter=True)
    kafka.settle()
    assert (kafka.topic_watch.pinned("t"), kafka.topic_watch.pinned(dead)) == (3, None)
    worker.mqtt.chains.close()


async def test_a_reload_s_dry_run_does_not_forget_a_topic_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template has made it. Without metadata it would be reported as deleted until its next record."""
    kafka = Worker(Settings(data_dir=tmp_path, routes=[ROUTE]), StopRequest()).kafka
    producer = Mock()
    monkeypatch.setattr(kafka, "started_producer", lambda: producer)
    monkeypatch.setattr(kafka.topics, "missing", AsyncMock(return_value=["new"]))
    kafka.topic_watch.preset("site-oslo", 3)
    assert await kafka.missing(["new", "site-oslo"]) == ["new"]
    producer.forget_topics.assert_called_once_with(["new"])


async def test_the_ledger_s_topic_is_missed_when_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {"ledger": 1}
    producer = Mock(partition_count=topics.get, refused=lambda _topic: False)
    monkeypatch.setattr(KafkaSide, "producer", lambda _self: producer)
    kafka = Worker(Settings(data_dir=tmp_path, routes=[ROUTE], ledger={"topic": "ledger"}), StopRequest()).kafka
    monkeypatch.setattr(kafka.topics, "ensure", AsyncMock())
    monkeypatch.setattr(kafka.sender, "start", AsyncMock())
    kafka.counts.started.set()
    await kafka.start()
    topics.clear()
    looks = []
    for refreshed_ns in (1, 2, 3):
        producer.metadata_refreshed_ns.return_value = refreshed_ns
        looks.append(kafka.topic_watch.look())
    assert looks == [[], [], ["ledger"]]


@pytest.mark.parametrize("successor", [False, True])
async def test_a_worker_that_replaces_another_is_not_warm_without_kafka(
    successor: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one goes on meanwhile: with a wrong address in the new settings, all would be replaced."""
    monkeypatch.setattr("gateway.components.kafka_side.Backoff", lambda *_: Mock(next_ns=lambda _now: 1))
    monkeypatch.setattr(KafkaSide, "producer", lambda _self: Mock(partition_count=lambda _topic: 1))
    settings = Settings(data_dir=tmp_path, routes=[ROUTE], ledger={"topic": ""})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        membership = Membership(theirs, settings, retiring=False, successor=successor)
        kafka = Worker(settings, StopRequest(), membership).kafka
        kafka.counts.started.set()
        monkeypatch.setattr(kafka.topics, "ensure", AsyncMock())
        monkeypatch.setattr(kafka.sender, "start_later", Mock())
        monkeypatch.setattr(kafka.sender, "start", start := AsyncMock(side_effect=[UnreachableError("down"), None]))
        await kafka.start()
        assert start.await_count == 1 + successor
        await end_tasks(kafka._late)


async def test_the_keys_of_an_earlier_life_s_spool_may_be_of_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = Mock()
    monkeypatch.setattr(DeadLetters, "doubt_keys", doubt)
    for lives in range(2):
        spooling = Worker(Settings(data_dir=tmp_path, routes=[ROUTE]), StopRequest()).spooling
        await spooling.start()
        assert doubt.call_count == lives
        await spooling.store.append([SpoolBatch("t", 0, "r", 1, False, 1, (), 1_700_000_000_000, b"x")])
        await spooling.stop(0)


async def test_partitions_of_a_topic_that_the_disk_refuses_are_remembered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them a later start without Kafka would wait, and the MQTT broker's queue would overflow."""
    monkeypatch.setattr("gateway.components.spooling.RETRY_S", 0.01)
    monkeypatch.setattr(Topics, "write", Mock(side_effect=[OSError(errno.ENOSPC, "No space"), None]))
    spooling = Worker(Settings(data_dir=tmp_path, routes=[ROUTE]), StopRequest()).spooling
    await spooling.start()
    spooling.remember("t", 3)
    await until(lambda: spooling.store.topics() == {"t": 3}, "it is written")
    await spooling.stop(0)


async def test_partitions_that_a_topic_got_wait_for_the_spool_and_are_remembered_once_in_use(tmp_path: Path) -> None:
    """A topic that no route names any more, and then one again, is pinned anew. What is spooled after that is for the
    new partitions, and so must be what the next life takes."""

    async def remembered(spooling: Spooling, count: int) -> None:
        await until(lambda: spooling.store.topics() == {"t": count}, f"{count} partitions are remembered")

    for count in (3, 6):
        spooling = Worker(Settings(data_dir=tmp_path, routes=[ROUTE]), StopRequest()).spooling
        spooling.remember("t", count)  # Kafka was asked before the slot was free
        await spooling.start()
        await remembered(spooling, 3)
        await spooling.store.append([SpoolBatch("t", 0, "r", 1, False, 1, (), 1_700_000_000_000, b"x")])
        spooling.remember("t", count)
        await remembered(spooling, count)
        await spooling.stop(0)


async def test_without_kafka_only_topics_in_use_are_pinned(tmp_path: Path) -> None:
    """A topic of routes that are long gone would be made anew, once Kafka is back, or be a problem for ever."""
    worker = Worker(Settings(data_dir=tmp_path, routes=[ROUTE], dead_letter={"topic": "dead"}), StopRequest())
    spooling, kafka = worker.spooling, worker.kafka
    for topic in ("t", "dead", "old", "site-oslo"):
        spooling.remember(topic, 3)
    assert spooling.pin_all(kafka.routed_topics())
    assert kafka.partition_count("site-oslo") == 3, "a template's, which now has a record"
    assert [state.name for state in kafka.topic_watch.states()] == ["dead", "site-oslo", "t"]


async def test_a_worker_that_retires_before_its_spool_is_open_keeps_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up, it would have retired, and whoever removes its volume removes acknowledged messages."""
    settings = Settings(data_dir=tmp_path, routes=[ROUTE], http={"port": 0})
    spooling = Worker(settings, StopRequest()).spooling
    await spooling.start()
    await spooling.store.append([SpoolBatch("t", 0, "r", 1, False, 1, (), 1_700_000_000_000, b"x")])
    await spooling.stop(0)
    stop = StopRequest()
    worker = Worker(settings, stop)

    async def start() -> None:
        stop.request(StopVerb.RETIRE)
        await asyncio.Event().wait()

    monkeypatch.setattr(worker.kafka.sender, "start", start)
    assert (await worker.service.run(stop)).clean
    assert slots(tmp_path) == {0}


async def test_a_stop_that_is_cut_short_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal, while Kafka is down: the ledger's last record took all the time, and the producer stayed."""
    worker = Worker(Settings(data_dir=tmp_path, routes=[ROUTE], ledger={"topic": "ledger"}), StopRequest())
    monkeypatch.setattr(worker.kafka.sender, "close", close := AsyncMock())
    before = asyncio.all_tasks()
    await worker.ledger_log.start()
    stop = asyncio.create_task(worker.kafka.stop(0))
    await asyncio.sleep(0)
    await end_tasks(stop)
    close.assert_awaited_once()
    assert asyncio.all_tasks() == before

"""Which life it is, and whether the one before wrote its last record."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import RefusedError, TopicMissingError
from bridge.ledger import Ledger
from config.settings import Settings
from gateway.data_dir.ledger_log import LedgerLog, begin_life, end_life
from tests.unit.fake_kafka import FakeKafka


def test_a_life_knows_the_one_before_and_how_it_ended(tmp_path: Path) -> None:
    first = begin_life(tmp_path, "gw", 0, 1)
    assert (first.previous_life, first.previous_clean) == (None, None)
    second = begin_life(tmp_path, "gw", 0, 2)
    assert (second.previous_life, second.previous_clean) == (first.life, False)
    end_life(tmp_path, second)
    third = begin_life(tmp_path, "gw", 0, 3)
    assert (third.previous_life, third.previous_clean) == (second.life, True)
    assert len({first.life, second.life, third.life}) == 3


def test_workers_have_lives_of_their_own(tmp_path: Path) -> None:
    end_life(tmp_path, begin_life(tmp_path, "gw", 0, 1))
    assert begin_life(tmp_path, "gw", 1, 1).previous_life is None


def test_a_damaged_file_of_the_life_before_ends_no_start(tmp_path: Path) -> None:
    begin_life(tmp_path, "gw", 0, 1)
    (tmp_path / "worker-0.life").write_bytes(b"\xff\xfe\x00")
    assert begin_life(tmp_path, "gw", 0, 2).previous_clean is False


def test_a_life_that_ends_after_the_next_has_begun_does_not_end_that_one(tmp_path: Path) -> None:
    """Where workers take turns, the old one writes its last record while the new one runs already."""
    old = begin_life(tmp_path, "gw", 0, 1)
    new = begin_life(tmp_path, "gw", 0, 2)
    end_life(tmp_path, old)
    assert begin_life(tmp_path, "gw", 0, 3).previous_clean is False
    assert new.life != old.life


def make_log(
    tmp_path: Path, kafka: FakeKafka, topic: str = "ledger", headers: Sequence[str] = ("gateway",)
) -> tuple[LedgerLog, Any]:
    settings = Settings(
        data_dir=tmp_path, instance="gw", ledger={"topic": topic, "interval": 1},
        routes=[{"name": "a", "filters": ["a"], "topic": "a", "metadata_headers": headers}],
    )  # fmt: skip
    producer = kafka.make_producer([topic] if topic else [])
    ledger = Ledger(lambda: 0)
    return LedgerLog(settings, ledger, lambda: producer, lambda _reason: None), producer


def test_a_route_counts_as_tagged_while_all_of_its_records_have_been(tmp_path: Path) -> None:
    """Routes change while the life goes on: verify must not look for a header in records that were made without."""

    def made(**routes: bool) -> Settings:
        return Settings(
            data_dir=tmp_path,
            routes=[
                {"name": name, "filters": [name], "topic": "t", "metadata_headers": ["gateway"] if tagged else []}
                for name, tagged in routes.items()
            ],
        )

    log = LedgerLog(made(a=True, b=True, c=False), Ledger(lambda: 0), lambda: None, lambda _reason: None)
    assert log.tagged == {"a", "b"}
    log.adopt(made(b=False, c=True, d=True))
    assert log.tagged == {"a", "d"}, "a may get messages that were queued for it"
    log.adopt(made(a=True, b=True, c=True))
    assert log.tagged == {"a", "d"}


async def test_spooled_records_of_a_route_that_was_untagged_are_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    """The header was turned on while Kafka was away: what the spool has lacks it, in whichever life it leaves."""
    headers: list[str] = []
    for spooled, tagged in [(False, False), (True, False), (True, False), (False, True)]:
        kafka = FakeKafka("ledger")
        log, producer = make_log(tmp_path, kafka, headers=headers)
        await producer.start()
        await log.start(spooled=spooled)
        assert ("a" in log.tagged) is tagged
        await log.stop(time.monotonic_ns() + 60 * 10**9)
        await producer.close(patience_s=1)
        headers = ["gateway"]


async def test_what_it_writes_says_whose_it_is_and_a_clean_end_is_noted(tmp_path: Path) -> None:
    kafka = FakeKafka()
    topic = kafka.topic("ledger")
    for previous in (None, True):
        log, producer = make_log(tmp_path, kafka)
        await producer.start()
        await log.start()
        await log.stop(time.monotonic_ns() + 60 * 10**9)
        await log.stop(0)  # again changes nothing
        await producer.close(patience_s=1)
        started, stopped = (json.loads(record.value or b"") for record in topic.records()[-2:])
        assert (started["state"], stopped["state"]) == ("started", "stopped")
        assert started["previous_clean"] is previous
        assert started["gateway"] == "gw"


async def test_an_end_that_could_not_be_written_is_none(tmp_path: Path) -> None:
    kafka = FakeKafka()
    kafka.topic("ledger", refused=True)
    log, producer = make_log(tmp_path, kafka)
    await producer.start()
    await log.start()
    await asyncio.wait_for(log.stop(0), 60)
    await producer.close(patience_s=1)
    assert begin_life(tmp_path, "gw", 0, 1).previous_clean is False


async def test_without_a_topic_nothing_is_written_anywhere(tmp_path: Path) -> None:
    log, _ = make_log(tmp_path, FakeKafka(), "")
    await log.start()
    assert log.waiting == 0
    await log.stop(0)
    assert begin_life(tmp_path, "gw", 0, 1).previous_life is None, "no life was begun"


@pytest.mark.parametrize("kind", [TopicMissingError, RefusedError])
async def test_a_topic_that_cannot_be_used_is_said_with_the_way_out(tmp_path: Path, kind: type[Exception]) -> None:
    class Topics:
        async def ensure(self, _producer: object, topics: list[str]) -> None:
            raise kind(f"Kafka has no topic {topics[0]}.")

    log, producer = make_log(tmp_path, FakeKafka())
    with pytest.raises(kind) as raised:
        await log.ensure(Topics(), producer)  # type: ignore[arg-type]
    assert str(raised.value).startswith("Kafka has no topic ledger. It is for the ledger")
    assert 'ledger.topic = "" runs without one.' in str(raised.value)

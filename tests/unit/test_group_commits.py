"""Commits of a group's member whose coordinator's answers are scripted; tests/integration has a real one."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from bridge.commands.ports import Committed, Partition
from bridge.errors import RefusedError, UnreachableError
from bridge.kafka.group import GroupMember
from config.settings import KafkaSettings
from tests.unit.manual_time import manual_time

ONE, OTHER = ("commands", 0), ("commands", 1)


class Coordinator:
    """Answers a member's commits with ``codes``, and notes what was committed."""

    def __init__(self) -> None:
        self.codes: dict[Partition, list[int]] = {}
        self.asked: list[dict[Partition, int]] = []
        self.member = GroupMember(
            KafkaSettings(), "test", group="group", instance="one", topics=["commands"], listener=MagicMock()
        )
        self.member._consumer, self.member._ask = MagicMock(), self.ask  # type: ignore[method-assign]
        self.own()

    def own(self) -> None:
        self.member._owned, self.member._generation = frozenset([ONE, OTHER]), 1

    async def ask(self, question: Any, **_: object) -> Any:
        topics = question._fields[-1]
        self.asked.append({(topic, row[0]): row[1] for topic, rows in topics for row in rows})
        coded = [(topic, [(row[0], self.code((topic, row[0]))) for row in rows]) for topic, rows in topics]
        return SimpleNamespace(topics=coded)

    def code(self, at: Partition) -> int:
        codes = self.codes.get(at, [0])
        return codes.pop(0) if len(codes) > 1 else codes[0]


@manual_time
async def test_an_error_of_one_partition_holds_up_no_commit_of_another() -> None:
    """Its topic was deleted: later commits of the others waited for kafka.request_timeout each time."""
    kafka = Coordinator()
    kafka.codes[ONE] = [3]
    for offset in (1, 2):
        with pytest.raises(UnreachableError, match=r"UnknownTopicOrPartitionError \(3\)"):
            await kafka.member.commit({ONE: Committed(offset, ""), OTHER: Committed(offset, "")})
    assert kafka.asked == [{ONE: 1, OTHER: 1}, {ONE: 2, OTHER: 2}]


@manual_time
async def test_what_the_coordinator_cannot_take_yet_is_tried_again_alone() -> None:
    kafka = Coordinator()
    kafka.codes = {ONE: [12], OTHER: [14, 0]}
    assert await kafka.member.commit({ONE: Committed(1, ""), OTHER: Committed(1, "")}) == {ONE}
    assert kafka.asked == [{ONE: 1, OTHER: 1}, {OTHER: 1}]


@manual_time
async def test_a_commit_is_not_tried_again_for_a_partition_that_went_and_came_back() -> None:
    """It overwrote the later commit of the owner in between."""
    kafka = Coordinator()
    kafka.codes[ONE] = [14]
    asked = kafka.ask

    async def ask(question: Any, **options: object) -> Any:
        kafka.member._lose("a pause")
        kafka.own()
        return await asked(question, **options)

    kafka.member._ask = ask  # type: ignore[method-assign]
    with pytest.raises(RefusedError):
        await kafka.member.commit({ONE: Committed(1, "")})
    assert len(kafka.asked) == 1

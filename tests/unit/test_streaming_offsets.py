"""Which offsets a batch was planned with, and what of them counts as lost."""

import json
from typing import cast

import pytest

from streaming.kafka.offsets import Gap, Planned, lost_before, planned_ranges, unreadable
from streaming.lake.storage import Folder


class Checkpoint:
    """The files of a checkpoint, by name."""

    def __init__(self, **files: dict[str, dict[str, int]]) -> None:
        self._files = {name.replace("__", "/"): f"v1\n{json.dumps(it)}" for name, it in files.items()}

    def read_text(self, name: str) -> str | None:
        return self._files.get(name)


def planned(batch: int, **files: dict[str, dict[str, int]]) -> list[Planned]:
    return planned_ranges(cast("Folder", Checkpoint(**files)), batch)


def test_the_first_batch_begins_where_the_source_began() -> None:
    assert planned(0, sources__0__0={"t": {"0": 7}}, offsets__0={"t": {"0": 10}}) == [Planned("t", 0, 7, 10)]


def test_a_new_partition_begins_at_0_and_a_new_topic_where_kafka_has_it() -> None:
    found = planned(4, offsets__3={"t": {"0": 5}}, offsets__4={"t": {"0": 9, "1": 3}, "u": {"0": 20}})
    assert found == [Planned("t", 0, 5, 9), Planned("t", 1, 0, 3), Planned("u", 0, -1, 20)]


def test_a_partition_that_is_gone_has_no_end() -> None:
    found = planned(4, offsets__3={"t": {"0": 5, "1": 6}}, offsets__4={"t": {"0": 9}})
    assert found == [Planned("t", 0, 5, 9), Planned("t", 1, 6, None)]
    assert sum(one.size for one in found) == 4


def test_a_checkpoint_without_the_batch_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        planned(4, offsets__3={"t": {"0": 5}})


@pytest.mark.parametrize(("one", "earliest", "recreated", "lost"), [
    (Planned("t", 0, 5, 9), 5, False, None),
    (Planned("t", 0, 5, 9), 0, False, None),
    (Planned("t", 0, 5, 9), 6, False, Gap("t", 0, 5, 5, "deleted")),
    (Planned("t", 0, 5, 9), 200, False, Gap("t", 0, 5, 8, "deleted")),
    (Planned("t", 0, 5, 5), 200, False, None),
    (Planned("t", 0, 5, None), 0, False, Gap("t", 0, 5, None, "gone")),
    (Planned("t", 0, 1000, 2000), 0, True, Gap("t", 0, 0, 999, "recreated")),
    (Planned("t", 0, 1000, 50), 0, False, Gap("t", 0, 0, 49, "recreated")),
    (Planned("t", 0, 1000, 50), 10, True, Gap("t", 0, 10, 49, "recreated")),
    (Planned("t", 0, 1000, 0), 0, True, None),
])  # fmt: skip
def test_what_is_lost_before_a_batch_is_read(one: Planned, earliest: int, recreated: bool, lost: Gap | None) -> None:
    found = lost_before([one], {("t", 0): earliest}, {"t"} if recreated else set())
    assert found == ([] if lost is None else [lost])


@pytest.mark.parametrize(("low", "high", "gone"), [
    (0, 100, []), (5, 10, []), (7, 100, [Gap("t", 0, 5, 6, "deleted")]), (30, 100, [Gap("t", 0, 5, 9, "deleted")]),
    (0, 7, [Gap("t", 0, 7, 9, "truncated")]), (0, 3, [Gap("t", 0, 5, 9, "truncated")]),
    (6, 9, [Gap("t", 0, 5, 5, "deleted"), Gap("t", 0, 9, 9, "truncated")]),
])  # fmt: skip
def test_what_kafka_no_longer_has_of_a_range(low: int, high: int, gone: list[Gap]) -> None:
    assert unreadable(Planned("t", 0, 5, 10), low, high) == gone
    assert unreadable(Planned("t", 0, 5, 5), low, high) == []
    assert unreadable(Planned("t", 0, 5, None), low, high) == []

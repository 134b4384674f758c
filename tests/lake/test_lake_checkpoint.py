"""What a checkpoint's note refuses, takes and tells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from config.errors import ConfigError
from config.settings import StreamSettings
from streaming import job_lock
from streaming.checkpoint import VERSION, prepare_checkpoint
from streaming.reset import apply, plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

FIXED = {"state": 1, "stream.shuffle_partitions": 2}


@pytest.fixture
def begun(spark: SparkSession, tmp_path: Path) -> Iterator[StreamSettings]:
    """A checkpoint that a query has begun, with a state and topics."""
    stream = StreamSettings(checkpoint=tmp_path)
    prepare_checkpoint(spark, stream, "silver", FIXED, topics=["a", "b"])
    (tmp_path / "silver").mkdir()
    (tmp_path / "silver" / "metadata").write_text('{"id":"1"}')
    yield stream
    job_lock.let_go(str(tmp_path), "silver")


def note(stream: StreamSettings) -> dict[str, object]:
    found: dict[str, object] = json.loads((stream.checkpoint / "silver.json").read_text())
    return found


def test_what_the_state_depends_on_cannot_be_changed_under_it(spark: SparkSession, begun: StreamSettings) -> None:
    before = note(begun)
    for changed in ({"state": 2, "stream.shuffle_partitions": 2}, {"state": 1, "stream.shuffle_partitions": 4}):
        with pytest.raises(ConfigError, match=r"is now \d, was \d\. .*gateway stream reset silver"):
            prepare_checkpoint(spark, begun, "silver", changed)
    assert note(begun) == before
    prepare_checkpoint(spark, begun, "silver", FIXED)
    assert note(begun) == before, "what is not told stays"


def test_a_newer_versions_and_another_querys_checkpoint_are_refused(spark: SparkSession, begun: StreamSettings) -> None:
    file = begun.checkpoint / "silver.json"
    (begun.checkpoint / ".silver.json.crc").unlink()  # or Hadoop would take what follows for damage
    file.write_text(json.dumps({"version": VERSION + 1, "query": "silver"}))
    with pytest.raises(ConfigError, match="newer version"):
        prepare_checkpoint(spark, begun, "silver")
    file.write_text(json.dumps({"version": VERSION, "query": "gold"}))
    with pytest.raises(ConfigError, match="belongs to the query gold, not to silver"):
        prepare_checkpoint(spark, begun, "silver")


def test_a_query_begins_anew_after_a_reset(spark: SparkSession, begun: StreamSettings) -> None:
    job_lock.let_go(str(begun.checkpoint), "silver")
    apply(plan(begun, "silver", 0))
    assert sorted(path.name for path in begun.checkpoint.iterdir() if "silver" in path.name) == [
        ".silver.reset-19700101T000000Z.json.crc", "silver.lock", "silver.reset-19700101T000000Z",
        "silver.reset-19700101T000000Z.json",
    ]  # fmt: skip
    prepare_checkpoint(spark, begun, "silver", {"state": 2})
    (begun.checkpoint / "silver").mkdir()
    (begun.checkpoint / "silver" / "metadata").write_text('{"id":"2"}')
    prepare_checkpoint(spark, begun, "silver", {"state": 2})
    assert note(begun)["state"] == 2


def test_topics_that_come_and_go_are_told_once(
    spark: SparkSession, begun: StreamSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_checkpoint(spark, begun, "silver", topics=["b", "c"])
    said = capsys.readouterr().err
    assert "silver reads c from now on, from the oldest record" in said
    assert "silver does not read a any more" in said
    prepare_checkpoint(spark, begun, "silver", topics=["c", "b"])
    assert capsys.readouterr().err == ""

"""``gateway stream prepare``: what it runs is silver, whole."""

import argparse
import contextlib
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from config.errors import ConfigError
from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import SilverSettings
from streaming import run
from streaming.errors import StreamError
from streaming.lake.delta_files import read_rows
from streaming.upkeep import prepare
from tests.lake.silver_support import schema_folder


def test_records_of_its_own_become_readings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda: contextlib.nullcontext(str(tmp_path)))
    silver = SilverSettings(schemas=schema_folder(tmp_path / "schemas", temperature="number"))
    assert prepare.run(spark, Settings(stream=StreamSettings(silver=silver)), argparse.Namespace()) == 0
    assert read_rows(str(tmp_path / "lake" / "silver"), ["device"]).num_rows == 999


def test_a_cluster_has_no_use_for_it(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"set stream\.master"):
        prepare.run(spark, Settings(stream=StreamSettings(master="spark://host:7077")), argparse.Namespace())


def test_it_says_what_it_has_written_or_that_there_is_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "classes-1-2-3000000.jsa"
    archive.write_bytes(bytes(3_000_000))
    assert run._prepared(archive) == f"Spark maps {archive} from now on (3 MB)."
    with pytest.raises(StreamError, match="were not written"):
        run._prepared(None)

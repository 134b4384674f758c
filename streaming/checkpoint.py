"""Where a query keeps how far it is, and the settings that are fixed once it has begun.

``<stream.checkpoint>/<query>/`` is Spark's, ``<query>.json`` beside it is ours.
"""

from __future__ import annotations

__all__ = ["prepare_checkpoint"]

import json
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError
from streaming.storage import Folder, location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from config.settings import StreamSettings

VERSION = 1
"""Raised when a new version of the jobs cannot go on from an old checkpoint."""


def prepare_checkpoint(
    spark: SparkSession, stream: StreamSettings, query: str, fixed: Mapping[str, str | int] | None = None
) -> Folder:
    """The query's checkpoint folder, for ``checkpointLocation``. ``fixed``: settings, by name, the state depends on.

    Raises ConfigError if the folder was begun with others: Spark would ignore the change, or mix both in its state.
    """
    beside = Folder(spark, location(stream.checkpoint))
    folder = Folder(spark, f"{beside.url.rstrip('/')}/{query}")
    wanted: dict[str, Any] = {"version": VERSION, **(fixed or {})}
    note = f"{query}.json"
    text = beside.read_text(note) if folder.exists("metadata") else None
    if text is None:
        beside.make()
        beside.write_text(note, json.dumps(wanted))
        return folder
    begun: dict[str, Any] = json.loads(text)
    if changed := [name for name in wanted if begun.get(name) != wanted[name]]:
        differences = ", ".join(f"{name} is now {wanted[name]}, was {begun.get(name)}" for name in changed)
        raise ConfigError(
            f"The checkpoint {folder.url} was begun with other settings: {differences}. What it has computed so far"
            " would not fit. Set that back, or give stream.output, stream.quarantine and stream.checkpoint new folders:"
            " the query then starts again from what Kafka still holds."
        )
    return folder

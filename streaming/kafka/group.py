"""How far a query has read, committed to Kafka under a group's name, so that Kafka's own tools show its lag.

Nothing reads these offsets back: the checkpoint alone says where a query goes on. What is committed is the end of a
batch that Spark has reported, which it does after the batch is in the checkpoint, so never more than is there.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from streaming.kafka.admin import KafkaAdmin
from streaming.kafka.failures import cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from config.settings import KafkaSettings
    from streaming.metrics import StreamMetrics
    from streaming.progress import Offsets

_CLOSE_TIMEOUT_S: Final = 5.0
_BETWEEN_S: Final = 1.0
"""Batches may follow each other faster than anyone looks at lag."""


def group_name(prefix: str, query: str) -> str:
    return f"{prefix}-{query}"


class GroupCommitter:
    """Commits the newest offsets of each query, in a thread of its own: a batch never waits for it.

    A failure is written to standard error once, until a commit succeeds again; the job goes on. ``close`` waits for
    what was offered last, a few seconds at most.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, prefix: str, metrics: StreamMetrics) -> None:
        self._admin, self._prefix, self._metrics = KafkaAdmin(spark, kafka), prefix, metrics
        self._changed = threading.Condition()
        self._newest: dict[str, Offsets] = {}
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="stream-group", daemon=True)
        self._thread.start()

    def offer(self, query: str, offsets: Offsets) -> None:
        """Has these committed soon; returns at once. A later offer replaces one that waits."""
        if offsets:
            with self._changed:
                self._newest[query] = offsets
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._newest or self._closing)
                closing, waiting, self._newest = self._closing, self._newest, {}
            for query, offsets in waiting.items():
                self._commit(query, offsets)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, _BETWEEN_S)
        with suppress(Exception):
            self._admin.close()

    def _commit(self, query: str, offsets: Offsets) -> None:
        group = group_name(self._prefix, query)
        try:
            self._admin.commit(group, offsets)
        except Exception as error:  # noqa: BLE001 (whatever it is, it must not end the job)
            self._metrics.commit_failed(query)
            if not self._failing:
                print(  # noqa: T201 (what people read)
                    f"warning: how far {query} has read could not be committed to the group {group}:"
                    f" {cause(str(error))}. The job goes on; Kafka's tools show an old lag. Does the user have Read on"
                    ' the group and the topics? stream.group = "" commits nothing.',
                    file=sys.stderr,
                    flush=True,
                )
            self._failing = True
        else:
            self._failing = False

"""How far a query has read, committed to Kafka under a group's name, so that Kafka's own tools show its lag.

Nothing reads these offsets back: the checkpoint alone says where a query goes on. What is committed is the end of a
batch that Spark has reported, which it does after the batch is in the checkpoint, so never more than is there.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from pyspark.sql import SparkSession

from config.settings import KafkaSettings
from streaming.errors import tell
from streaming.kafka.admin import KafkaAdmin
from streaming.kafka.failures import cause
from streaming.metrics import StreamMetrics
from streaming.progress import Offsets

_CLOSE_TIMEOUT_S: Final = 5.0


class GroupCommitter:
    """Commits the newest offsets of each query, in a thread of its own: a batch never waits for it. A failure is
    written to standard error once, until a commit succeeds again; the job goes on. ``close`` waits for what was offered
    last, a few seconds at most."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, prefix: str, metrics: StreamMetrics) -> None:
        self._admin, self._prefix, self._metrics = KafkaAdmin(spark, kafka), prefix, metrics
        self._thread = ThreadPoolExecutor(1, "stream-group")
        self._newest: dict[str, Offsets] = {}
        self._failing = False

    def offer(self, query: str, offsets: Offsets) -> None:
        """Has these committed soon, if groups have a prefix; returns at once. A later offer replaces one that waits."""
        if self._prefix and offsets:
            self._newest[query] = offsets
            with suppress(RuntimeError):  # Spark may report a last batch after the end
                self._thread.submit(self._commit, query)

    def close(self) -> None:
        with suppress(Exception):
            self._thread.submit(self._admin.close).result(_CLOSE_TIMEOUT_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _commit(self, query: str) -> None:  # the newest offer, in the thread
        if (offsets := self._newest.pop(query, None)) is None:
            return  # an earlier call has committed the later offer
        group = f"{self._prefix}-{query}"
        try:
            self._admin.commit(group, offsets)
        except Exception as error:  # noqa: BLE001 (whatever it is, it must not end the job)
            self._metrics.of("group_commit_failures_total", query).inc()
            if not self._failing:
                tell(
                    f"warning: how far {query} has read could not be committed to the group {group}:"
                    f" {cause(str(error))}. The job goes on; Kafka's tools show an old lag. Does the user have Read on"
                    ' the group and the topics? stream.group = "" commits nothing.'
                )
            self._failing = True
        else:
            self._failing = False

"""Which topic of a name a query has read. One that was deleted and made anew counts its offsets from 0 again, and Spark
notices that only while it is shorter than the old one was."""

import json
import math
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from config.settings import Settings
from streaming.errors import DataLossError
from streaming.kafka.admin import asked
from streaming.lake.storage import Folder, location


class TopicIds:
    """In a file beside the query's checkpoint: ``{topic: [[batch, id], …]}``, an entry where it changed. A repeated
    batch is judged by what was known before its first attempt. ``audit`` notes a time in ms in place of the batch."""

    def __init__(self, spark: SparkSession, settings: Settings, query: str) -> None:
        self._folder = Folder(spark, location(settings.stream.checkpoint))
        self._name = f"{query}_topics.json"
        text = self._folder.read_text(self._name)
        self._ids: dict[str, list[tuple[int, str]]] = {} if text is None else json.loads(text)

    def changed(self, ids: Mapping[str, str], batch: float = math.inf) -> set[str]:
        """The topics that are other ones than before this batch."""
        before = {topic: [id_ for since, id_ in its if since < batch] for topic, its in self._ids.items()}
        return {topic for topic, id_ in ids.items() if before.get(topic) and before[topic][-1] != id_}

    def since(self, topic: str) -> int:
        """The number that the topic's id was noted with."""
        return self._ids[topic][-1][0]

    def keep(self, ids: Mapping[str, str], batch: int) -> None:  # notes the new ones as met in the batch
        new = {topic: id_ for topic, id_ in ids.items() if topic not in self._ids or self._ids[topic][-1][1] != id_}
        for topic, id_ in new.items():
            self._ids.setdefault(topic, []).append((batch, id_))
        if new:
            self._folder.write_text(self._name, json.dumps(self._ids))


def present_ids(spark: SparkSession, settings: Settings, query: str, topics: Iterable[str]) -> dict[str, str]:
    """Kafka's ids of those of the topics that it has now. Raises a StreamError if it does not tell."""
    with asked(spark, settings, query) as admin:
        return admin.topic_ids(admin.present(topics))


def require_same_topics(
    spark: SparkSession, settings: Settings, query: str, topics: Iterable[str], *, allow_data_loss: bool
) -> None:
    """Raises DataLossError if a topic is another one than before this start, unless that is allowed; a StreamError if
    Kafka does not tell."""
    known, ids = TopicIds(spark, settings, query), present_ids(spark, settings, query, topics)
    if (changed := known.changed(ids)) and not allow_data_loss:
        raise DataLossError(
            f"{', '.join(sorted(changed))}: Kafka has another topic of that name now; the one that {query} has read was"
            f" deleted. {query} would go on at the offset where it was, and not read what is before. To read it,"
            f" begin anew: gateway stream reset {query}, which says what that means for the tables. To go on without,"
            " start once with --allow-data-loss."
        )
    known.keep(ids, 0)

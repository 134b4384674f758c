"""Topics that left ``stream.topics`` and are back: bronze goes on where it left them.

Spark's offsets of a batch name the topics of that batch alone, so it would read all that Kafka holds of them again, and
bronze would have those records twice.
"""

import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.settings import Settings
from streaming.bronze.tables import QUERY
from streaming.kafka.options import topics
from streaming.kafka.topic_ids import TopicIds, present_ids
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder


def take_up(spark: SparkSession, settings: Settings, checkpoint: Folder) -> None:
    """Puts the places where topics were left into the offsets that the next batch begins with, and takes the rows that
    call what came then ``gone`` out of the gaps. Before the query starts. A topic that is another one of its name now
    is read from its beginning. Raises a StreamError if Kafka does not tell which it is."""
    gaps = DeltaTable(spark, settings.stream, "bronze_gaps")
    commits = [int(name) for name in checkpoint.names("commits") if name.isdecimal()]
    if not commits:
        return
    plans = [
        (f"offsets/{name}", (checkpoint.read_text(f"offsets/{name}") or "").splitlines())
        for name in checkpoint.names("offsets")
        if name.isdecimal() and int(name) >= max(commits)  # with one that is not finished
    ]
    planned = {topic for _, lines in plans for topic in json.loads(lines[-1])}
    unplanned = sorted(set(topics(settings)) - planned)
    if not unplanned or not gaps.exists():
        return
    gone = gaps.read().where((F.col("reason") == "gone") & F.col("topic").isin(unplanned))
    left: dict[str, dict[str, int]] = {}
    for row in gone.groupBy("topic", "partition").agg(F.max("first_offset").alias("offset")).collect():
        left.setdefault(row.topic, {})[str(row.partition)] = row.offset
    if not left:
        return
    ids = present_ids(spark, settings, QUERY, left)
    back = sorted(ids.keys() - TopicIds(spark, settings, QUERY).changed(ids))
    if not back:
        return
    for name, lines in plans:
        places = json.loads(lines[-1]) | {topic: left[topic] for topic in back}
        checkpoint.write_text(name, "\n".join([*lines[:-1], json.dumps(places)]))
    named = ", ".join(f"'{topic}'" for topic in back)
    DeltaUpkeep(spark, gaps).delete(f"reason = 'gone' AND topic IN ({named})")

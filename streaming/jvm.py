"""What is done by the JVM behind a session, past pyspark's public face. Nothing else in here knows that face's inside.

Spark Connect's client has no such JVM, nor the context that ``run``, ``runtime``, ``kafka.source`` and ``lake.lake``
ask, and would run ``foreachBatch`` in another process than that of its counts, metrics and Kafka clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def java_class(spark: SparkSession, name: str) -> Any:
    """A class of the JVM: ``java_class(spark, "java.util.UUID").randomUUID()``. Lists and dicts become Java's where
    they are given. What the class raises is a py4j error."""
    # By its whole name: for _jvm.java.util.UUID the JVM would first look into every jar for classes of half the name.
    return getattr(spark._jvm, name)  # noqa: SLF001


def _session(spark: SparkSession) -> Any:
    return spark._jsparkSession  # noqa: SLF001


def file_system(spark: SparkSession, url: str) -> tuple[Any, Any]:
    """Hadoop's path of a URL, and the file system that it is on."""
    root = java_class(spark, "org.apache.hadoop.fs.Path")(url)
    return root, root.getFileSystem(_session(spark).sessionState().newHadoopConf())


def delta_snapshot(spark: SparkSession, url: str) -> Any:
    """A Delta table as it is now, an object of Delta's. Blocks for its log alone."""
    none = java_class(spark, "scala.Option").empty()
    log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(_session(spark), url)
    return log.update(False, none, none)


def delta_files(spark: SparkSession, url: str) -> DataFrame:
    """A Delta table's files, a row each: ``path``, ``size``, ``partitionValues``, ``deletionVector``, …"""
    from pyspark.sql import DataFrame  # late, as in all of this module: who looks at local folders needs no Spark

    return DataFrame(delta_snapshot(spark, url).allFiles().toDF(), spark)


def delta_mark(snapshot: Any, writer: str) -> int:
    """The last ``txnVersion`` that a Delta table has of a ``txnAppId``; -1 if there is none."""
    # The checksum beside a commit has all marks, if it could be written and they are at most a hundred. Delta itself
    # asks a Spark job for them, which takes more than to write few rows.
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    marks = (known.get() if known.isDefined() else snapshot.setTransactions()).iterator()
    found = -1
    while marks.hasNext():
        mark = marks.next()
        if mark.appId() == writer:
            found = int(mark.version())
    return found


def delta_append(rows: DataFrame, url: str, writer: str, batch: int) -> int:
    """Adds rows to a Delta table with a mark, ``batch`` as the ``txnVersion`` of the ``txnAppId`` ``writer``, if the
    table's own is lower. Returns the table's mark as it was. As ``rows.write`` with these options does, but that has a
    Spark job look the mark up each time."""
    spark, session = rows.sparkSession, _session(rows.sparkSession)
    delta, none = "org.apache.spark.sql.delta", java_class(rows.sparkSession, "scala.Option").empty()
    to_scala = java_class(spark, "org.apache.spark.api.python.PythonUtils")
    log = java_class(spark, f"{delta}.DeltaLog").forTable(session, url)
    transaction = log.startTransaction(none, none)
    transaction.readTxn().addOne(writer)  # so that of two at once with this mark one fails
    before = delta_mark(transaction.snapshot(), writer)
    if before < batch:
        mark = to_scala.toScalaMap({"txnAppId": writer, "txnVersion": str(batch)})
        options = java_class(spark, f"{delta}.DeltaOptions")(mark, session.sessionState().conf())
        mode, no_tags = java_class(spark, "org.apache.spark.sql.SaveMode").Append, to_scala.toScalaMap({})
        new: Any = rows._jdf  # noqa: SLF001
        command = java_class(spark, f"{delta}.commands.WriteIntoDelta")(
            log, mode, options, to_scala.toSeq([]), no_tags, new, none, none, False
        )
        operation = java_class(spark, f"{delta}.DeltaOperations$Write")(mode, *[none] * 8)
        transaction.commitIfNeeded(command.write(transaction, session, none, False), operation, no_tags)
    return before


def release(checkpointed: DataFrame) -> None:
    """Lets go of the rows that ``localCheckpoint`` kept."""
    plan: Any = checkpointed._jdf.queryExecution().analyzed()  # noqa: SLF001
    plan.rdd().unpersist(False)


def limit_rows(spark: SparkSession, query: StreamingQuery, most: int) -> None:
    """Has the sources of a query that read a number of records a batch read so many of them from the next batch on.
    Spark fixes the number when a query starts, and has no other way to change it."""
    running: Any = query._jsq.streamingQuery()  # noqa: SLF001
    limited = java_class(spark, "org.apache.spark.sql.connector.read.streaming.ReadLimit").maxRows(most)
    limits = running.uniqueSources()
    sources = limits.keysIterator()
    while sources.hasNext():
        source = sources.next()
        if limits.apply(source).getClass().equals(limited.getClass()):
            limits = limits.updated(source, limited)
    getattr(running, "uniqueSources_$eq")(limits)


def forget_gateway() -> None:
    """Has the next session of this process begin with a JVM of its own. This one is told no more of objects that Python
    has dropped: py4j would log a traceback for each, once the JVM is gone."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if gateway is not None:
        gateway._gateway_client.is_connected = False  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001

"""Kafka's records as readings of the schema folder's types: typed, in canonical units, or with what is wrong with them.

    records ─▶ type by header or topic ─▶ JSON: one from_json per group ─▶ shape ─▶ good? ─▶ signals, reason, detail
                                        └▶ Avro, Protobuf: a Python function, in the plan only if there are such types

No expression here may raise, because one poisoned record would then stop the stream for ever; Spark's ANSI casts and
indexes do raise.
"""

from __future__ import annotations

__all__ = ["decoded"]

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from bridge.wire import MQTT_TOPIC
from streaming.decode_binary import binary_payloads
from streaming.decode_faults import judged
from streaming.decode_shapes import BINARY, header, read_schemas, shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

    from streaming.decode_shapes import Shape
    from streaming.device_schemas import DeviceSchemas

_JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    # Spark's reader is more generous than JSON; a NaN would turn every mean of its window into NaN.
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}


def decoded(records: DataFrame, schemas: DeviceSchemas) -> DataFrame:
    """Kafka's columns, then ``device``, ``type``, ``seq``, ``ts_ms``, the signals (``schemas.columns``, in their
    canonical units), ``reason`` (a :class:`streaming.transforms.BadRecord`) and ``detail`` (words).

    ``reason`` and ``detail`` are null for a good record; a bad one's other columns mean nothing. ``ts_ms`` is the
    device's clock, as it had it, from 1970 to 9999. ``seq`` is null for types without a sequence number.

    A filter behind it may be moved to before the parsing, and with it a copy of the parsing for each field it needs:
    hold the rows first (``streaming.held``).
    """
    made = shapes(schemas)
    text = F.col("value").cast("string")
    claimed = records.withColumn("_route", _route(schemas))
    binary = [shape.number for shape in made if shape.group is None]
    if binary:
        claimed = claimed.withColumn(BINARY, binary_payloads(made, F.col("_route"), F.col("value")))
    parsed = _parsed(claimed, schemas, made, text)
    good = _by_shape(made, lambda shape: shape.good(text), F.lit(False))
    plainly = F.col("_whole") & F.col("_corrupt").isNull() & F.is_valid_utf8(text)
    if binary:
        plainly = plainly | F.col("_shape").isin(*binary)
    marked = (
        parsed.withColumn("_good", F.coalesce(plainly & F.coalesce(good, F.lit(False)), F.lit(False)))
        .withColumn("_fault", F.when(~F.col("_good"), judged(text, schemas, made)))
        .withColumn("reason", F.col("_fault.reason"))
    )
    nothing = F.lit(None)
    return marked.select(
        *(F.col(name) for name in records.columns),
        _by_shape(made, lambda shape: shape.device, nothing).cast("string").alias("device"),
        F.col("_type").alias("type"),
        _by_shape(made, lambda shape: shape.sequence, nothing).cast("bigint").alias("seq"),
        _by_shape(made, lambda shape: shape.ts_ms, nothing).cast("bigint").alias("ts_ms"),
        *_signals(schemas, made),
        F.col("reason"),
        F.col("_fault.detail").alias("detail"),
    )


def _route(schemas: DeviceSchemas) -> Column:
    """The type that header or topic tell; null if they tell none."""
    told = [F.lit(None).cast("string")]
    if schemas.type_header is not None:
        named = header(schemas.type_header)
        told.append(F.when(named.isin(*schemas.types), named))
    by_topic = [kind for kind in schemas.types.values() if kind.kafka_topics]
    told += [F.when(F.col("topic").isin(*kind.kafka_topics), F.lit(kind.name)) for kind in by_topic]
    for kind in schemas.types.values():
        told += [F.when(header(MQTT_TOPIC).rlike(_regex(topic)), F.lit(kind.name)) for topic in kind.mqtt_topics]
    return F.coalesce(*told)


def _regex(topic_filter: str) -> str:
    """What an MQTT topic filter matches (MQTT 5.0, 4.7.1 and 4.7.2): ``a/#`` matches ``a`` too, and a wildcard at the
    beginning no topic that begins with ``$``."""
    *levels, last = [
        "[^/]*" if level == "+" else level if level == "#" else rf"\Q{level}\E" for level in topic_filter.split("/")
    ]
    begin = r"(?s)\A(?!\$)" if topic_filter[0] in "+#" else r"(?s)\A"
    before = "/".join(levels)
    if last == "#":
        return rf"{begin}{before}(/.*)?\z" if levels else rf"{begin}.*\z"
    return rf"{begin}{'/'.join((*levels, last))}\z"


def _parsed(records: DataFrame, schemas: DeviceSchemas, made: Sequence[Shape], text: Column) -> DataFrame:
    """With ``_json0`` … (a group's payload, typed), ``_type``, ``_shape`` (a number), ``_corrupt`` and ``_whole`` (of
    the shape's own parsing).

    The payload is parsed inside an object of its own, ``{"record": …, "whole": true}``: Spark's reader stops after the
    first JSON value and would drop what follows it, such as the other lines of several readings sent as lines.
    """
    wrapped = F.concat(F.lit('{"record":'), text, F.lit(',"whole":true}'))
    groups = read_schemas(made, schemas.type_field)
    for number, schema in groups.items():
        names = [name for shape in made if shape.group == number for name in shape.names]
        parsed = F.from_json(wrapped, _wrapper(schema), _JSON_OPTIONS)
        if number == 0:
            elsewhere = [name for name in schemas.types if name not in names]
            asked = ~F.coalesce(F.col("_route").isin(*elsewhere), F.lit(False)) if elsewhere else None
        else:
            asked = F.col("_type").isin(*names)
            if schemas.other is not None and any(s.group == number and s.number == 0 for s in made):
                asked = F.coalesce(asked, F.lit(False)) | ~F.col("_type").isin(*schemas.types)
        records = records.withColumn(f"_parsed{number}", parsed if asked is None else F.when(asked, parsed))
        whole = F.col(f"_parsed{number}.whole")
        records = records.withColumn(f"_json{number}", F.when(whole, F.col(f"_parsed{number}.record")))
        if number == 0:
            records = records.withColumn("_type", F.coalesce("_route", F.col("_json0").getField(schemas.type_field)))
            records = records.withColumn("_shape", _shape(schemas, made))
    corrupt, whole = F.col("_parsed0._corrupt"), F.col("_parsed0.whole")
    for number in groups:
        if number:
            mine = F.col("_shape").isin(*(shape.number for shape in made if shape.group == number))
            corrupt = F.when(mine, F.col(f"_parsed{number}._corrupt")).otherwise(corrupt)
            whole = F.when(mine, F.col(f"_parsed{number}.whole")).otherwise(whole)
    return records.withColumns({"_corrupt": corrupt, "_whole": F.coalesce(whole, F.lit(False))})


def _wrapper(schema: StructType) -> StructType:
    return StructType(
        [StructField("record", schema), StructField("whole", BooleanType()), StructField("_corrupt", StringType())]
    )


def _shape(schemas: DeviceSchemas, made: Sequence[Shape]) -> Column:
    """The number of the shape a record is judged by; null if there is none."""
    has_type = F.col("_type")
    number = F.when(has_type.isNull(), F.lit(None).cast("int"))
    for shape in made:
        by_route = shape.names if shape.group is None else ()
        if by_route:  # a payload that is read as JSON cannot be of a binary type
            number = number.when(F.col("_route").isin(*by_route), F.lit(shape.number))
        elif shape.names and (shape.number or schemas.other is None):
            number = number.when(has_type.isin(*shape.names), F.lit(shape.number))
    binary = [name for name, kind in schemas.types.items() if kind.format != "json"]
    if binary:
        number = number.when(has_type.isin(*binary), F.lit(None).cast("int"))
    return number.otherwise(F.lit(0 if schemas.other is not None else None).cast("int"))


def _by_shape(made: Sequence[Shape], of: Callable[[Shape], Column], otherwise: Column) -> Column:
    """What ``of`` says for the record's own shape. Shapes that say the same share a branch."""
    if len(made) == 1:
        return F.when(F.col("_shape") == made[0].number, of(made[0])).otherwise(otherwise)
    branches: dict[str, tuple[Column, list[int]]] = {}
    for shape in made:
        column = of(shape)
        branches.setdefault(str(column), (column, []))[1].append(shape.number)
    result: Column | None = None
    for column, numbers in branches.values():
        mine = F.col("_shape").isin(*numbers)
        result = F.when(mine, column) if result is None else result.when(mine, column)
    assert result is not None
    return result.otherwise(otherwise)


def _signals(schemas: DeviceSchemas, made: Sequence[Shape]) -> list[Column]:
    kinds = {field.name: field.dataType for field in schemas.columns}
    columns = []
    for name in schemas.signals:
        of = {shape: source for shape in made for source in shape.type.sources if source.signal == name}
        column = _by_shape(list(of), lambda shape, of=of: shape.signal(of[shape]), F.lit(None))  # type: ignore[misc]
        columns.append(column.cast(kinds[name]).alias(name))
    return columns

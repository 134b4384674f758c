"""Kafka's records as readings of the schema folder's types: typed, in canonical units, or with what is wrong with them.

    records ─▶ type by header or topic ─▶ JSON: one from_json per group ─▶ shape ─▶ good? ─▶ signals, reason, detail
                                        └▶ Avro, Protobuf: a Python function, in the plan only if there are such types

No expression here may raise, because one poisoned record would then stop the stream for ever; Spark's ANSI casts and
indexes do raise."""

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import ArrayType, StructType

from bridge.wire import MQTT_TOPIC
from config.values.topic_filters import split_filter
from streaming.decoding.device_schemas import DeviceSchemas
from streaming.decoding.faults import good, judged
from streaming.decoding.shapes import BINARY, Shape, header, shapes
from streaming.lake.columns import columns

GOOD: Final = "_good"

_JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    # Spark's reader is more generous than JSON; a NaN would turn every mean of its window into NaN.
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}


class Decoding:
    """A schema folder's expressions, made once: there are thousands, and each is a call to the JVM.

    ``first_look`` and ``decoded`` give Kafka's columns, then ``device``, ``type``, ``seq``, ``ts_ms``, the signals
    (``schemas.columns``, in their canonical units). A bad record's mean nothing. ``ts_ms`` is the device's clock, from
    1970 to 9999. A filter behind it may be moved to before the parsing, and with it a copy of the parsing for each
    field it needs: hold the rows first (``streaming.lake.lake.held``), or observe them."""

    def __init__(self, schemas: DeviceSchemas) -> None:
        self._schemas, (self._shapes, groups) = schemas, shapes(schemas)
        self._text = F.col("value").cast("string")
        self._steps = [*_parsing(schemas, self._shapes, groups, self._text), {GOOD: _good(self._shapes, self._text)}]
        nothing = F.lit(None)
        self._own = [
            _by_shape(self._shapes, lambda shape: shape.device, nothing).cast("string").alias("device"),
            F.col("_type").alias("type"),
            _by_shape(self._shapes, lambda shape: shape.sequence, nothing).cast("bigint").alias("seq"),
            _by_shape(self._shapes, lambda shape: shape.ts_ms, nothing).cast("bigint").alias("ts_ms"),
            *_signals(schemas, self._shapes),
        ]

    def first_look(self, records: DataFrame) -> DataFrame:
        """Last comes ``_good``: whether nothing is wrong with a record. Where it is false, ``decoded`` has to say."""
        return self._looked_at(records).select(*records.columns, *self._own, GOOD)

    def decoded(self, records: DataFrame) -> DataFrame:
        """Last come ``reason`` (a :class:`streaming.decoding.faults.BadRecord`) and ``detail`` (words), null for a good
        record, and ``_good`` of the first look."""
        told = self._looked_at(records).withColumn("_fault", self._fault).withColumn("reason", F.col("_fault.reason"))
        detail = F.col("_fault.detail").alias("detail")
        return told.select(*records.columns, *self._own, "reason", detail, GOOD)

    def _looked_at(self, records: DataFrame) -> DataFrame:
        return reduce(DataFrame.withColumns, self._steps, records)

    @cached_property
    def _fault(self) -> Column:
        return F.when(~F.col(GOOD), judged(self._text, self._schemas, self._shapes))


def _good(all_shapes: Sequence[Shape], text: Column) -> Column:
    fine = _by_shape(all_shapes, lambda shape: good(shape, text), F.lit(False))
    plainly = F.col("_whole") & F.col("_corrupt").isNull() & F.is_valid_utf8(text)  # it was parsed, all of it
    if binary := [shape.number for shape in all_shapes if shape.group is None]:
        plainly = plainly | F.col("_shape").isin(*binary)
    return F.coalesce(plainly & fine, F.lit(False))


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
    """A pattern for what an MQTT topic filter matches (MQTT 5.0, 4.7.1 and 4.7.2): ``a/#`` matches ``a`` too, and a
    wildcard at the beginning no topic that begins with ``$``."""
    levels, open_ended = split_filter(topic_filter)
    begin = r"(?!\$)" if levels[0] == "+" else ""
    body = "/".join("[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels)
    return rf"(?s)\A{begin}{body}{'(/.*)?' if open_ended else ''}\z"


def _parsing(
    schemas: DeviceSchemas, all_shapes: Sequence[Shape], groups: Sequence[StructType], text: Column
) -> list[dict[str, Column]]:
    """Columns to be added, one step after the other: ``_json0`` … (a group's payload, typed), ``_type``, ``_shape`` (a
    number), ``_corrupt`` and ``_whole`` (of the shape's own parsing).

    The payload is parsed inside an object of its own, ``{"record": [ … ], "whole": true}``: Spark's reader stops after
    the first JSON value and would drop what follows it, such as the other lines of several readings sent as lines. In
    the list no ``, "x": 1`` behind the value is taken for a field beside it. A payload that closes the list itself is
    no value in an object, where ``]`` cannot follow it."""
    steps = [{"_route": _route(schemas)}]
    if any(shape.group is None for shape in all_shapes):
        from streaming.decoding.binary import binary_payloads

        steps.append({BINARY: binary_payloads(all_shapes, F.col("_route"), F.col("value"))})
    wrapped = F.concat(F.lit('{"record":['), text, F.lit('],"whole":true}'))
    in_object = F.concat(F.lit('{"record":'), text, F.lit(',"whole":1}'))
    is_one = F.when(F.contains(text, F.lit("]")), F.get_json_object(in_object, "$.whole").isNotNull()).otherwise(True)
    for number, schema in enumerate(groups):
        of = [shape for shape in all_shapes if shape.group == number]
        form = columns("record payload, whole boolean, _corrupt string", payload=ArrayType(schema))
        parsed, mine = F.from_json(wrapped, form, _JSON_OPTIONS), F.lit(True)
        if number:
            mine = F.col("_shape").isin(*(shape.number for shape in of))
            parsed = F.when(mine, parsed)
        elif elsewhere := {*schemas.types}.difference(*(shape.names for shape in of)):
            parsed = F.when(~F.coalesce(F.col("_route").isin(*elsewhere), F.lit(False)), parsed)
        parts = {name: F.col(f"_parsed{number}.{name}") for name in ("record", "whole", "_corrupt")}
        whole, corrupt = parts["whole"] & (F.size(parts["record"]) == 1) & is_one, parts["_corrupt"]
        if number:
            whole = F.when(mine, whole).otherwise(F.col("_whole"))
            corrupt = F.when(mine, corrupt).otherwise(F.col("_corrupt"))
        record = F.when(parts["whole"], F.get(parts["record"], F.lit(0)))
        taken = {f"_json{number}": record, "_corrupt": corrupt, "_whole": F.coalesce(whole, F.lit(False))}
        steps += [{f"_parsed{number}": parsed}, taken]
        if not number:
            has_type = F.coalesce("_route", F.col("_json0").getField(schemas.type_field))
            steps += [{"_type": has_type}, {"_shape": _shape(schemas, all_shapes)}]
    return steps


def _shape(schemas: DeviceSchemas, all_shapes: Sequence[Shape]) -> Column:
    """The number of the shape a record is judged by; null if there is none."""
    has_type = F.col("_type")  # its name
    number = F.when(has_type.isNull(), F.lit(None).cast("int"))
    for shape in all_shapes:
        by_route = shape.names if shape.group is None else ()
        if by_route:  # a payload that is read as JSON cannot be of a binary type
            number = number.when(F.col("_route").isin(*by_route), F.lit(shape.number))
        elif shape.names and (shape.number or schemas.other is None):
            number = number.when(has_type.isin(*shape.names), F.lit(shape.number))
    binary = [name for name, kind in schemas.types.items() if kind.format != "json"]
    if binary:
        number = number.when(has_type.isin(*binary), F.lit(None).cast("int"))
    return number.otherwise(F.lit(0 if schemas.other is not None else None).cast("int"))  # 0: other types'


def _by_shape(all_shapes: Sequence[Shape], of: Callable[[Shape], Column], otherwise: Column) -> Column:
    """What ``of`` says for the record's shape, ``otherwise`` without one. Shapes that say the same share a branch."""
    branches: dict[str, tuple[Column, list[int]]] = {}
    for shape in all_shapes:
        column = of(shape)
        branches.setdefault(str(column), (column, []))[1].append(shape.number)
    result: Column | None = None
    for column, numbers in branches.values():
        mine = F.col("_shape").isin(*numbers)
        result = F.when(mine, column) if result is None else result.when(mine, column)
    assert result is not None
    return result.otherwise(otherwise)


def _signals(schemas: DeviceSchemas, all_shapes: Sequence[Shape]) -> list[Column]:  # a column for each
    kinds = {field.name: field.dataType for field in schemas.columns}
    columns = []
    for name in schemas.signals:
        of = {shape: source for shape in all_shapes for source in shape.type.sources if source.signal == name}
        column = _by_shape(list(of), lambda shape, of=of: shape.signal(of[shape]), F.lit(None))  # type: ignore[misc]
        columns.append(column.cast(kinds[name]).alias(name))
    return columns

"""What the types of a schema folder ask of a payload, as Spark expressions. Nothing here may raise for any payload.

Types that ask for the same are one *shape*, so that a folder of fifty types that differ in name costs what one costs.
JSON shapes that can be read by one schema are one *group*: a record is parsed with its group's schema.
"""

from __future__ import annotations

__all__ = ["BINARY", "MAX_TS_MS", "Shape", "any_of", "payload_column", "read_schemas", "shapes", "slot"]

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from bridge.wire import MQTT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column

    from streaming.device_fields import DeviceType, PayloadField, Place, Source
    from streaming.device_schemas import DeviceSchemas

BINARY: Final = "_binary"
MAX_TS_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, what most readers of a timestamp can show. Spark raises far beyond it."""
MAX_WHOLE: Final = 2**53
"""Whole numbers are read as JSON's one kind of number, a double; beyond this they would become others."""

_RFC_3339: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
_TYPES: Final[Mapping[str, DataType]] = {
    "string": StringType(),
    "double": DoubleType(),
    "long": LongType(),
    "boolean": BooleanType(),
}
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class Shape:
    """Types that ask for the same. ``names``: theirs. ``group``: which JSON schema reads them, None for binary ones."""

    number: int
    names: tuple[str, ...]
    type: DeviceType
    group: int | None

    @property
    def device(self) -> Column:
        """The device's name; null if the record has none."""
        return self._at(self.type.device)

    @property
    def sequence(self) -> Column:
        """The sequence number; null if there is none."""
        place = self.type.sequence
        if place is None:
            return F.lit(None).cast("bigint")
        found = self._at(place)
        return found if place.kind == "field" else found.try_cast("bigint")

    @property
    def ts_ms(self) -> Column:
        """The device's time in milliseconds since 1970; null if it is absent, no time, or far out of range."""
        if self.type.time.kind == "received":
            return F.unix_millis("timestamp")
        value, form = self._at(self.type.time), self.type.time_format
        if form == "iso8601":
            return F.unix_millis(F.try_to_timestamp(F.when(value.rlike(_RFC_3339), value)))
        if form == "s":
            return F.when(value.between(0, MAX_TS_MS / 1000), F.round(value * 1000).cast("bigint"))
        if form == "ms":
            return value
        return F.when(value >= 0, F.call_function("div", value, F.lit(_PER_MS[form])))

    def signal(self, source: Source) -> Column:
        """A signal in its canonical unit; null where the field is."""
        value = self.field(source.field)
        if source.convert is not None:
            value = converted(value, source.convert)
        elif source.kind == "long" and self.read_as(source.field) == "double":
            value = F.when(F.abs(value) <= MAX_WHOLE, value.cast("bigint"))
        return value

    def field(self, field: PayloadField) -> Column:
        """A field of the payload, of the kind it is read as."""
        return payload_column(self, field)

    def read_as(self, field: PayloadField) -> str:
        """The kind a field is read as. Senders write -70 and -70.0 alike, so whole numbers are read as doubles; but not
        times and sequence numbers, where nanoseconds since 1970 would lose their last digits."""
        places = (self.type.sequence, self.type.time)
        exact = self.type.format != "json" or any(place is not None and place.field == field for place in places)
        if field.kind != "long" or (exact and not self._is_seconds(field)):
            return field.kind
        return "double"

    def _is_seconds(self, field: PayloadField) -> bool:
        return self.type.time_format == "s" and self.type.time.field == field

    def good(self, text: Column) -> Column:
        """Whether nothing is wrong with a record, never null. False also for what takes a closer look, which
        ``streaming.decode_faults`` takes."""
        tests = [self._field_is_good(field, text) for field in self.type.fields]
        tests += [
            ~F.coalesce(test, F.lit(False)) for test in map(self.is_too_large, self.type.sources) if test is not None
        ]
        ts_ms = self.ts_ms
        tests += [self.device.isNotNull(), ts_ms.isNotNull() & ts_ms.between(0, MAX_TS_MS)]
        if self.group is None:
            tests.append(F.col(BINARY).getField("reason").isNull())
        if self.type.sequence is not None and self.type.sequence.kind != "field":
            tests.append(self.sequence.isNotNull())
        return reduce(and_, tests)

    def _field_is_good(self, field: PayloadField, text: Column) -> Column:
        value = self.field(field)
        faults = [self.is_out_of_range(field), self.breaks_schema(field)]
        # What reads as a moment is no number.
        is_moment = field == self.type.time.field
        if field.kind == "string" and self.group is not None and not is_moment:
            faults.append(may_be_no_string(value, text, field.path[-1]))
        if field.kind == "long" and self.read_as(field) == "double":
            faults.append(value != F.rint(value))
        fault = any_of(faults)
        if field.required:
            return value.isNotNull() & ~fault
        return value.isNull() | ~fault

    def is_out_of_range(self, field: PayloadField) -> Column | None:
        """Whether a number is beyond its bounds or no finite number; null where the field is."""
        value, tests = self.field(field), []
        if self.read_as(field) == "double":
            tests.append(~(F.abs(value) < float("inf")))
            if field.kind == "long":
                tests.append(F.abs(value) > MAX_WHOLE)
        if field.minimum is not None:
            tests.append(value <= field.minimum if field.minimum_exclusive else value < field.minimum)
        if field.maximum is not None:
            tests.append(value >= field.maximum if field.maximum_exclusive else value > field.maximum)
        return reduce(or_, tests) if tests else None

    def is_too_large(self, source: Source) -> Column | None:
        """Whether a number has no place in the canonical unit; null where the field is."""
        return None if source.convert is None else ~(F.abs(self.signal(source)) < float("inf"))

    def breaks_schema(self, field: PayloadField) -> Column | None:
        """Whether a value is none of those allowed, too long or too short; null where the field is."""
        value, tests = self.field(field), []
        if field.allowed is not None:
            tests.append(~value.isin(*field.allowed) if field.allowed else F.lit(True))
        if field.min_length is not None:
            tests.append(F.char_length(value) < field.min_length)
        if field.max_length is not None:
            tests.append(F.char_length(value) > field.max_length)
        return reduce(or_, tests) if tests else None

    def _at(self, place: Place) -> Column:
        match place.kind:
            case "field":
                assert place.field is not None
                return self.field(place.field)
            case "header":
                return header(place.header)
            case "mqtt_topic":
                levels = F.split(header(MQTT_TOPIC), "/")
                return F.try_element_at(levels, F.lit(place.level + 1 if place.level >= 0 else place.level))
            case _:
                return F.try_validate_utf8(F.col("key").cast("string"))


def shapes(schemas: DeviceSchemas) -> tuple[Shape, ...]:
    """The distinct shapes of a folder's types. That of the other types comes first, if there is one."""
    names: dict[DeviceType, list[str]] = {}
    first = [schemas.other] if schemas.other is not None else []
    for kind in (*first, *schemas.types.values()):
        same = replace(kind, name="", file="", kafka_topics=(), mqtt_topics=())
        names.setdefault(same, [])
        if kind.name in schemas.types and kind.name not in names[same]:
            names[same].append(kind.name)
    made: list[Shape] = []
    trees: list[dict[str, Any]] = []
    for number, (kind, of) in enumerate(names.items()):
        shape = Shape(number, tuple(of), kind, None)
        if kind.format == "json":
            shape = replace(shape, group=_group(shape, trees, schemas.type_field))
        made.append(shape)
    return tuple(made)


def read_schemas(made: Sequence[Shape], type_field: str) -> dict[int, StructType]:
    """The schema of each group's payloads. The first also reads the field that tells the type."""
    trees: dict[int, dict[str, Any]] = {0: {type_field: "string"}}
    for shape in made:
        if shape.group is not None:
            joined = _joined(trees.setdefault(shape.group, {}), _tree(shape))
            assert joined is not None
            trees[shape.group] = joined
    return {number: _struct(tree) for number, tree in trees.items()}


def payload_column(shape: Shape, field: PayloadField) -> Column:
    """A field where the decoding of its shape put it."""
    if shape.group is None:
        return F.col(BINARY).getField(slot(shape, field))
    value = F.col(f"_json{shape.group}")
    for name in field.path:
        value = value.getField(name)
    return value


def slot(shape: Shape, field: PayloadField) -> str:
    """The name of a binary payload's field in the struct it is decoded to. Names of fields can differ in case only."""
    return f"shape{shape.number}_field{shape.type.fields.index(field)}"


def converted(value: Column, convert: Any) -> Column:
    """A number in another unit. The steps that change nothing are left out."""
    value = value.cast("double")
    if convert.shift:
        value = value + F.lit(convert.shift)
    if convert.times != 1:
        value = value * F.lit(convert.times)
    return value / F.lit(convert.by) if convert.by != 1 else value


def may_be_no_string(value: Column, text: Column, name: str) -> Column:
    """Whether a text, read from the payload's field ``name``, may have been a number, a truth value, a list or an
    object there: Spark's reader turns all of them into text where text is expected.

    Such a text begins like one of them. Then the payload is searched for the field's name with such a beginning behind
    it; names can be written with escapes, so a payload with a backslash takes the closer look. So does one with a
    question mark in the text, as which the reader gives the escape of half a surrogate pair, which is no character.
    """
    first = F.ascii(value)
    begins = first.between(48, 57) | first.isin(45, 91, 123) | value.isin("true", "false")
    quoted = "".join(f"\\{char}" if not char.isalnum() and char.isascii() else char for char in name)
    escapes = F.contains(text, F.lit("\\"))
    other = begins & (escapes | text.rlike(rf'"{quoted}"\s*:\s*[-0-9\[{{tf]'))
    return other | (F.contains(value, F.lit("?")) & escapes)


def header(name: str) -> Column:
    """The value of the record's first header of that name, as text; null if it has none or it is no UTF-8.

    By position, not with ``filter``: Spark interprets functions that take a function, and compiles the others.
    """
    at = F.array_position(F.col("headers.key"), name)
    return F.try_validate_utf8(F.when(at > 0, F.get(F.col("headers.value"), (at - 1).cast("int"))).cast("string"))


def any_of(tests: Iterable[Column | None]) -> Column:
    """Whether one of the tests holds."""
    return reduce(or_, (test for test in tests if test is not None), F.lit(False))


def _group(shape: Shape, trees: list[dict[str, Any]], type_field: str) -> int:
    """The first group whose schema can take the shape's fields in; a new one if there is none."""
    if not trees:
        trees.append({type_field: "string"})
    for number, tree in enumerate(trees):
        if (joined := _joined(tree, _tree(shape))) is not None:
            trees[number] = joined
            return number
    trees.append(_tree(shape))
    return len(trees) - 1


def _tree(shape: Shape) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for field in shape.type.fields:
        inside = tree
        for name in field.path[:-1]:
            inside = inside.setdefault(name, {})
        inside[field.path[-1]] = shape.read_as(field)
    return tree


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """Both trees in one; None if a field is of two kinds, or two names differ in case only (Spark sees one in them)."""
    result = dict(one)
    spelled = {name.lower(): name for name in one}
    for name, kind in other.items():
        if spelled.setdefault(name.lower(), name) != name:
            return None
        if name not in result:
            result[name] = kind
        elif isinstance(result[name], dict) and isinstance(kind, dict):
            inner = _joined(result[name], kind)
            if inner is None:
                return None
            result[name] = inner
        elif result[name] != kind:
            return None
    return result


def _struct(tree: dict[str, Any]) -> StructType:
    return StructType(
        [StructField(name, _struct(kind) if isinstance(kind, dict) else _TYPES[kind]) for name, kind in tree.items()]
    )

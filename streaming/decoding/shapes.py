"""Where the types of a schema folder have what is asked of a payload, as Spark expressions, none of which may raise.

Types that ask for the same are one *shape*, so that a folder of fifty types that differ in name costs what one costs.
JSON shapes that can be read by one schema are one *group*: a record is parsed with its group's schema."""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import StructType

from bridge.wire import MQTT_TOPIC
from streaming.decoding.device_schemas import DeviceSchemas
from streaming.decoding.fields import DeviceType, PayloadField, Place, Source
from streaming.decoding.schema_index import HeaderTable, LevelTable, ReceivedTable

BINARY: Final = "_binary"
MAX_TS_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, what most readers of a timestamp can show. Spark raises far beyond it."""
MAX_WHOLE: Final = 2**53
"""Whole numbers are read as JSON's one kind of number, a double; beyond this they would become others."""

_Nodes = dict[tuple[str, ...], tuple[tuple[str, ...], str]]
"""Fields and objects of a payload and their kinds, by their names in lower case: Spark sees one in two names that
differ in case only."""
_RFC_3339: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
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
        return self._at(self.type.device)

    @property
    def sequence(self) -> Column:  # null where the type or the record has none
        place = self.type.sequence
        if place is None:
            return F.lit(None).cast("bigint")
        found = self._at(place)
        return found if isinstance(place, PayloadField) else found.try_cast("bigint")

    @property
    def ts_ms(self) -> Column:
        """The device's time in milliseconds since 1970; null if it is absent, no time, or far out of range."""
        if isinstance(self.type.time, ReceivedTable):
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
        """A signal in its canonical unit; null where the field is, or is a whole number that a double cannot tell."""
        value = self.field(source.field)
        if source.convert is not None:
            value = source.convert(value.cast("double"))
        elif source.kind == "long" and self.read_as(source.field) == "double":
            value = F.when(F.abs(value) <= MAX_WHOLE, value.cast("bigint"))
        return value

    def field(self, field: PayloadField) -> Column:
        """A field of the payload, of the kind it is read as, where the decoding put it."""
        if self.group is None:
            return F.col(BINARY).getField(slot(self, field))
        return reduce(Column.getField, field.path, F.col(f"_json{self.group}"))

    def read_as(self, field: PayloadField) -> str:
        """The kind a field is read as. In JSON senders write -70 and -70.0 alike, so whole numbers are read as doubles;
        but not times and sequence numbers, where nanoseconds since 1970 would lose their last digits."""
        if field.kind != "long" or self.type.format != "json":
            return field.kind
        is_seconds = self.type.time_format == "s" and field == self.type.time
        return "double" if is_seconds or field not in (self.type.sequence, self.type.time) else "long"

    def _at(self, place: Place) -> Column:  # what the record has there
        match place:
            case PayloadField():
                return self.field(place)
            case HeaderTable(header=name):
                return header(name)
            case LevelTable(mqtt_topic=level):
                levels = F.split(header(MQTT_TOPIC), "/")
                return F.try_element_at(levels, F.lit(level + 1 if level >= 0 else level))
            case _:  # the record's key
                return F.try_validate_utf8(F.col("key").cast("string"))


def shapes(schemas: DeviceSchemas) -> tuple[list[Shape], list[StructType]]:
    """The distinct shapes of a folder's types, and by group the schema that reads their payloads. The shape of the
    other types comes first, if there is one. Group 0 also reads the field that tells the type."""
    names: dict[DeviceType, list[str]] = {}
    first = [schemas.other] if schemas.other is not None else []
    for kind in (*first, *schemas.types.values()):
        of = names.setdefault(replace(kind, name="", file="", kafka_topics=(), mqtt_topics=()), [])
        if kind.name in schemas.types and kind.name not in of:
            of.append(kind.name)
    made: list[Shape] = []
    groups: list[_Nodes] = [{(schemas.type_field.lower(),): ((schemas.type_field,), "string")}]
    for number, (kind, of) in enumerate(names.items()):
        shape = Shape(number, tuple(of), kind, None)
        made.append(shape if kind.format != "json" else replace(shape, group=_group(_nodes(shape), groups)))
    return made, [_struct(nodes) for nodes in groups]


def slot(shape: Shape, field: PayloadField) -> str:
    """The name of a binary payload's field in the struct it is decoded to. Names of fields can differ in case only."""
    return f"shape{shape.number}_field{shape.type.fields.index(field)}"


def header(name: str) -> Column:
    """The value of the record's first header of that name, as text; null if it has none or it is no UTF-8. By position,
    not with ``filter``: Spark interprets functions that take a function, and compiles the others."""
    at = F.array_position(F.col("headers.key"), name)
    return F.try_validate_utf8(F.when(at > 0, F.get(F.col("headers.value"), (at - 1).cast("int"))).cast("string"))


def _nodes(shape: Shape) -> _Nodes:  # by path in lower case: path and kind
    return {
        tuple(name.lower() for name in path): (path, shape.read_as(field) if path == field.path else "object")
        for field in shape.type.fields
        for path in (field.path[:depth] for depth in range(1, len(field.path) + 1))
    }


def _group(nodes: _Nodes, groups: list[_Nodes]) -> int:
    """The number of the first group whose schema can take the fields, which it then has; else of a new one."""
    for number, group in enumerate(groups):
        if all(group.get(at, node) == node for at, node in nodes.items()):
            group.update(nodes)
            return number
    groups.append(nodes)
    return len(groups) - 1


def _struct(nodes: _Nodes, inside: tuple[str, ...] = ()) -> StructType:  # of the nodes below ``inside``
    made = StructType()
    for path, kind in nodes.values():
        if path[:-1] == inside:
            made.add(path[-1], _struct(nodes, path) if kind == "object" else kind)
    return made

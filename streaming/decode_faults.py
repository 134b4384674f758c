"""What is wrong with a record that is not plainly good, in words: the columns ``reason`` and ``detail``.

Most records never get here. So that their way stays short, all of this is the body of a higher-order function: Spark
compiles such a body not into the code for every row, but walks through it where it is called, for a bad record.
"""

from __future__ import annotations

__all__ = ["judged"]

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.decode_shapes import BINARY, any_of
from streaming.transforms import BadRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column

    from streaming.decode_shapes import Shape
    from streaming.device_fields import PayloadField, Source
    from streaming.device_schemas import DeviceSchemas

_LONGEST = 1000
_FOUND: dict[str, tuple[str, ...]] = {
    "string": ("STRING",),
    "boolean": ("BOOLEAN",),
    "long": ("BIGINT", "DECIMAL", "DOUBLE"),
    "double": ("BIGINT", "DECIMAL", "DOUBLE"),
}
"""What Spark calls the kinds of JSON's values. A number may be any of three, whatever it is read as."""


def judged(text: Column, schemas: DeviceSchemas, made: Sequence[Shape]) -> Column:
    """A struct of ``reason`` and ``detail``, both null if the closer look finds nothing wrong.

    ``text``: the payload. Columns used: ``value``, ``_type``, ``_shape``, those of the payloads and their ``_whole``.
    """
    looked = F.transform(F.array(F.try_parse_json(text)), lambda whole: _verdict(text, whole, schemas, made))
    return F.get(looked, F.lit(0))


def _verdict(text: Column, whole: Column, schemas: DeviceSchemas, made: Sequence[Shape]) -> Column:
    verdict = F.when(F.col("value").isNull() | (F.length("value") == 0), _bad(BadRecord.EMPTY))
    for shape in made:
        if shape.group is None:
            verdict = verdict.when(F.col("_shape") == shape.number, _of_shape(shape, None))
    verdict = (
        verdict.when(~F.is_valid_utf8(text), _bad(BadRecord.NOT_UTF8))
        .when(whole.isNull(), _bad(BadRecord.NOT_JSON))
        .when(~F.schema_of_variant(whole).startswith("OBJECT"), _bad(BadRecord.NOT_AN_OBJECT))
        .when(~F.col("_whole"), _bad(BadRecord.NOT_JSON))  # an object, and something behind it
    )
    for shape in made:
        if shape.group is not None:
            verdict = verdict.when(F.col("_shape") == shape.number, _of_shape(shape, whole))
    return verdict.otherwise(_without_shape(whole, schemas))


def _without_shape(whole: Column, schemas: DeviceSchemas) -> Column:
    """What is wrong with JSON that no type claims."""
    field = schemas.type_field
    found = F.try_variant_get(whole, _place((field,)), "variant")
    binary = [name for name, kind in schemas.types.items() if kind.format != "json"]
    a_type = F.concat(F.lit("type "), F.col("_type"))
    return (
        F.when(found.isNull() | F.is_variant_null(found), _bad(BadRecord.MISSING_FIELD, F.lit(field)))
        .when(F.schema_of_variant(found) != "STRING", _bad(BadRecord.WRONG_TYPE, _no(field, "string", found)))
        .when(
            F.col("_type").isin(*binary) if binary else F.lit(False),
            _bad(BadRecord.SCHEMA, F.concat(a_type, F.lit(" is not JSON, and the record came by no topic of it"))),
        )
        .otherwise(_bad(BadRecord.UNKNOWN_TYPE, F.concat(a_type, F.lit(" has no schema"))))
    )


def _of_shape(shape: Shape, whole: Column | None) -> Column:
    """What is wrong with a record of a known type; ``whole`` is its payload as a variant, None for a binary one."""
    fields = shape.type.fields
    if whole is None:
        told = F.col(BINARY).getField("reason")
        verdict = F.when(told.isNotNull(), _bad(told, F.col(BINARY).getField("detail")))
        absent = {field: shape.field(field).isNull() for field in fields}
        wrong = _wrong_moment(shape)
    else:
        found = {field: F.try_variant_get(whole, _place(field.path), "variant") for field in fields}
        absent = {field: found[field].isNull() | F.is_variant_null(found[field]) for field in fields}
        objects = {field.path[:depth] for field in fields for depth in range(1, len(field.path))}
        wrong = [_wrong_object(whole, path) for path in sorted(objects)]
        wrong += [_wrong_kind(shape, field, found[field]) for field in fields]
        wrong += _wrong_moment(shape)
        verdict = F.when(_any_text(wrong), _bad(BadRecord.WRONG_TYPE, _joined(wrong)))
    missing = [F.when(absent[field], F.lit(field.name)) for field in fields if field.required]
    missing += _missing_places(shape)
    beyond = [*_beyond(shape), *(_too_large(shape, source) for source in shape.type.sources)]
    broken = [
        F.when(test, _said(field.name, shape.field(field), " is not allowed"))
        for field in fields
        if (test := shape.breaks_schema(field)) is not None
    ]
    if whole is None:
        verdict = verdict.when(_any_text(wrong), _bad(BadRecord.WRONG_TYPE, _joined(wrong)))
    return (
        verdict.when(_any_text(missing), _bad(BadRecord.MISSING_FIELD, _joined(missing)))
        .when(_any_text(beyond), _bad(BadRecord.OUT_OF_RANGE, _joined(beyond)))
        .when(_any_text(broken), _bad(BadRecord.SCHEMA, _joined(broken)))
        .otherwise(_bad(F.lit(None).cast("string")))
    )


def _wrong_object(whole: Column, path: tuple[str, ...]) -> Column:
    found = F.try_variant_get(whole, _place(path), "variant")
    kind = F.schema_of_variant(found)
    return F.when(
        found.isNotNull() & ~F.is_variant_null(found) & ~kind.startswith("OBJECT"), _no(".".join(path), "object", found)
    )


def _wrong_kind(shape: Shape, field: PayloadField, found: Column) -> Column:
    value = shape.field(field)
    kind = F.schema_of_variant(found)
    misfit = ~any_of(kind.startswith(known) for known in _FOUND[field.kind])
    if field.kind == "long":
        misfit = misfit | (value != F.rint(value) if shape.read_as(field) == "double" else value.isNull())
    present = found.isNotNull() & ~F.is_variant_null(found)
    return F.when(present & misfit, _no(field.name, field.kind, found))


def _wrong_moment(shape: Shape) -> list[Column]:
    field = shape.type.time.field
    if field is None or shape.type.time_format != "iso8601":
        return []
    value = shape.field(field)
    said = _said(field.name, value, " is no date and time with a zone, such as 2026-11-21T06:00:00Z")
    return [F.when(value.isNotNull() & shape.ts_ms.isNull(), said)]


def _missing_places(shape: Shape) -> list[Column]:
    """Device, sequence and time, where they are not fields that the schema requires anyway."""
    kind = shape.type
    missing = []
    for what, place, value in (
        ("device", kind.device, shape.device),
        ("sequence", kind.sequence, shape.sequence),
        ("time", kind.time, None),
    ):
        if place is None or place.kind == "received":
            continue
        if place.field is None:
            assert value is not None
            missing.append(F.when(value.isNull(), F.lit(f"{what} ({place.kind} {place.header or place.level})")))
        elif not place.field.required and what != "sequence":
            missing.append(F.when(shape.field(place.field).isNull(), F.lit(place.field.name)))
    return missing


def _beyond(shape: Shape) -> Iterable[Column]:
    from streaming.decode_shapes import MAX_TS_MS

    time = shape.type.time.field
    if time is not None:
        outside = F.coalesce(~shape.ts_ms.between(0, MAX_TS_MS), F.lit(True))
        yield F.when(shape.field(time).isNotNull() & outside, _said(time.name, shape.field(time)))
    for field in shape.type.fields:
        if field != time and (test := shape.is_out_of_range(field)) is not None:
            yield F.when(test, _said(field.name, shape.field(field)))


def _too_large(shape: Shape, source: Source) -> Column:
    test = shape.is_too_large(source)
    said = F.lit(f"{source.field.name} is too large in {source.canonical}")
    return F.lit(None).cast("string") if test is None else F.when(test, said)


def _no(name: str, kind: str, found: Column) -> Column:
    return F.concat(F.lit(f"{name} is no {kind} but "), F.lower(F.schema_of_variant(found)))


def _said(name: str, value: Column, then: str = "") -> Column:
    return F.concat(F.lit(f"{name} is "), F.substring(value.cast("string"), 1, 100), F.lit(then))


def _bad(reason: BadRecord | Column, detail: Column | None = None) -> Column:
    word = F.lit(reason.value) if isinstance(reason, BadRecord) else reason
    text = F.lit(None).cast("string") if detail is None else F.substring(detail, 1, _LONGEST)
    return F.struct(word.alias("reason"), text.alias("detail"))


def _any_text(texts: Sequence[Column]) -> Column:
    return any_of(text.isNotNull() for text in texts)


def _joined(texts: Sequence[Column]) -> Column:
    return F.concat_ws(", ", *texts)


def _place(path: tuple[str, ...]) -> str:
    """A path as Spark's variants have it. Names hold no quotes: the schemas are refused otherwise."""
    return "$" + "".join(f"['{name}']" for name in path)

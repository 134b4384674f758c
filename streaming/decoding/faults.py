"""What can be wrong with a record, and what is wrong with a bad one, in words: the columns ``reason`` and ``detail``.

Most records are :func:`good`. :func:`judged` is the body of a higher-order function, which Spark does not compile into
the code for every row, but walks through for a bad record."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.decoding.device_schemas import DeviceSchemas
from streaming.decoding.fields import PayloadField
from streaming.decoding.shapes import BINARY, MAX_TS_MS, MAX_WHOLE, Shape

_LONGEST = 1000
_FOUND: dict[str, tuple[str, ...]] = {
    **{kind: (kind.upper(),) for kind in ("object", "string", "boolean")},
    **dict.fromkeys(("long", "double"), ("BIGINT", "DECIMAL", "DOUBLE")),
}
"""What Spark calls the kinds of JSON's values. A number may be any of three, whatever it is read as."""


class BadRecord(StrEnum):
    """Why a record is in quarantine: the values of the column ``reason``."""

    EMPTY = "empty"  # no payload, or one of no bytes
    NOT_UTF8 = "not_utf8"  # bytes that are no text
    NOT_JSON = "not_json"  # not one JSON value: cut off, several in a row, NaN
    NOT_AN_OBJECT = "not_an_object"  # JSON, but a list, a number, null …
    MISSING_FIELD = "missing_field"  # a required field is absent or null; detail names it
    WRONG_TYPE = "wrong_type"  # a field is not of its type; detail names it
    OUT_OF_RANGE = "out_of_range"  # a time before 1970 or after 9999, a number too large for a double; detail names it
    UNKNOWN_TYPE = "unknown_type"  # no schema for the type; detail names it
    SCHEMA = "schema"  # a value is not what the type's schema allows, or the format is not the type's; detail names it
    NOT_AVRO = "not_avro"  # bytes that the type's Avro schemas cannot read
    NOT_PROTOBUF = "not_protobuf"  # bytes that the type's Protobuf message cannot read


_LIMITS: dict[str, tuple[BadRecord, Callable[[Column, Any], Column]]] = {
    "minimum": (BadRecord.OUT_OF_RANGE, operator.lt),
    "maximum": (BadRecord.OUT_OF_RANGE, operator.gt),
    "exclusiveMinimum": (BadRecord.OUT_OF_RANGE, operator.le),
    "exclusiveMaximum": (BadRecord.OUT_OF_RANGE, operator.ge),
    "minLength": (BadRecord.SCHEMA, lambda value, least: F.char_length(value) < least),
    "maxLength": (BadRecord.SCHEMA, lambda value, most: F.char_length(value) > most),
    "enum": (BadRecord.SCHEMA, lambda value, allowed: value.isNotNull() & ~value.isin(*allowed)),
    "const": (BadRecord.SCHEMA, lambda value, allowed: value.isNotNull() & ~value.isin(*allowed)),
}
"""By keyword of JSON Schema: the reason for a value that breaks it, and whether it does; null where the value is."""


def _broken(field: PayloadField, value: Column, reason: BadRecord) -> list[Column]:
    limits = [(*_LIMITS[keyword], limit) for keyword, limit in field.limits]
    return [breaks(value, limit) for of, breaks, limit in limits if of is reason]


class Check(NamedTuple):
    """What may be wrong with a record. ``wrong``: whether it is; null is no. ``detail``: the words for it."""

    reason: BadRecord
    wrong: Column
    detail: Column


def _checks(shape: Shape) -> Iterator[Check]:
    """The checks of a payload whose fields are of their kinds, in the order in which faults are told."""
    kind, time, ts_ms = shape.type, shape.type.time, shape.ts_ms
    received = F.unix_millis("timestamp")
    yield Check(BadRecord.OUT_OF_RANGE, received > MAX_TS_MS, _said("Kafka's timestamp", received))
    values = [(field, shape.field(field)) for field in kind.fields]
    if isinstance(time, PayloadField) and kind.time_format == "iso8601":
        said = _said(time.name, shape.field(time), " is no date and time with a zone, such as 2026-11-21T06:00:00Z")
        yield Check(BadRecord.WRONG_TYPE, shape.field(time).isNotNull() & ts_ms.isNull(), said)
    for field, value in values:
        if field.required or field in (kind.device, time):
            yield Check(BadRecord.MISSING_FIELD, value.isNull(), F.lit(field.name))
    for what, place, found in (("device", kind.device, shape.device), ("sequence", kind.sequence, shape.sequence)):
        if place is not None and not isinstance(place, PayloadField):
            ((where, name),) = place.model_dump().items()
            said = F.lit(f"{what} ({where})" if name is True else f"{what} ({where} {name})")
            yield Check(BadRecord.MISSING_FIELD, found.isNull(), said)
    for field, value in values:
        tests = _broken(field, value, BadRecord.OUT_OF_RANGE)
        if shape.read_as(field) == "double":
            tests.append(~(F.abs(value) < float("inf")))
            if field.kind == "long":
                tests.append(F.abs(value) > MAX_WHOLE)
        if field == time:
            tests.append(value.isNotNull() & F.coalesce(~ts_ms.between(0, MAX_TS_MS), F.lit(True)))
        if tests:
            yield Check(BadRecord.OUT_OF_RANGE, _any_of(tests), _said(field.name, value))
    for source in kind.sources:
        if source.convert is not None:
            said = F.lit(f"{source.field.name} is too large in {source.canonical}")
            yield Check(BadRecord.OUT_OF_RANGE, ~(F.abs(shape.signal(source)) < float("inf")), said)
    for field, value in values:
        if tests := _broken(field, value, BadRecord.SCHEMA):
            yield Check(BadRecord.SCHEMA, _any_of(tests), _said(field.name, value, " is not allowed"))


def good(shape: Shape, text: Column) -> Column:
    """Whether nothing is wrong with a record, never null. False also for what takes the closer look of :func:`judged`:
    the kinds of JSON's values are only guessed here."""
    tests = [check.wrong for check in _checks(shape)]
    if shape.group is None:
        tests.append(F.col(BINARY).getField("reason").isNotNull())
    for field in shape.type.fields:
        value = shape.field(field)
        # What reads as a moment is no number.
        if field.kind == "string" and shape.group is not None and field != shape.type.time:
            tests.append(_may_be_no_string(value, text, field.path[-1]))
        if field.kind == "long" and shape.read_as(field) == "double":
            tests.append(value != F.rint(value))
    return ~F.coalesce(_any_of(tests), F.lit(False))


def _may_be_no_string(value: Column, text: Column, name: str) -> Column:
    """Whether ``value``, read from the field ``name`` of the payload ``text``, may have been a number, a truth value, a
    list or an object there: Spark's reader turns all of them into text where text is expected. Such a text begins like
    one of them. Then the payload is searched for the field's name with such a beginning behind it. With a backslash,
    names may be escaped, and a ``?`` may be half a surrogate pair's escape: those take the closer look."""
    first = F.ascii(value)
    begins = first.between(48, 57) | first.isin(45, 91, 123) | value.isin("true", "false")
    quoted = "".join(f"\\{char}" if not char.isalnum() and char.isascii() else char for char in name)
    escapes = F.contains(text, F.lit("\\"))
    other = begins & (escapes | text.rlike(rf'"{quoted}"\s*:\s*[-0-9\[{{tf]'))
    return other | (F.contains(value, F.lit("?")) & escapes)


def judged(text: Column, schemas: DeviceSchemas, made: Sequence[Shape]) -> Column:
    """A struct of ``reason`` and ``detail``, both null if the closer look finds nothing wrong.

    ``text``: the payload. Columns used: ``value``, ``_type``, ``_shape``, those of the payloads and their ``_whole``.
    """

    def verdict(whole: Column) -> Column:  # whole: the payload as a variant
        by_shape = {shape: F.when(F.col("_shape") == shape.number, _of_shape(shape, whole)) for shape in made}
        return F.coalesce(
            F.when(F.col("value").isNull() | (F.length("value") == 0), _bad(BadRecord.EMPTY)),
            *(found for shape, found in by_shape.items() if shape.group is None),
            F.when(~F.is_valid_utf8(text), _bad(BadRecord.NOT_UTF8)),
            F.when(whole.isNull(), _bad(BadRecord.NOT_JSON)),
            F.when(~F.schema_of_variant(whole).startswith("OBJECT"), _bad(BadRecord.NOT_AN_OBJECT)),
            F.when(~F.col("_whole"), _bad(BadRecord.NOT_JSON)),  # an object, and something behind it
            *(found for shape, found in by_shape.items() if shape.group is not None),
            _without_shape(whole, schemas),
        )

    looked = F.transform(F.array(F.try_parse_json(text)), verdict)
    return F.get(looked, F.lit(0))  # an array of one, so that the payload is parsed once


def _without_shape(whole: Column, schemas: DeviceSchemas) -> Column:  # why a record of JSON has none
    kind_check = _kind_check(whole, (schemas.type_field,), "string", F.lit(False))
    binary = [name for name, kind in schemas.types.items() if kind.format != "json"]
    a_type = F.concat(F.lit("type "), F.col("_type"))
    not_json = F.concat(a_type, F.lit(" is not JSON, and the record came by no topic of it"))
    return (
        F.when(kind_check.wrong, _bad(BadRecord.WRONG_TYPE, kind_check.detail))
        .when(F.col("_type").isNull(), _bad(BadRecord.MISSING_FIELD, F.lit(schemas.type_field)))
        .when(F.col("_type").isin(*binary) if binary else F.lit(False), _bad(BadRecord.SCHEMA, not_json))
        .otherwise(_bad(BadRecord.UNKNOWN_TYPE, F.concat(a_type, F.lit(" has no schema"))))
    )


def _of_shape(shape: Shape, whole: Column) -> Column:  # what is wrong with a record of a known type
    texts: dict[BadRecord, list[Column]] = {}
    for check in (*(() if shape.group is None else _kind_checks(shape, whole)), *_checks(shape)):
        texts.setdefault(check.reason, []).append(F.when(check.wrong, check.detail))
    faults = [
        F.when(_any_of(text.isNotNull() for text in said), _bad(reason, F.concat_ws(", ", *said)))
        for reason, said in texts.items()
    ]
    if shape.group is None:
        told = F.col(BINARY)
        faults.insert(0, F.when(told["reason"].isNotNull(), _bad(told["reason"], told["detail"])))
    return F.coalesce(*faults, _bad(F.lit(None).cast("string")))


def _kind_checks(shape: Shape, whole: Column) -> Iterator[Check]:  # whether fields are of their kinds
    fields = shape.type.fields
    for path in sorted({field.path[:depth] for field in fields for depth in range(1, len(field.path))}):
        yield _kind_check(whole, path, "object", F.lit(False))
    for field in fields:
        value, misfit = shape.field(field), F.lit(False)
        if field.kind == "long":  # a number, but not one of this kind
            misfit = value != F.rint(value) if shape.read_as(field) == "double" else value.isNull()
        yield _kind_check(whole, field.path, field.kind, misfit)


def _kind_check(whole: Column, path: tuple[str, ...], kind: str, misfit: Column) -> Check:
    found = F.try_variant_get(whole, _place(path), "variant")
    named = F.schema_of_variant(found)
    wrong = ~_any_of(named.startswith(known) for known in _FOUND[kind]) | misfit
    said = F.concat(F.lit(f"{'.'.join(path)} is no {kind} but "), F.lower(named))
    return Check(BadRecord.WRONG_TYPE, found.isNotNull() & ~F.is_variant_null(found) & wrong, said)


def _said(name: str, value: Column, then: str = "") -> Column:
    return F.concat(F.lit(f"{name} is "), F.substring(value.cast("string"), 1, 100), F.lit(then))


def _bad(reason: BadRecord | Column, detail: Column | None = None) -> Column:
    word = F.lit(reason.value) if isinstance(reason, BadRecord) else reason
    text = F.lit(None).cast("string") if detail is None else F.substring(detail, 1, _LONGEST)
    return F.struct(word.alias("reason"), text.alias("detail"))


def _any_of(tests: Iterable[Column]) -> Column:
    return reduce(operator.or_, tests, F.lit(False))


def _place(path: tuple[str, ...]) -> str:
    """A path as Spark's variants have it. No name has both kinds of quotes: such schemas are refused."""
    return "$" + "".join(f'["{name}"]' if "'" in name else f"['{name}']" for name in path)

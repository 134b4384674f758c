"""Avro and Protobuf payloads become columns: a Python function over Arrow's arrays, since Spark's own modules for them
are not published for this Spark. Imported, and in the plan, only if the folder has such types."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.decoding.fields import BadPayloadError, DeviceType, Kind
from streaming.decoding.shapes import Shape, slot
from streaming.lake.columns import columns

_ARROW = {"double": pa.float64(), "long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}


def binary_payloads(all_shapes: Sequence[Shape], route: Column, value: Column) -> Column:
    """A struct: every field of every binary shape (``slot`` names it), then ``reason`` and ``detail`` for bytes that
    cannot be decoded. All null for records whose ``route`` is no binary type; their bytes do not travel to Python."""
    mine = [shape for shape in all_shapes if shape.group is None]
    kinds: dict[str, Kind] = {slot(shape, field): field.kind for shape in mine for field in shape.type.fields}
    kinds |= {"reason": "string", "detail": "string"}
    result = columns(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    is_mine = route.isin(*(name for shape in mine for name in shape.names))
    function: Any = F.arrow_udf(_decoder(mine, kinds), result)  # type: ignore[attr-defined]
    binary: Column = function(F.when(is_mine, route), F.when(is_mine, value))
    return binary


def _decoder(shapes: Sequence[Shape], kinds: Mapping[str, Kind]) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def decode(routes: pa.Array, values: pa.Array) -> pa.Array:  # a struct of the columns in ``kinds``
        columns: dict[str, list[Any]] = {name: [None] * len(routes) for name in kinds}
        readers = {
            name: (_reader(shape.type), [columns[slot(shape, field)] for field in shape.type.fields])
            for shape in shapes
            for name in shape.names
        }
        for row, (route, payload) in enumerate(zip(routes.to_pylist(), values.to_pylist(), strict=True)):
            if route is None:
                continue
            read, into = readers[route]
            try:
                found = _read(read, payload)
            except BadPayloadError as error:
                columns["reason"][row], columns["detail"][row] = error.reason, error.detail
                continue
            for column, value in zip(into, found, strict=True):
                column[row] = value
        arrays = [pa.array(column, _ARROW[kinds[name]]) for name, column in columns.items()]
        return pa.StructArray.from_arrays(arrays, names=list(columns))

    return decode


def _read(read: Callable[[bytes], list[Any]], payload: bytes | None) -> list[Any]:  # the fields' values
    if not payload:
        raise BadPayloadError("empty", None)
    found = read(payload)
    for value in found:
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise BadPayloadError("out_of_range", f"{value} is too large")
    return found


@cache
def _reader(kind: DeviceType) -> Callable[[bytes], list[Any]]:
    """From a payload to its fields' values. Made once per Python worker: parsing schemas takes milliseconds."""
    assert kind.binary is not None, "only types that are not JSON come here"
    if kind.format == "avro":
        from streaming.decoding.avro_schemas import avro_reader

        return avro_reader(kind.binary, kind.fields)
    from streaming.decoding.protobuf_schemas import protobuf_reader

    return protobuf_reader(kind.binary, kind.fields)

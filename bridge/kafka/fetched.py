"""Fetched records of any names of headers. aiokafka wants names in UTF-8, and brokers take any bytes.

One record with another name, from any producer, would end every read of its partition. Here names are read as Java
reads them, with U+FFFD for what is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy


class _Bytes(bytearray):
    """A batch's records, of which aiokafka decodes nothing but names."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _Bytes(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)


class _Batch:
    """A batch as aiokafka's C reads it, and from a name that this cannot decode on, as its Python does."""

    __slots__ = ("_batch", "_data")

    def __init__(self, batch: Any, data: memoryview) -> None:
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:  # of a batch with a transaction's end
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        """The records of a batch. From a header name that is no UTF-8 on, it is read in Python."""
        count = 0
        try:
            for record in self._batch:
                yield record
                count += 1
        except (UnicodeDecodeError, CorruptRecordException) as error:
            if not isinstance(error.__cause__ or error, UnicodeDecodeError):
                raise
            again = _DefaultRecordBatchPy(self._data)  # in Python, with names of any bytes
            again._maybe_uncompress()
            again._buffer = _Bytes(again._buffer)
            yield from islice(again, count, None)


class _Records(_MemoryRecordsPy):  # type: ignore[misc]
    """The batches of a partition in an answer."""

    def next_batch(self) -> _Batch:
        data = self._next_slice
        return _Batch(super().next_batch(), data)


def use() -> None:
    """Have aiokafka's consumers, all of this process, read so."""
    fetcher.MemoryRecords = _Records

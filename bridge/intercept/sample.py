"""``sample``: lets a share of the records through."""

from __future__ import annotations

__all__ = ["Sample", "SampleOptions"]

import zlib
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from bridge.interceptors import Drop, Interceptor
from config.values.model import Table

if TYPE_CHECKING:
    from bridge.interceptors import Context
    from bridge.record import Record

_DROP = Drop("sample")
_RANGE = 1 << 32  # of a CRC-32


class SampleOptions(Table):
    share: Annotated[float, Field(gt=0, le=1)]  # of the records, that go on
    by: str = ""  # a ${…} template: what gives the same text goes on together, or not at all


class Sample(Interceptor):
    """Without ``by`` the records that go on are spread evenly, with it they are chosen by a hash of its text, the same
    ones in every worker and after every restart. By nature each worker counts for itself."""

    Options = SampleOptions
    drop_reasons = (_DROP.reason,)

    def configure(self, options: SampleOptions, context: Context) -> None:
        self._share = options.share
        self._render = context.template(options.by).render if options.by else None
        self._threshold = round(options.share * _RANGE)
        self._owed = 0.0  # of the next record that goes on: at 1 it is due

    def on_send(self, record: Record) -> Record | Drop:
        if self._render is not None:
            return record if zlib.crc32(self._render(record.message)) < self._threshold else _DROP
        self._owed += self._share
        if self._owed < 1:
            return _DROP
        self._owed -= 1
        return record

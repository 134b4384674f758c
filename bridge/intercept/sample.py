"""``sample``: keeps a share of the records."""

import zlib
from typing import Annotated

from pydantic import Field

from bridge.interceptors import Context, Drop, Interceptor
from bridge.record import Record
from config.values.grammar import Number
from config.values.model import Table

_DROP = Drop("sample")
_RANGE = 1 << 32  # of a CRC-32


class SampleOptions(Table):
    share: Annotated[Number, Field(gt=0, le=1)]  # of the records, which are kept
    by: str = ""  # a ${…} template: records with the same text are all kept, or all dropped


class Sample(Interceptor):
    """Without ``by`` the kept records are spread evenly; each worker counts its own. With ``by`` a hash of its text
    decides, the same in every worker and after a restart."""

    Options = SampleOptions
    drop_reasons = (_DROP.reason,)

    def configure(self, options: SampleOptions, context: Context) -> None:
        self._share = options.share
        self._render = context.template(options.by).render if options.by else None
        self._threshold = round(options.share * _RANGE)
        self._owed = 0.0  # at 1 the next record is kept

    def on_send(self, record: Record) -> Record | Drop:
        """The record, or its drop: by a hash of the text of ``by``, or evenly without it."""
        if self._render is not None:
            return record if zlib.crc32(self._render(record.message)) < self._threshold else _DROP
        self._owed += self._share
        if self._owed < 1:
            return _DROP
        self._owed -= 1
        return record

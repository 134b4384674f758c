"""A plug-in that fails with all it knows in reach: its options, with a secret, are in the frame of the traceback."""

import os

from pydantic import SecretStr

from bridge.interceptors import Context, Interceptor, Table
from bridge.record import Record


class LeakingOptions(Table):
    secret: SecretStr


class Leaking(Interceptor):
    """Fails on records with ``fail``, and ends the process as a defect in C would on those with ``crash``."""

    Options = LeakingOptions

    def configure(self, options: LeakingOptions, context: Context) -> None:
        self._known = (options, context, options.secret.get_secret_value())

    def on_send(self, record: Record) -> Record:
        options, context, _secret = self._known
        if b"fail" in (record.value or b""):
            raise ValueError(f"failed with {options!r} and {context!r}")
        if b"crash" in (record.value or b""):
            os.abort()
        return record

"""``mask``: hides what must not reach Kafka, behind a keyed digest or a fixed text."""

from __future__ import annotations

__all__ = ["Mask", "MaskOptions"]

import hmac
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SecretStr

from bridge.intercept.paths import MISSING, parse_path
from bridge.interceptors import Interceptor
from bridge.record import dump_json
from config.values.model import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.interceptors import Context
    from bridge.record import Record

_SHORTEST_SECRET = 16  # bytes; a shorter key is guessed, and with it every value that is no secret by itself


class MaskOptions(Table):
    method: Literal["hmac", "redact"]  # hmac: equal values stay equal, unread; redact: all alike
    fields: tuple[str, ...] = ()  # JSON paths, "*" allowed
    headers: tuple[str, ...] = ()  # header names
    key: bool = False  # the record's key, too
    secret: SecretStr | None = None  # of hmac: at least 16 bytes
    length: Annotated[int, Field(ge=8, le=64)] = 32  # hexadecimal digits of the digest that are kept
    replacement: str = "***"  # of redact


class Mask(Interceptor):
    """Masks fields, headers and the key. What is absent stays absent, and null stays null."""

    Options = MaskOptions

    def configure(self, options: MaskOptions, context: Context) -> None:
        del context
        if not (options.fields or options.headers or options.key):
            raise ValueError("nothing to do: give fields, headers or key = true")
        try:
            self._paths = [parse_path(text, wildcards=True) for text in options.fields]
        except ValueError as error:
            raise ValueError(f"fields: {error}") from None
        self._headers = frozenset(options.headers)
        self._masks_key = options.key
        self._of_bytes = self._masker(options)

    @staticmethod
    def _masker(options: MaskOptions) -> Callable[[bytes], str]:
        if options.method == "redact":
            replacement = options.replacement
            return lambda _: replacement
        if options.secret is None:
            raise ValueError('secret: method = "hmac" needs one; give secret or secret_file')
        secret = options.secret.get_secret_value().encode()
        if len(secret) < _SHORTEST_SECRET:
            raise ValueError(
                f"secret: it has fewer than {_SHORTEST_SECRET} bytes, so it could be guessed; make it longer"
            )
        length = options.length
        return lambda value: hmac.digest(secret, value, "sha256").hex()[:length]

    def on_send(self, record: Record) -> Record:
        if self._paths:
            document = before = record.json()
            for path in self._paths:
                document = path.change(document, self._mask)
            if document is not before:
                record = record.with_json(document)
        if self._headers:
            headers = [
                (name, self._of_bytes(value).encode() if value is not None and name in self._headers else value)
                for name, value in record.headers
            ]
            record = record.replace(headers=headers)
        if self._masks_key and record.key is not None:
            record = record.replace(key=self._of_bytes(record.key).encode())
        return record

    def _mask(self, value: Any) -> Any:
        """A text by its own bytes, anything else by its JSON, so that 42 and "42" give the same digest."""
        if value is None or value is MISSING:
            return value
        return self._of_bytes(value.encode() if isinstance(value, str) else dump_json(value))

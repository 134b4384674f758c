"""``mask``: replaces values that must not reach Kafka by a keyed digest or a fixed text."""

import hmac
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from bridge.intercept.paths import MISSING, parse_path
from bridge.interceptors import Context, Interceptor
from bridge.record import Record, dump_json
from config.values.grammar import Count
from config.values.model import Table

_SHORTEST_SECRET = 16  # bytes; a shorter key can be guessed, and then every masked value too


class MaskOptions(Table):
    method: Literal["hmac", "redact"]  # hmac: equal values get equal digests; redact: all get one text
    fields: tuple[str, ...] = ()  # JSON paths, "*" allowed
    headers: tuple[str, ...] = ()  # header names
    key: bool = False  # the record's key, too
    secret: SecretStr | None = None  # of hmac: at least 16 bytes
    length: Annotated[Count, Field(ge=8, le=64)] = 32  # hexadecimal digits of the digest that are kept
    replacement: str = "***"  # of redact


class Mask(Interceptor):
    """Masks fields, headers and the key. Absent values stay absent, and null stays null."""

    Options = MaskOptions

    def configure(self, options: MaskOptions, context: Context) -> None:
        del context
        if not (options.fields or options.headers or options.key):
            raise ValueError("nothing to do: give fields, headers or key = true")
        self._paths = [parse_path(text, "fields", wildcards=True) for text in options.fields]
        self._headers = frozenset(options.headers)
        self._masks_key = options.key
        self._of_bytes = self._masker(options)

    @staticmethod
    def _masker(options: MaskOptions) -> Callable[[bytes], str]:
        """The function that replaces a value's bytes: by a fixed text, or by their HMAC. Raises ValueError."""
        if options.method == "redact":
            replacement = options.replacement
            return lambda _: replacement
        if options.secret is None:
            raise ValueError('secret: method = "hmac" needs one; give secret or secret_file')
        secret = options.secret.get_secret_value().encode()
        if len(secret) < _SHORTEST_SECRET:
            raise ValueError(f"secret: it has fewer than {_SHORTEST_SECRET} bytes and can be guessed; make it longer")
        length = options.length
        return lambda value: hmac.digest(secret, value, "sha256").hex()[:length]

    def on_send(self, record: Record) -> Record:
        """The record with the fields, headers and key masked that it has."""
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
        """The digest of a text's bytes, or of another value's JSON, so 42 and "42" give the same digest."""
        if value is None or value is MISSING:
            return value
        return self._of_bytes(value.encode() if isinstance(value, str) else dump_json(value))

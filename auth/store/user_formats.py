"""Files of users: EMQX's bootstrap files (CSV and JSON), and this service's own export, one JSON object per line.

The first error ends the reading, so a file is read completely or not at all. The message has line and column, and never
a password or hash.

The first line of an export names the format and has the keys of its device secrets. Tenants follow, then users. An
export is as secret as the database.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from auth.errors import ImportFormatError
from auth.members import TwiceError, unique
from auth.model import Tenant
from auth.passwords import DEVICE_KEY_BYTES, device_key_id
from auth.store.records import IdentityKind, User
from auth.store.user_entries import COLUMNS, Entry, EntryError, HashForm, read_entry, read_tenant
from config.values.files import read_at_most

_FORMAT: Final = "mqtt-kafka-gateway users"
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 29
_HEADER_FIELDS: Final = frozenset({"format", "version", "device_keys"})


@dataclass(slots=True)
class UserFile:
    entries: list[Entry] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    device_keys: dict[str, bytes] = field(default_factory=dict, repr=False)


def read_users(path: Path, form: HashForm, kind: IdentityKind = "username") -> UserFile:
    """The users in a file of any of the formats. ``kind`` is the kind of EMQX's ``user_id``. Blocks. Raises
    ImportFormatError, also for an unreadable file."""
    try:
        data = read_at_most(path, _MOST_BYTES)
    except OSError as error:
        raise ImportFormatError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ImportFormatError(f"{path} cannot be read: {error} Otherwise split it.") from None
    return parse_users(data, str(path), form, kind)


def parse_users(data: bytes, source: str, form: HashForm, kind: IdentityKind = "username") -> UserFile:
    """The users in ``data``, the bytes of a file; ``source`` names them in messages. Raises ImportFormatError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ImportFormatError(f"{source}, line {line}: this is not UTF-8.") from None
    reader = _Reader(source, form, kind)
    first = text.lstrip()[:1]
    if first == "[":
        reader.json_array(text)
    elif first == "{":
        reader.json_lines(text)
    elif first:
        reader.csv(text)
    else:
        raise ImportFormatError(f"{source} is empty: not even a line with the names of columns is in it.")
    return reader.file


class _Reader:
    def __init__(self, source: str, form: HashForm, kind: IdentityKind) -> None:
        self.file = UserFile()
        self._source = source
        self._form = form
        self._kind = kind
        self._lines: dict[tuple[str, str], int] = {}  # of each user, by kind and identity

    def csv(self, text: str) -> None:
        """Read a CSV file, whose first line names the columns. Raises ImportFormatError."""
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            header = [name.strip() for name in next(rows)]
            if len(set(header)) != len(header):
                raise self._error(1, "", "a column is there twice")
            for number, name in enumerate(header, start=1):
                if name not in COLUMNS:  # not shown: without a header, this may be a password
                    known = ", ".join(COLUMNS)
                    raise self._error(1, str(number), f"its name is none of a CSV file of users, which are {known}")
            while (row := next(rows, None)) is not None:
                if not any(row):
                    continue  # EMQX's own sample file ends with an empty user
                if len(row) != len(header):
                    raise self._error(rows.line_num, "", f"{len(row)} fields stand under {len(header)} columns")
                self._user(dict(zip(header, row, strict=True)), rows.line_num, empty_is_none=True)
        except csv.Error as error:
            raise self._error(rows.line_num, "", f"this is no CSV: {error}") from None

    def json_array(self, text: str) -> None:
        """Read a JSON list of users, one after the other, for the line of each. Raises ImportFormatError."""
        decoder = json.JSONDecoder(object_pairs_hook=unique)
        position, line, ended = text.index("[") + 1, text.count("\n", 0, text.index("[")) + 1, False
        first = True
        while not ended:
            start = _skip_space(text, position)
            line += text.count("\n", position, start)
            if text[start : start + 1] == "]":
                ended, position = True, start + 1
                break
            if not first:
                if text[start : start + 1] != ",":
                    raise self._error(line, "", "the list is not ended, or a comma is missing")
                position, start = start + 1, _skip_space(text, start + 1)
                line += text.count("\n", position, start)
            value, position = self._decode(decoder, text, start, line)
            self._user(value, line)
            line += text.count("\n", start, position)
            first = False
        if text[position:].strip():
            raise self._error(line, "", "something stands behind the end of the list")

    def json_lines(self, text: str) -> None:
        """Read an export, or users, with a JSON object in each line. Raises ImportFormatError."""
        decoder = json.JSONDecoder(object_pairs_hook=unique)
        for number, line in enumerate(text.split("\n"), start=1):
            stripped = line.strip()
            if not stripped:
                continue
            value, end = self._decode(decoder, stripped, 0, number)
            if end != len(stripped):
                raise self._error(number, "", "more than one JSON object stands on this line")
            if isinstance(value, dict) and "format" in value:
                self._header(value, number)
            elif isinstance(value, dict) and set(value) == {"tenant"} and isinstance(value["tenant"], dict):
                self._tenant(value["tenant"], number)
            else:
                self._user(value, number)

    def _decode(self, decoder: json.JSONDecoder, text: str, start: int, line: int) -> tuple[Any, int]:
        """The JSON value that begins at ``start``, and where it ends; ``line`` is the number of its line."""
        try:
            return decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            at = line + text.count("\n", start, error.pos)
            raise self._error(at, "", f"this is no JSON: {error.msg}") from None
        except TwiceError as error:
            raise self._error(line, error.name, "it is there twice") from None
        except (ValueError, RecursionError):
            raise self._error(
                line, "", "this is no JSON that can be read: nested too deep, or a number too long"
            ) from None

    def _user(self, fields: object, line: int, *, empty_is_none: bool = False) -> None:
        """Keep a user. ``empty_is_none``: an empty field is a missing one, as in CSV."""
        if not isinstance(fields, dict):
            raise self._error(line, "", "a user is a JSON object")
        if empty_is_none:
            fields = {name: value if value != "" else None for name, value in fields.items()}
        try:
            entry = read_entry(fields, line, self._form, self._kind)
        except EntryError as error:
            raise self._error(line, error.column, str(error)) from None
        key = (entry.user.kind, entry.user.identity)
        if key in self._lines:
            raise self._error(line, key[0], f"the same user is on line {self._lines[key]} already")
        self._lines[key] = line
        self.file.entries.append(entry)

    def _tenant(self, fields: Mapping[str, Any], line: int) -> None:
        try:
            self.file.tenants.append(read_tenant(fields))
        except EntryError as error:
            raise self._error(line, f"tenant.{error.column}", str(error)) from None

    def _header(self, fields: Mapping[str, Any], line: int) -> None:
        """Read the first line of an export: its version, and keys of device secrets."""
        if fields["format"] != _FORMAT:
            raise self._error(line, "format", f"this is no file of users: {_FORMAT!r} is wanted")
        if fields.get("version") != _VERSION:
            raise self._error(
                line, "version", f"this version reads version {_VERSION} alone; another one has written it"
            )
        if set(fields) - _HEADER_FIELDS:
            raise self._error(line, min(set(fields) - _HEADER_FIELDS), "there is no such field")
        keys = fields.get("device_keys", {})
        if not isinstance(keys, dict):
            raise self._error(line, "device_keys", "this is an object")
        for name, value in keys.items():
            try:
                key = bytes.fromhex(value) if isinstance(value, str) else b""
            except ValueError:
                key = b""
            if len(key) != DEVICE_KEY_BYTES or device_key_id(key) != name:
                raise self._error(line, "device_keys", "a key is damaged, or not the one that its name says")
            self.file.device_keys[name] = key

    def _error(self, line: int, column: str, sentence: str) -> ImportFormatError:
        where = f"{self._source}, line {line}" + (f", column {column[:64]}" if column else "")
        return ImportFormatError(f"{where}: {sentence}.")


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1] in {" ", "\n", "\r", "\t"}:
        position += 1
    return position


def export_lines(device_keys: Mapping[str, bytes], tenants: Iterable[Tenant], users: Iterable[User]) -> Iterator[str]:
    """The lines of an export without their newlines. ``parse_users`` reads them."""
    keys = {name: key.hex() for name, key in sorted(device_keys.items())}
    yield _dumped({"format": _FORMAT, "version": _VERSION, "device_keys": keys})
    for tenant in tenants:
        limits = _given(
            logins_per_second=tenant.logins_per_second, users_max=tenant.users_max, attributes=dict(tenant.attributes)
        )
        yield _dumped({"tenant": {"name": tenant.name, "enabled": tenant.enabled, **limits}})
    for user in users:
        fields = _given(
            password_hash=user.password,
            tenant=user.tenant,
            groups=sorted(user.groups),
            attributes=dict(user.attributes),
            is_superuser=user.is_superuser or None,
            disabled=user.disabled or None,
            expires_at=user.expires_at_s,
        )
        yield _dumped({user.kind: user.identity, **fields})


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value or value == 0}


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))

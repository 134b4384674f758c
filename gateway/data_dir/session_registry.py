"""The MQTT sessions that exist at a broker on a worker's behalf, in ``worker-N.sessions.json`` of the data directory.

A persistent session outlives the settings that made it: with fewer sessions, another client id or another group of
filters, the broker goes on queueing messages for one that nobody resumes, until it expires with all that is in it.
So it is written down before it first connects, and struck out when it was ended for good.
"""

from __future__ import annotations

__all__ = ["SessionRecord", "SessionRegistry"]

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from config.error_words import words
from gateway.data_dir import durable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = structlog.get_logger("identity")

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session: what it takes to resume it without the settings that made it.

    ``session`` is its label within the worker; ``filters`` as subscribed, ``$share`` included; ``addresses`` the
    brokers, one of which has it.
    """

    client_id: str
    session: str
    filters: tuple[str, ...]
    protocol: str
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """From JSON. Raises KeyError or TypeError."""
        return cls(
            values["client_id"],
            values["session"],
            tuple(values["filters"]),
            values["protocol"],
            tuple(values["addresses"]),
        )


class SessionRegistry:
    """The records of one worker's slot; its owner holds the slot's lock. Each change is on the disk when it returns.

    Raises OSError where the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, SessionRecord] = {}

    @property
    def records(self) -> tuple[SessionRecord, ...]:
        """All of them, in the order they were recorded."""
        return tuple(self._records.values())

    def get(self, client_id: str) -> SessionRecord | None:
        """The record of a client id, if there is one."""
        return self._records.get(client_id)

    def load(self, *, put_aside: bool = True) -> None:
        """Read the file. One that makes no sense is put aside and said: better a start without it than none. Whoever
        only looks at another slot's leaves it."""
        self._records.clear()
        try:
            found = _parse(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            if not put_aside:
                return
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            log.error(  # noqa: TRY400 - where the JSON is wrong tells nothing
                "session_registry_damaged",
                error=words(error),
                moved_to=str(aside),
                consequence="sessions of earlier settings are not ended; the broker keeps them until they expire",
            )
            return
        self._records = {record.client_id: record for record in found}

    def record(self, records: Iterable[SessionRecord]) -> None:
        """Add records, or replace those of the same client ids."""
        changed = {record.client_id: record for record in records if self._records.get(record.client_id) != record}
        if changed:
            self._write(self._records | changed)

    def forget(self, client_id: str) -> None:
        """Strike a session out that exists no more; unknown ones are fine."""
        if client_id in self._records:
            self._write({name: record for name, record in self._records.items() if name != client_id})

    def _write(self, records: dict[str, SessionRecord]) -> None:
        if records:
            document = {"version": _FORMAT, "sessions": [asdict(record) for record in records.values()]}
            durable.write(self._path, json.dumps(document, indent=1) + "\n")
        else:
            durable.remove(self._path)
        self._records = records


def _parse(text: bytes) -> list[SessionRecord]:
    document = json.loads(text)
    if document["version"] != _FORMAT:
        raise ValueError(f"format {document['version']}")
    return [SessionRecord.parse(values) for values in document["sessions"]]

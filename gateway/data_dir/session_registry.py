"""The MQTT sessions that exist at a broker on a worker's behalf, in ``worker-N.sessions.json`` of the data directory.

A persistent session outlives the settings that made it. With fewer sessions, another client id or other filters, the
broker would queue messages for it until it expires with its contents. So a session is recorded before it first
connects, and the record is removed when the session has ended for good.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import structlog

from config.error_words import words
from gateway.data_dir import durable

log = structlog.get_logger("identity")

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The data to resume a session without the settings that made it.

    ``session`` is its label within the worker. ``filters`` are those of its subscriptions, including ``$share``. One of
    ``addresses`` has the session. ``established`` are the filters under which copies for other groups may be dropped
    (``gateway.components.copies``); an older file does not name them, and all are. Without ``in_use``
    the settings no longer name it, and it is kept for another slot that may use it.
    """

    client_id: str
    session: str
    filters: tuple[str, ...]
    protocol: str
    addresses: tuple[str, ...]
    established: tuple[str, ...] = ()
    in_use: bool = True

    @property
    def group(self) -> str:
        """The name of its session group."""
        return self.session.rpartition("-")[0]

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """From JSON. Raises KeyError or TypeError."""
        return cls(
            values["client_id"],
            values["session"],
            tuple(values["filters"]),
            values["protocol"],
            tuple(values["addresses"]),
            tuple(values.get("established", values["filters"])),
            values.get("in_use", True),
        )


class SessionRegistry:
    """The records of one worker's slot, whose lock the owner holds. Each change is on disk when its call returns.

    Methods raise OSError if the disk fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, SessionRecord] = {}

    @property
    def records(self) -> tuple[SessionRecord, ...]:
        """All records, oldest first."""
        return tuple(self._records.values())

    def get(self, client_id: str) -> SessionRecord | None:
        return self._records.get(client_id)

    def elsewhere(self) -> dict[str, SessionRecord]:
        """What the other slots' files have now, by client id. This slot must not end these sessions."""
        found: dict[str, SessionRecord] = {}
        for path in self._path.parent.glob("worker-*.sessions.json"):
            if path != self._path:
                other = SessionRegistry(path)
                other.load(put_aside=False)
                found |= other._records
        return found

    def load(self, *, put_aside: bool = True) -> bool:
        """Read the file; False for an invalid one. It is moved aside and logged, so that the start can go on. With
        ``put_aside`` False, for another slot's file, it stays."""
        self._records.clear()
        try:
            found = _parse(self._path.read_bytes())
        except FileNotFoundError:
            return True
        except (ValueError, KeyError, TypeError) as error:
            if not put_aside:
                return False
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            log.error(  # noqa: TRY400 - where the JSON is wrong tells nothing
                "session_registry_damaged",
                error=words(error),
                moved_to=str(aside),
                consequence="sessions of earlier settings are not ended; the broker keeps them until they expire",
            )
            return False
        self._records = {record.client_id: record for record in found}
        return True

    def record(self, records: Iterable[SessionRecord]) -> None:
        """Add records, or replace those of the same client ids."""
        changed = {record.client_id: record for record in records if self._records.get(record.client_id) != record}
        if changed:
            self._write(self._records | changed)

    def forget(self, client_id: str) -> None:
        """Remove the record of an ended session, if there is one."""
        if client_id in self._records:
            self._write({name: record for name, record in self._records.items() if name != client_id})

    def _write(self, records: dict[str, SessionRecord]) -> None:
        """Replace the file and the records, durably; without records the file is removed."""
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

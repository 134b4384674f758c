"""MQTT sessions that the broker lost: a reconnect did not find them.

A broker with sessions in memory loses them at a restart or a kick; EMQX also when a mailbox overflows. Its counters do
not show how many messages a session held. So each loss is a record of the ledger topic, and a problem until it is
acknowledged or a day has passed.

    worker-N.lost-sessions.json     the worker's sessions at the broker, since when each is disconnected, and its losses
    lost-sessions.acknowledged      acknowledged losses (``gateway acknowledge``)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from config.error_words import words
from gateway.base.moments import moment
from gateway.base.problem import Problem
from gateway.data_dir import durable

if TYPE_CHECKING:
    from gateway.data_dir.session_registry import SessionRecord

log = structlog.get_logger("mqtt")

KEPT_MS: Final = 24 * 3600_000
MOST: Final = 1000  # losses kept; later ones replace the oldest
_FORMAT: Final = 1
_NAMED: Final = 4
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)  # errors of a file


@dataclass(frozen=True, slots=True)
class LostSession:
    """One loss, found at ``at_ms``. ``left_ms``: the end of the session's last connection; None when the process was
    killed. ``expiry_ms``: how long the broker should have kept it; None when the broker decides. ``emqx``: a sentence
    on EMQX's counters; empty until EMQX is asked."""

    session: str
    client_id: str
    broker: str
    at_ms: int
    left_ms: int | None
    expiry_ms: int | None
    emqx: str = ""

    def describe(self) -> str:
        """The session, the moment and the length of its absence, for the middle of a sentence."""
        if self.left_ms is None:
            away = "disconnected at an unknown time, by a process that was killed"
        else:
            away = f"after {_length(self.at_ms - self.left_ms)}"
            if self.expiry_ms is not None and self.at_ms - self.left_ms >= self.expiry_ms:
                away += f", longer than mqtt.session_expiry ({_length(self.expiry_ms)})"
        return f"{self.session} ({self.client_id}) at {moment(self.at_ms / 1000)}, {away}"


class LostSessions:
    """The lost sessions of one worker, as a component of the service. The worker must hold its slot's lock between
    ``start`` and ``stop``. Belongs to the event loop's thread; only ``start`` and ``stop`` wait for the disk. ``found``
    receives each loss for the ledger."""

    name: Final = "lost sessions"

    def __init__(
        self,
        path: Path,
        *,
        found: Callable[[LostSession], None],  # called with each loss
        recorded: Callable[[], Iterable[SessionRecord]] = tuple,  # used without a readable file
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path = path
        self._acknowledged = _acknowledged_path(path.parent)
        self._found = found
        self._recorded = recorded
        self._clock_ms = clock_ms
        self._addresses: dict[
            str, tuple[str, ...]
        ] = {}  # by client id, of the sessions at a broker; one of the addresses has it
        self._left_ms: dict[str, int] = {}
        self._new_to_slot: set[str] = set()  # another slot may have had these sessions
        self._losses: list[LostSession] = []
        self._writing: asyncio.Task[None] | None = None
        self._changed = False

    async def start(self) -> None:
        """Read the file of the earlier life. An unreadable file is logged and replaced."""
        self._warn_of_unreadable_marks()
        try:
            document = _read(self._path)
            addresses, left_ms = _standing(document)
            losses = _losses(document)
        except FileNotFoundError:
            self._begin()
            return
        except _UNREADABLE as error:
            log.warning(
                "lost_sessions_not_read",
                file=str(self._path),
                error=words(error),
                consequence="earlier losses are no longer shown",
            )
            self._begin()
            return
        self._addresses, self._left_ms, self._losses = addresses, left_ms, losses

    def _warn_of_unreadable_marks(self) -> None:
        """Log if the file of acknowledged losses cannot be read."""
        try:
            _marks(self._acknowledged)
        except FileNotFoundError:
            return
        except _UNREADABLE as error:
            log.warning(
                "lost_sessions_marks_not_read",
                file=str(self._acknowledged),
                error=repr(error),
                consequence="acknowledged losses are shown again; `gateway acknowledge` replaces the file",
            )

    def _begin(self) -> None:
        """Without a file, as after an upgrade, the sessions of the registry count as being at the broker. The file is
        written at once: a session that is recorded later, but never connected, must not count."""
        self._addresses = {record.client_id: record.addresses for record in self._recorded()}
        self._write_soon()

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - a write is two fsyncs
        """Note the end of the sessions' connections. The slot's next worker uses the same file."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        now_ms = self._clock_ms()
        self._left_ms = {name: self._left_ms.get(name, now_ms) for name in self._addresses}
        self._changed = True
        await self._write()

    # --- what sessions report ----------------------------------------------------------------------------------------

    def begins(self, client_ids: Iterable[str]) -> None:
        """Note sessions that are new in this slot. Another slot may have had them, under another ``mqtt.client_id``;
        its file then has whether the broker should have them."""
        self._new_to_slot = set(client_ids)

    def keeps(self, client_ids: Iterable[str]) -> None:
        """Note that only these sessions belong to this slot. The end of others is no loss."""
        for client_id in self._addresses.keys() - set(client_ids):
            self.ended(client_id)

    def stands(self, client_id: str, addresses: Sequence[str]) -> None:
        """Note that the broker has the session, and keeps it when the connection ends."""
        self._new_to_slot.discard(client_id)
        was_away = self._left_ms.pop(client_id, None) is not None  # as the file may say, for a life after a crash
        if was_away or self._addresses.get(client_id) != tuple(addresses):
            self._addresses[client_id] = tuple(addresses)
            self._write_soon()

    def left(self, client_id: str) -> None:
        """Note that the session is disconnected."""
        if client_id in self._addresses:
            self._left_ms.setdefault(client_id, self._clock_ms())

    def ended(self, client_id: str) -> None:
        """Note that the session ended on purpose, or will end with its connection."""
        if self._addresses.pop(client_id, None) is not None:
            self._left_ms.pop(client_id, None)
            self._write_soon()

    def absent(
        self, session: str, client_id: str, broker: str, addresses: Sequence[str], expiry_ms: int | None
    ) -> LostSession | None:
        """The loss, if the broker should have the session but does not; else None. Without any of the session's former
        ``addresses`` it is no loss, because another broker may have the session."""
        before, left_ms = self._addresses.get(client_id, ()), self._left_ms.get(client_id)
        if client_id in self._new_to_slot:
            self._new_to_slot.discard(client_id)
            before, left_ms = self._in_other_slots(client_id)
        if not set(before) & set(addresses):
            return None
        loss = LostSession(session, client_id, broker, self._clock_ms(), left_ms, expiry_ms)
        self._addresses.pop(client_id, None)
        self._left_ms.pop(client_id, None)
        self._losses = [*self._kept(), loss][-MOST:]
        self._write_soon()
        log.error(
            "mqtt_session_lost",
            session=session,
            client_id=client_id,
            broker=broker,
            away_s=None if loss.left_ms is None else round((loss.at_ms - loss.left_ms) / 1000, 1),
            consequence="its queued messages are lost, in unknown number; the devices have an acknowledgement",
        )
        self._found(loss)
        return loss

    def _in_other_slots(self, client_id: str) -> tuple[tuple[str, ...], int | None]:
        """A session's addresses and the end of its last connection, from another slot's file; empty without one. Reads
        a small file for each slot, once for each session."""
        for path in sorted(self._path.parent.glob("worker-*.lost-sessions.json")):
            if path != self._path:
                with contextlib.suppress(*_UNREADABLE):  # its own worker logs this
                    addresses, left_ms = _standing(_read(path))
                    if client_id in addresses:
                        return addresses[client_id], left_ms.get(client_id)
        return (), None

    # --- what others read --------------------------------------------------------------------------------------------

    def open(self) -> list[LostSession]:
        """The unacknowledged losses of the last 24 h. Reads one small file."""
        seen = _seen(self._acknowledged)
        return [loss for loss in self._kept() if _key(loss) not in seen]

    def problems(self) -> tuple[Problem, ...]:
        """The present problem, if any."""
        losses = self.open()
        return (_problem(losses),) if losses else ()

    def away(self) -> bool:
        """Whether a session of the broker is disconnected, as far as this life knows."""
        return bool(self._left_ms)

    def unexplained(self) -> bool:
        """Whether a loss has no sentence on EMQX's counters yet."""
        return any(not loss.emqx for loss in self._kept())

    def explain(self, text: str) -> None:
        """Add a sentence on EMQX's counters to the losses without one."""
        self._losses = [loss if loss.emqx else replace(loss, emqx=text) for loss in self._kept()]
        self._write_soon()

    def announce_again(self) -> None:
        """Call ``found`` for each kept loss: the earlier life may have ended before the ledger had it."""
        for loss in self._kept():
            self._found(loss)

    def facts(self) -> list[dict[str, object]]:
        """For /status: the losses of ``open``."""
        return [
            {
                "session": loss.session,
                "client_id": loss.client_id,
                "broker": loss.broker,
                "at": moment(loss.at_ms / 1000),
                "left_at": None if loss.left_ms is None else moment(loss.left_ms / 1000),
                "emqx": loss.emqx or None,
            }
            for loss in self.open()
        ]

    # --- the file ----------------------------------------------------------------------------------------------------

    def _kept(self) -> list[LostSession]:
        oldest_ms = self._clock_ms() - KEPT_MS
        return [loss for loss in self._losses if loss.at_ms > oldest_ms]

    def _write_soon(self) -> None:
        self._changed = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="lost sessions")

    async def _write(self) -> None:
        """Write the file until it has every change. In a thread: a slow disk must not hold up acknowledgements."""
        while self._changed:
            self._changed = False
            document = {
                "version": _FORMAT,
                "standing": self._addresses,
                "left_ms": self._left_ms,
                "losses": [asdict(loss) for loss in self._kept()],
            }
            text = json.dumps(document, indent=1) + "\n"
            try:
                await asyncio.to_thread(durable.write, self._path, text)
            except OSError as error:
                log.warning("lost_sessions_not_kept", file=str(self._path), error=words(error), repeat_key="lost")


def _problem(losses: Sequence[LostSession]) -> Problem:
    """The problem of these losses, the latest last."""
    each = [loss.describe() for loss in losses[-_NAMED:]]
    more = f"; and {len(losses) - _NAMED} more" if len(losses) > _NAMED else ""
    sessions = "session" if len(losses) == 1 else f"{len(losses)} sessions:"
    said = losses[-1].emqx
    return Problem(
        "session-lost",
        "critical",
        f"The broker lost {sessions} {'; '.join(each)}{more}. Queued messages are lost, in unknown number, although "
        f"the devices have an acknowledgement.{f' {said}' if said else ''}",
        "check whether the broker was restarted, or killed the session (EMQX: force_shutdown.max_mailbox_size). "
        "`gateway acknowledge` ends this problem.",
    )


def _acknowledged_path(directory: Path) -> Path:
    return directory / "lost-sessions.acknowledged"


def acknowledge(directory: Path, losses: Iterable[LostSession]) -> None:
    """Note these losses as acknowledged. Raises OSError. Each is noted by itself: with a clock that is ahead, a moment
    would also acknowledge later losses."""
    path = _acknowledged_path(directory)
    found, unreadable = _found_in(directory)
    seen = _seen(path) if unreadable else _seen(path) & {_key(loss) for loss in found}
    seen |= {_key(loss) for loss in losses}
    durable.write(path, json.dumps(sorted(seen)) + "\n")


def read_losses(directory: Path, now_ms: int) -> tuple[list[LostSession], list[Path]]:
    """The unacknowledged losses of a data directory's workers, and the files that cannot be understood. Raises
    OSError."""
    seen = _seen(_acknowledged_path(directory))
    found, unreadable = _found_in(directory)
    new = [loss for loss in found if loss.at_ms > now_ms - KEPT_MS and _key(loss) not in seen]
    return sorted(new, key=lambda loss: loss.at_ms), unreadable


def _found_in(directory: Path) -> tuple[list[LostSession], list[Path]]:
    """All losses in the files of a data directory's workers, acknowledged ones too; the damaged files."""
    found: list[LostSession] = []
    unreadable = []
    for path in sorted(path for path in directory.iterdir() if path.match("worker-*.lost-sessions.json")):
        try:
            found += _losses(_read(path))
        except FileNotFoundError:
            continue  # its slot was given up meanwhile
        except (ValueError, KeyError, TypeError):
            unreadable.append(path)
    return found, unreadable


def _read(path: Path) -> dict[str, Any]:
    """The document in a worker's file. Raises an error of _UNREADABLE."""
    document = json.loads(path.read_bytes())
    if not isinstance(document, dict):
        raise TypeError("no object")
    if document["version"] != _FORMAT:
        raise ValueError(f"format {document['version']}")
    return document


def _standing(document: dict[str, Any]) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """By client id: the addresses of the sessions at the broker, and the ends of their last connections."""
    addresses = {str(name): tuple(texts) for name, texts in document["standing"].items()}
    return addresses, {str(name): int(at_ms) for name, at_ms in document["left_ms"].items()}


def _losses(document: dict[str, Any]) -> list[LostSession]:
    return [LostSession(**values) for values in document["losses"]]


def _key(loss: LostSession) -> tuple[str, int]:
    return (loss.client_id, loss.at_ms)


def _marks(path: Path) -> set[tuple[str, int]]:
    """The acknowledged losses. Raises an error of _UNREADABLE, also for the moment that an older gateway wrote: with a
    wrong clock it acknowledges nothing reliably."""
    return {(str(client_id), int(at_ms)) for client_id, at_ms in json.loads(path.read_bytes())}


def _seen(path: Path) -> set[tuple[str, int]]:
    """The acknowledged losses; none for a missing or unreadable file, so that every loss is shown."""
    try:
        return _marks(path)
    except _UNREADABLE:
        return set()


def _length(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

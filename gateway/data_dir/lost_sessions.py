"""MQTT sessions that had to be at the broker, and were not when they were connected again: what they held is unknown.

A broker that keeps sessions in memory loses them in a restart, in a kick, and, with EMQX, when one's mailbox overflows.
None of its counters says what was in them. So each loss is a problem until somebody acknowledges it, or a day has
passed, and an entry of the ledger topic.

    worker-N.lost-sessions.json     the sessions that stand, since when one is away, and what was lost; the worker's
    lost-sessions.acknowledged      the losses that somebody has seen (``gateway acknowledge``)
"""

from __future__ import annotations

__all__ = ["KEPT_MS", "LostSession", "LostSessions", "acknowledge", "read_losses"]

import asyncio
import contextlib
import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from config.error_words import words
from gateway.base.moments import moment
from gateway.base.problem import Problem
from gateway.data_dir import durable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from gateway.data_dir.session_registry import SessionRecord

log = structlog.get_logger("mqtt")

KEPT_MS: Final = 24 * 3600_000
MOST: Final = 1000  # a broker that loses sessions every second is said well enough by these
_FORMAT: Final = 1
_NAMED: Final = 4
_SENSELESS: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)  # of a file


@dataclass(frozen=True, slots=True)
class LostSession:
    """One loss, found at ``at_ms``. ``left_ms``: when the session was last connected; None where the process ended
    without noting it. ``expiry_ms``: how long the broker was to keep it, None where that is the broker's to say.
    ``emqx``: what EMQX's counters say of the time; empty while nobody has asked."""

    session: str
    client_id: str
    broker: str
    at_ms: int
    left_ms: int | None
    expiry_ms: int | None
    emqx: str = ""

    def describe(self) -> str:
        """Which session, when, and how long it was away: the middle of a sentence."""
        if self.left_ms is None:
            away = "away since a process ended that did not say when"
        else:
            away = f"after {_length(self.at_ms - self.left_ms)}"
            if self.expiry_ms is not None and self.at_ms - self.left_ms >= self.expiry_ms:
                away += f", longer than mqtt.session_expiry ({_length(self.expiry_ms)})"
        return f"{self.session} ({self.client_id}) at {moment(self.at_ms / 1000)}, {away}"


class LostSessions:
    """One worker's, and a component of the service, which loads and writes the file. Its slot's lock must be held
    between ``start`` and ``stop``. Belongs to the event loop's thread; nothing but ``start`` and ``stop`` waits for the
    disk.

    ``found`` is called with each loss: the ledger writes it.
    """

    name: Final = "lost sessions"

    def __init__(
        self,
        path: Path,
        *,
        found: Callable[[LostSession], None],
        recorded: Callable[[], Iterable[SessionRecord]] = tuple,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path = path
        self._acknowledged = _acknowledged_path(path.parent)
        self._found = found
        self._recorded = recorded
        self._clock_ms = clock_ms
        self._addresses: dict[str, tuple[str, ...]] = {}  # of the sessions that stand: one of them has it
        self._left_ms: dict[str, int] = {}
        self._never_here: set[str] = set()  # another slot may have had them until now
        self._losses: list[LostSession] = []
        self._writing: asyncio.Task[None] | None = None
        self._changed = False

    async def start(self) -> None:
        """Reads what the life before has left. A file that makes no sense is said, and begun anew."""
        self._look_at_marks()
        try:
            document = _read(self._path)
            addresses, left_ms = _standing(document)
            losses = _losses(document)
        except FileNotFoundError:
            self._begin()
            return
        except _SENSELESS as error:
            log.warning(
                "lost_sessions_not_read",
                file=str(self._path),
                error=words(error),
                consequence="losses that were found before are not shown any more",
            )
            self._begin()
            return
        self._addresses, self._left_ms, self._losses = addresses, left_ms, losses

    def _look_at_marks(self) -> None:
        try:
            _marks(self._acknowledged)
        except FileNotFoundError:
            return
        except _SENSELESS as error:
            log.warning(
                "lost_sessions_marks_not_read",
                file=str(self._acknowledged),
                error=repr(error),
                consequence="losses that were acknowledged are shown again; `gateway acknowledge` writes it anew",
            )

    def _begin(self) -> None:
        """Without a file that tells which sessions stand, as after an upgrade, those do that the registry has. On a
        first start it has none; the file is written at once, so that a session recorded since, but never connected, is
        not taken for one that stood."""
        self._addresses = {record.client_id: record.addresses for record in self._recorded()}
        self._write_soon()

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - a write is two fsyncs
        """Notes that the sessions are away from now on. The next owner of the slot writes the same file."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        now_ms = self._clock_ms()
        self._left_ms = {name: self._left_ms.get(name, now_ms) for name in self._addresses}
        self._changed = True
        await self._write()

    # --- what sessions report ----------------------------------------------------------------------------------------

    def begins(self, client_ids: Iterable[str]) -> None:
        """This slot has these sessions for the first time. Another one may have had them, with another
        ``mqtt.client_id``: then its account says whether the broker has to have them."""
        self._never_here = set(client_ids)

    def keeps(self, client_ids: Iterable[str]) -> None:
        """These alone are this slot's now. Another slot has the others, or nobody: what becomes of them is no loss."""
        for client_id in self._addresses.keys() - set(client_ids):
            self.ended(client_id)

    def stands(self, client_id: str, addresses: Sequence[str]) -> None:
        """The broker has the session, and keeps it when the connection ends."""
        self._never_here.discard(client_id)
        self._left_ms.pop(client_id, None)
        if self._addresses.get(client_id) != tuple(addresses):
            self._addresses[client_id] = tuple(addresses)
            self._write_soon()

    def left(self, client_id: str) -> None:
        """It has no connection: since now, unless it had none before."""
        if client_id in self._addresses:
            self._left_ms.setdefault(client_id, self._clock_ms())

    def ended(self, client_id: str) -> None:
        """It was ended on purpose, or is to end with its connection."""
        if self._addresses.pop(client_id, None) is not None:
            self._left_ms.pop(client_id, None)
            self._write_soon()

    def absent(
        self, session: str, client_id: str, broker: str, addresses: Sequence[str], expiry_ms: int | None
    ) -> LostSession | None:
        """The broker says that it has no such session: the loss, if it had to have it. Not where none of its former
        ``addresses`` is among ours any more: what another broker holds is no loss."""
        before, left_ms = self._addresses.get(client_id, ()), self._left_ms.get(client_id)
        if client_id in self._never_here:
            self._never_here.discard(client_id)
            before, left_ms = self._elsewhere(client_id)
        if not set(before) & set(addresses):
            return None
        loss = LostSession(session, client_id, broker, self._clock_ms(), left_ms, expiry_ms)
        # Until it stands again there is nothing more to lose.
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
            consequence="what the broker held for it is gone, and nobody can tell how much that was; devices have had "
            "their acknowledgement",
        )
        self._found(loss)
        return loss

    def _elsewhere(self, client_id: str) -> tuple[tuple[str, ...], int | None]:
        """What another slot's account has of a session: its addresses, none where it is in no account, and since when
        it was away. Reads a small file for each slot, once for each session."""
        for path in sorted(self._path.parent.glob("worker-*.lost-sessions.json")):
            if path != self._path:
                with contextlib.suppress(*_SENSELESS):  # its worker says so
                    addresses, left_ms = _standing(_read(path))
                    if client_id in addresses:
                        return addresses[client_id], left_ms.get(client_id)
        return (), None

    # --- what others read --------------------------------------------------------------------------------------------

    def open(self) -> list[LostSession]:
        """Those that nobody has acknowledged, of the last 24 h. Looks at one small file."""
        seen = _seen(self._acknowledged)
        return [loss for loss in self._kept() if _key(loss) not in seen]

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong now."""
        losses = self.open()
        return (_problem(losses),) if losses else ()

    def away(self) -> bool:
        """Whether a session that has to be at the broker is not connected, as far as this life knows."""
        return bool(self._left_ms)

    def unexplained(self) -> bool:
        """Whether EMQX is to be asked what its counters say of a loss."""
        return any(not loss.emqx for loss in self._kept())

    def explain(self, text: str) -> None:
        """EMQX's counters say this of what was lost since the last time that all was well."""
        self._losses = [loss if loss.emqx else replace(loss, emqx=text) for loss in self._kept()]
        self._write_soon()

    def announce_again(self) -> None:
        """Call ``found`` for each that is kept: the life before may have ended before the ledger had it."""
        for loss in self._kept():
            self._found(loss)

    def facts(self) -> list[dict[str, object]]:
        """For /status: those of ``open``."""
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
        """In a thread: a slow disk must not hold up acknowledgements."""
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
    """One problem for all, in a sentence."""
    each = [loss.describe() for loss in losses[-_NAMED:]]
    more = f"; and {len(losses) - _NAMED} more" if len(losses) > _NAMED else ""
    sessions = "session" if len(losses) == 1 else f"{len(losses)} sessions:"
    said = losses[-1].emqx
    return Problem(
        "session-lost",
        "critical",
        f"The broker had lost {sessions} {'; '.join(each)}{more}. What it held is gone, and nobody can tell how much: "
        f"devices have had their acknowledgement.{f' {said}' if said else ''}",
        "whether the broker was restarted or killed the session (EMQX: force_shutdown.max_mailbox_size); "
        "`gateway acknowledge` ends this when it was seen.",
    )


def _acknowledged_path(directory: Path) -> Path:
    """Where it is noted up to when losses have been seen."""
    return directory / "lost-sessions.acknowledged"


def acknowledge(directory: Path, losses: Iterable[LostSession]) -> None:
    """Note that these have been seen. Each by itself, not all up to a moment: while the clock was ahead, that moment
    would hide what is lost once the clock is right again. Raises OSError."""
    path = _acknowledged_path(directory)
    kept = {_key(loss) for loss in _found_in(directory)}
    seen = (_seen(path) & kept) | {_key(loss) for loss in losses}
    durable.write(path, json.dumps(sorted(seen)) + "\n")


def read_losses(directory: Path, now_ms: int) -> list[LostSession]:
    """What the workers of a data directory have found and nobody has acknowledged. Raises OSError."""
    seen = _seen(_acknowledged_path(directory))
    found = _found_in(directory)
    new = [loss for loss in found if loss.at_ms > now_ms - KEPT_MS and _key(loss) not in seen]
    return sorted(new, key=lambda loss: loss.at_ms)


def _found_in(directory: Path) -> list[LostSession]:
    found: list[LostSession] = []
    for path in sorted(directory.glob("worker-*.lost-sessions.json")):
        try:
            found += _losses(_read(path))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # its worker says so
    return found


def _read(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_bytes())
    if not isinstance(document, dict):
        raise TypeError("no object")
    if document["version"] != _FORMAT:
        raise ValueError(f"format {document['version']}")
    return document


def _standing(document: dict[str, Any]) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """By client id, the addresses of the sessions that stand, and since when those that are away are."""
    addresses = {str(name): tuple(texts) for name, texts in document["standing"].items()}
    return addresses, {str(name): int(at_ms) for name, at_ms in document["left_ms"].items()}


def _losses(document: dict[str, Any]) -> list[LostSession]:
    return [LostSession(**values) for values in document["losses"]]


def _key(loss: LostSession) -> tuple[str, int]:
    return (loss.client_id, loss.at_ms)


def _marks(path: Path) -> set[tuple[str, int]]:
    """The losses that have been seen. Raises what _SENSELESS names, also for a moment, as an older gateway wrote it:
    whether a loss before that moment was seen it cannot tell where the clock was wrong."""
    return {(str(client_id), int(at_ms)) for client_id, at_ms in json.loads(path.read_bytes())}


def _seen(path: Path) -> set[tuple[str, int]]:
    """Empty before the first time, and for a file that makes no sense: what is not known to be seen is shown."""
    try:
        return _marks(path)
    except _SENSELESS:
        return set()


def _length(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

"""What the service writes to the log about logins: one line for each refusal as long as there are few.

Names are shortened and made printable (``auth.wording``). Passwords and tokens are never here.
"""

from __future__ import annotations

__all__ = ["Events"]

from typing import TYPE_CHECKING, Final

import structlog

from auth.logins.admission import TokenBucket
from auth.wording import lock_name, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from auth.errors import BackendDownError, StoreError
    from auth.logins.counts import Counts
    from auth.logins.protection import Locked
    from auth.logins.reasons import LoginReason
    from auth.model import LoginRequest

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("auth")

_LINES_PER_SECOND: Final = 20  # of refusals: a storm of 5,000 a second must not become a storm of the disk
_NS: Final = 1_000_000_000


class Events:
    """Writes them. ``clock``: monotonic, in nanoseconds. What happens to one login is counted with the answers; what
    is counted here is what happens beside them."""

    def __init__(self, counts: Counts, clock: Callable[[], int]) -> None:
        self._counts = counts
        self._clock = clock
        self._store_works = True
        self._lines = TokenBucket(_LINES_PER_SECOND)
        self._left_out = 0

    def refused(self, request: LoginRequest, reason: LoginReason, *, source: str = "", problem: str = "") -> None:
        """A login was not let in. The same of the same client comes at most once in ten seconds (``repeat_key``), all
        of them together twenty times a second; ``left_out`` says how many did not get a line since the last one."""
        if not self._lines.take(self._clock()):
            self._left_out += 1
            return
        fields: dict[str, object] = {"source": source} if source else {}
        if problem:
            fields["problem"] = problem
        if self._left_out:
            fields["left_out"] = self._left_out
            self._left_out = 0
        username, clientid = shown(request.username), shown(request.clientid)
        _log.warning(
            "auth_login_refused",
            reason=reason,
            username=username,
            clientid=clientid,
            address=shown(request.peerhost),
            **fields,
            repeat_key=(reason, username, clientid),
        )

    def locked_out(self, locked: Locked, request: LoginRequest) -> None:
        """A lock-out has begun."""
        if locked.kind == "user":
            self._counts.lockouts_user += 1
        else:
            self._counts.lockouts_address += 1
        _log.warning(
            "auth_locked_out",
            kind=locked.kind,
            name=shown(self._name(locked, request)),
            address=shown(request.peerhost),
            seconds=locked.length_ns // _NS,
            repeat_key=(locked.kind, locked.name),
        )

    @staticmethod
    def _name(locked: Locked, request: LoginRequest) -> str:
        """As the client spelled it, which may not be how it is counted."""
        if locked.kind == "address":
            return locked.name
        own = locked.name == lock_name(request.username, request.clientid)
        return (request.username or request.clientid) if own else request.clientid

    def banned(self, clientid: str, until_s: int) -> None:
        """A client id was banned for flapping."""
        self._counts.flapping_bans += 1
        _log.warning("auth_banned", clientid=shown(clientid), reason="flapping", until_s=until_s, repeat_key=clientid)

    def ban_not_written(self, error: StoreError) -> None:
        """It is in force for its time all the same, but in this process alone."""
        _log.warning("auth_ban_not_written", problem=str(error), repeat_key="ban")

    def store_failed(self, error: BackendDownError) -> None:
        """The database could not be read."""
        self._counts.store_reads_failed += 1
        if self._store_works:
            self._store_works = False
            _log.warning("auth_store_unreadable", problem=str(error))

    def store_works(self) -> None:
        """It could."""
        if not self._store_works:
            self._store_works = True
            _log.info("auth_store_readable")

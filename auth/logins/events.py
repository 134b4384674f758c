"""The service's log lines about logins: one for each refusal while there are few.

Names are shortened and made printable (``auth.names``). Passwords and tokens are never logged.
"""

from collections.abc import Callable
from typing import Final

import structlog

from auth.errors import BackendDownError, StoreError
from auth.logins.counts import Counts
from auth.logins.load_shedding import TokenBucket
from auth.logins.lockouts import Locked
from auth.logins.reasons import LoginReason
from auth.model import LoginRequest
from auth.names import lock_name, shown

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("auth")

_LINES_PER_SECOND: Final = 20  # of refusals: 5,000 a second would fill the disk
_NS: Final = 1_000_000_000


class Events:
    """Writes log lines and counts events, except for the outcomes of logins. ``clock`` is monotonic, in
    nanoseconds."""

    def __init__(self, counts: Counts, clock: Callable[[], int]) -> None:
        self._counts = counts
        self._clock = clock  # monotonic ns
        self._store_works = True  # the last read of the database did
        self._lines = TokenBucket(_LINES_PER_SECOND)  # limits all lines about refused logins
        self._left_out = 0  # lines since the last one

    def refused(self, request: LoginRequest, reason: LoginReason, *, source: str = "", problem: str = "") -> None:
        """Log a refused login. Equal lines of one client appear once in ten seconds at most (``repeat_key``), all lines
        together twenty times a second. ``left_out`` counts the lines left out since the last one."""
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

    def lock_out_begun(self, locked: Locked, request: LoginRequest) -> None:
        """Count and log a lock-out that this login has started."""
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
        """The name as the client spelled it; it may be counted under another spelling."""
        if locked.kind == "address":
            return locked.name
        own = locked.name == lock_name(request.username, request.clientid)
        return (request.username or request.clientid) if own else request.clientid

    def banned(self, clientid: str, until_s: int) -> None:
        """Log and count the ban of a flapping client id."""
        self._counts.flapping_bans += 1
        _log.warning("auth_banned", clientid=shown(clientid), reason="flapping", until_s=until_s, repeat_key=clientid)

    def ban_not_written(self, error: StoreError) -> None:
        """Log a ban that holds only in this process."""
        _log.warning("auth_ban_not_written", problem=str(error), repeat_key="ban")

    def store_failed(self, error: BackendDownError) -> None:
        """Count a failed read of the database, and log the first of several."""
        self._counts.store_reads_failed += 1
        if self._store_works:
            self._store_works = False
            _log.warning("auth_store_unreadable", problem=str(error))

    def store_works(self) -> None:
        if not self._store_works:
            self._store_works = True
            _log.info("auth_store_readable")

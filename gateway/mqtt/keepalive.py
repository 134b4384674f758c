"""When a connection is pinged, and when the other side is gone. Decides without I/O: callers pass times and counts.

paho's own clock is of no use here: it does not see PUBLISH, and stops while reading is paused.
"""

from __future__ import annotations

__all__ = ["Keepalive", "Verdict"]

from enum import Enum

TRICKLE_BYTES = 1024  # a large packet on the slowest of links brings more between two pings


class Verdict(Enum):
    """What to do when a ping is due."""

    PING = "ping"
    SILENT = "silent"  # nothing came since the last one
    STUCK = "stuck"  # bytes come, but the packet they belong to is never finished


class Keepalive:
    """A PINGREQ twice per keepalive, read or not; no PINGRESP, nor anything else, until the next one ends it."""

    __slots__ = ("_finished", "_keepalive_s", "_pinged_ns", "_stuck_bytes", "pings")

    def __init__(self, keepalive_s: float) -> None:
        self._keepalive_s = keepalive_s
        self.pings = 0  # PINGREQ sent, by whoever
        self._pinged_ns = 0  # when the last answer was asked for; 0 if nobody reads the answer
        self._finished = True  # a packet was finished since the last ping
        self._stuck_bytes: int | None = None  # received at the last ping, if none was finished since the one before

    @property
    def interval_s(self) -> float:
        """How far apart pings are."""
        return self._keepalive_s / 2

    def shorten(self, keepalive_s: float) -> bool:
        """Heed a server's keep alive; true when the interval has changed. 0 means that the server does not mind (MQTT
        5.0 section 3.2.2.3.14), but we want to know whether it lives."""
        if not 0 < keepalive_s < self._keepalive_s:
            return False
        self._keepalive_s = keepalive_s
        return True

    def packet_finished(self) -> None:
        """A whole packet came."""
        self._finished = True

    def due(
        self, now_ns: int, *, read_ns: int, received_bytes: int, pongs: int, unfinished: bool, paused: bool
    ) -> Verdict:
        """Decide, when a ping is due. ``read_ns`` is when bytes came last, ``unfinished`` whether they end in the
        middle of a packet, ``paused`` whether reading is paused: then an answer cannot be missed."""
        finished, self._finished = self._finished, False
        before, self._stuck_bytes = self._stuck_bytes, None
        if paused:
            self._pinged_ns = 0
            return Verdict.PING
        if self._pinged_ns and pongs < self.pings and read_ns < self._pinged_ns:
            return Verdict.SILENT
        if unfinished and not finished:
            # After a wrong length what follows is taken for the packet's rest, our pings' answers too. So the
            # connection looks alive, while the broker's window is full and nothing else will ever come.
            self._stuck_bytes = received_bytes
            if before is not None and received_bytes - before < TRICKLE_BYTES:
                return Verdict.STUCK
        self._pinged_ns = now_ns
        return Verdict.PING

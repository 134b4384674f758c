"""Decides when to ping a connection, and when the broker is dead. Pure: callers pass times and counts.

paho's own keepalive cannot be used: it does not see PUBLISH, and stops while reading is paused.
"""

from enum import Enum

TRICKLE_BYTES = 1024  # even on the slowest link a large packet brings more between two pings


class Verdict(Enum):
    """What to do when a ping is due."""

    PING = "ping"
    SILENT = "silent"  # nothing came since the last ping
    STUCK = "stuck"  # bytes come, but they complete no packet


class Keepalive:
    """Sends PINGREQ twice per keepalive, also when bytes come. If nothing comes until the next ping, the connection
    ends."""

    __slots__ = ("_finished", "_keepalive_s", "_pinged_ns", "_stuck_bytes", "pings")

    def __init__(self, keepalive_s: float) -> None:
        self._keepalive_s = keepalive_s
        self.pings = 0  # PINGREQ sent, by this class or by its caller
        self._pinged_ns = 0  # time of the last ping; 0 if its answer is not read
        self._finished = True  # a packet was completed since the last ping
        self._stuck_bytes: int | None = (
            None  # bytes received by the last ping, if no packet was completed since the one before
        )

    @property
    def interval_s(self) -> float:
        """Time between pings."""
        return self._keepalive_s / 2

    def shorten(self, keepalive_s: float) -> bool:
        """Adopt a server's keep alive; True when the interval has changed.

        0 means that the server expects no pings (MQTT 5.0 section 3.2.2.3.14). The gateway pings nevertheless, to
        notice a dead server.
        """
        if not 0 < keepalive_s < self._keepalive_s:
            return False
        self._keepalive_s = keepalive_s
        return True

    def packet_finished(self) -> None:
        self._finished = True

    def due(
        self, now_ns: int, *, read_ns: int, received_bytes: int, pongs: int, unfinished: bool, paused: bool
    ) -> Verdict:
        """What to do now that a ping is due: send it, or give the connection up.

        Counts are totals. ``read_ns`` is the time of the last bytes, ``unfinished`` whether they end within a packet.
        While reading is ``paused``, no answer can be missed.
        """
        finished, self._finished = self._finished, False
        before, self._stuck_bytes = self._stuck_bytes, None
        if paused:
            self._pinged_ns = 0
            return Verdict.PING
        if self._pinged_ns and pongs < self.pings and read_ns < self._pinged_ns:
            return Verdict.SILENT
        if unfinished and not finished:
            # After a wrong length, following bytes count as the packet's rest, also the answers to pings. So the
            # connection looks alive, although the broker's window is full and no further message will come.
            self._stuck_bytes = received_bytes
            if before is not None and received_bytes - before < TRICKLE_BYTES:
                return Verdict.STUCK
        self._pinged_ns = now_ns
        return Verdict.PING

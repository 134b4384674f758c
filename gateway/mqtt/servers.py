"""Which server a session connects to next: the configured addresses in turn, and those that a server refers us to.

Decides without I/O. A server redirection (MQTT 5.0 section 4.11) is followed within bounds: what a broker says must
neither send us round in circles nor make us talk to addresses that cannot be meant.
"""

from __future__ import annotations

__all__ = ["MAX_HOPS", "REDIRECTIONS", "SERVER_MOVED", "Redirection", "Servers"]

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from config.values.addresses import is_loopback, parse_server_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from config.values.addresses import MqttAddress

SERVER_MOVED = 0x9D  # for good; for now it is 0x9C, use another server
REDIRECTIONS = frozenset((0x9C, SERVER_MOVED))
MAX_HOPS = 3  # a load balancer refers once, a cluster that moves twice; more is a circle
MAX_REFERENCES = 16  # looked at in one Server Reference
SETTLED_NS = 10_000_000_000  # a connection that held for so long was where the redirections led to


@dataclass(frozen=True, slots=True)
class Redirection:
    """What a CONNACK or a DISCONNECT said: its reason code, and the Server Reference as it came (empty: none)."""

    code: int
    reference: str


class Servers:
    """The addresses of one session. One task owns it. It begins with the one at ``place``, counted round.

    ``policy`` is the setting ``mqtt.redirect``. A redirection is where the session goes next, and where it stays while
    that address can be reached: what the session holds is there now. After a failure there the configured addresses
    are tried again. Only so many redirections are followed in a row, that is without a wait between them and without a
    connection that held for ``settled_ns``.
    """

    def __init__(
        self,
        addresses: Sequence[MqttAddress],
        policy: Literal["follow", "configured", "never"] = "never",
        *,
        place: int = 0,
        settled_ns: int = SETTLED_NS,
    ) -> None:
        self._configured = tuple(addresses)
        self._policy = policy
        self._settled_ns = settled_ns
        self._index = place
        self._redirected: MqttAddress | None = None
        self._hops = 0
        self._tried = 0  # configured addresses in a row that failed, without a wait between them
        self._since_ns: int | None = None  # when the present connection was subscribed

    @property
    def only(self) -> bool:
        """Whether there is a single address, so that a refusal there is final."""
        return len(self._configured) == 1

    def current(self) -> MqttAddress:
        """Where to connect."""
        return self._redirected or self._configured[self._index % len(self._configured)]

    def subscribed(self, now_ns: int) -> None:
        """The connection to ``current()`` stands."""
        self._since_ns = now_ns

    def failed(self) -> bool:
        """The attempt at ``current()`` failed: the next one's turn; from a redirected address back to our own.
        Whether the next is a configured address that was not tried since the last wait."""
        self._since_ns = None
        if self._redirected is not None:
            self._redirected = None
            return False
        self._index += 1
        self._tried += 1
        return self._tried < len(self._configured)

    def ended(self, now_ns: int) -> None:
        """The connection that stood has ended. Call it before ``redirect``, if there is a redirection."""
        held_ns = now_ns - self._since_ns if self._since_ns is not None else 0
        self._since_ns = None
        if held_ns >= self._settled_ns:
            self._hops = 0

    def rested(self) -> None:
        """A wait has passed since the last attempt."""
        self._hops = self._tried = 0

    def redirect(self, to: Redirection) -> str | None:
        """Go where the server says, if that makes sense: None. Otherwise why not, as the end of a sentence."""
        here = self.current()
        if self._policy == "never":
            return 'mqtt.redirect is "never"'  # whatever it says
        if not to.reference.strip():
            return "it did not say which"
        if self._hops >= MAX_HOPS:
            return f"this was redirection {self._hops + 1} in a row: do the servers refer to each other?"
        why = ""
        for text in to.reference.split()[:MAX_REFERENCES]:
            try:
                address = parse_server_reference(text, here)
            except ValueError as error:
                why = why or f"its reference cannot be read: {error}"
                continue
            refused = self._objection(address, here)
            if refused is None:
                self._hops += 1
                self._redirected = address
                return None
            why = why or f"it named {address}, {refused}"
        return why

    def _objection(self, address: MqttAddress, here: MqttAddress) -> str | None:
        if address == here:
            return "which is where we are"
        if here.encrypted and not address.encrypted:
            return "which is not encrypted, as this connection is"
        if address.websocket != here.websocket:
            return "which is another transport than this connection's"
        if self._policy == "configured":
            if address not in self._configured:
                return 'which is none of mqtt.addresses, and mqtt.redirect is "configured"'
            return None
        return _nowhere(address.host, here.host)


def _nowhere(host: str, here: str) -> str | None:
    """Why no broker can be at ``host`` for us, who reached one at ``here``."""
    if is_loopback(host):
        # From a broker on another machine "localhost" is its own name for itself, a frequent mistake of set-up.
        return None if is_loopback(here) else "which is this machine, not the server's"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_unspecified or address.is_multicast or address.is_link_local or address.is_reserved:
        return "where no broker can be"
    return None

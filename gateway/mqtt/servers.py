"""The next server of a session: the configured addresses in turn, or a redirection.

Decides without I/O. A server redirection (MQTT 5.0 section 4.11) is followed within bounds: no circles, and no
addresses that cannot be right.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from config.values.addresses import MqttAddress, is_loopback, parse_server_reference

SERVER_MOVED = 0x9D  # for good; for now it is 0x9C, use another server
REDIRECTIONS = frozenset((0x9C, SERVER_MOVED))
MAX_HOPS = 3  # a load balancer redirects once, a moving cluster twice; more is a circle
MAX_REFERENCES = 16  # most addresses of a Server Reference that are tried
SETTLED_NS = 10_000_000_000  # a connection of this length ends a row of redirections


@dataclass(frozen=True, slots=True)
class Redirection:
    """A redirection in CONNACK or DISCONNECT: its reason code and its Server Reference (empty: none)."""

    code: int
    reference: str


class Servers:
    """The addresses of one session. One task owns it. The session begins with the address at ``place``, modulo their
    number.

    ``policy`` is the setting ``mqtt.redirect``. A session stays at a redirected address while that can be reached: its
    queue is there. After a failure the configured addresses are tried again.

    The redirections in a row are bounded. A wait between two, or a connection that lasted SETTLED_NS, ends such a
    row.
    """

    def __init__(
        self,
        addresses: Sequence[MqttAddress],
        policy: Literal["follow", "configured", "never"] = "never",
        *,
        place: int = 0,
    ) -> None:
        self._configured = tuple(addresses)
        self._policy = policy
        self._index = place  # of the present configured address, modulo their number
        self._redirected: MqttAddress | None = None  # the server that a redirection named, while it is used
        self._hops = 0  # redirections followed in a row
        self._tried = 0  # configured addresses in a row that failed, without a wait between them
        self._since_ns: int | None = None  # when the present connection was subscribed

    @property
    def only(self) -> bool:
        """Whether there is a single address, so that its refusal is final."""
        return len(self._configured) == 1

    def current(self) -> MqttAddress:
        return self._redirected or self._configured[self._index % len(self._configured)]

    def subscribed(self, now_ns: int) -> None:
        """Note that a session is connected to ``current()`` and subscribed."""
        self._since_ns = now_ns

    def next_after_failure(self) -> bool:
        """Choose the next configured address after a failed attempt. True if it can be tried at once: no attempt there
        failed since the last wait."""
        self._since_ns = None
        if self._redirected is not None:
            self._redirected = None
            return False
        self._index += 1
        self._tried += 1
        return self._tried < len(self._configured)

    def connection_ended(self, now_ns: int) -> None:
        """Note the end of an accepted connection; after a long one, redirections are counted anew. Call it before
        ``redirect``, if there is a redirection."""
        held_ns = now_ns - self._since_ns if self._since_ns is not None else 0
        self._since_ns = None
        if held_ns >= SETTLED_NS:
            self._hops = 0

    def waited(self) -> None:
        """Note a wait since the last attempt."""
        self._hops = self._tried = 0

    def redirect(self, to: Redirection) -> str | None:
        """Follow a redirection. Returns None, or the objection as the end of a sentence."""
        here = self.current()
        if self._policy == "never":
            return 'mqtt.redirect is "never"'  # for any reference
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
        """Why a redirection from ``here`` to ``address`` is not followed, as a clause; None if it is."""
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
    """Why this gateway, connected to ``here``, cannot find a broker at ``host``; None if it may."""
    if is_loopback(host):
        # "localhost" from a broker on another machine is that machine's own name, a frequent mistake.
        return None if is_loopback(here) else "which is this machine, not the server's"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_unspecified or address.is_multicast or address.is_link_local or address.is_reserved:
        return "where no broker can be"
    return None

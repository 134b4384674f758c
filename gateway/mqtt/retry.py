"""The pause before a session connects again: short while the broker is down, growing after refusals.

EMQX keeps no session over its own restart. It drops published messages until somebody has subscribed again, so each
second of waiting costs messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from bridge.backoff import Backoff
from bridge.waiting import until_set
from config.values.grammar import nanoseconds
from gateway.mqtt.errors import ConnectError, MqttRefusedError

if TYPE_CHECKING:
    import random

    from config.settings import MqttSettings

SOON_NS = 1_000_000_000  # the longest wait for a broker that is down, before the jitter
RESTART_NS = 30_000_000_000  # for this time after a restart a refusal may mean that authenticators are not loaded yet
SHORT_LIVED_IN_A_ROW = 3  # connections that ended soon and without a reason

_AWAY = frozenset(
    {"closed", "keepalive", "server_stopping"}
)  # labels of a connection's end at which the broker was down
_NO_REASON = _AWAY | {"administrative"}  # also a kick; after these the next attempt may succeed
_OURS_ALONE = frozenset({0x8A, 0x97, 0x9F})  # CONNACK: banned, quota exceeded, connection rate exceeded
_CONFIGURATION = frozenset({"tls", "token", "redirected"})  # labels of failures that seldom end by waiting


class Pause(NamedTuple):
    """The length of a wait, and whether a subscribed sibling ends it."""

    wait_ns: int
    is_shared: bool


class Siblings:
    """Facts that the sessions of a worker share. Belongs to the event loop's thread.

    ``next_subscribed`` is set, and replaced, when a session is subscribed. A session takes it before its attempt, so
    that events during the attempt count too.
    """

    def __init__(self) -> None:
        self.next_subscribed = asyncio.Event()
        self._away_ns: int | None = None

    def subscribed(self) -> None:
        """Note a subscribed session: sessions that wait for the broker try at once."""
        subscribed, self.next_subscribed = self.next_subscribed, asyncio.Event()
        subscribed.set()

    def away(self, now_ns: int) -> None:
        """Note that the broker ended a connection or was unreachable."""
        self._away_ns = now_ns

    def lately_down(self, now_ns: int) -> bool:
        """Whether the broker was down within the last 30 s. EMQX opens its listeners before its authenticators work,
        and refuses every login meanwhile."""
        return self._away_ns is not None and now_ns - self._away_ns < RESTART_NS

    @staticmethod
    async def wait(pause: Pause, sibling_subscribed: asyncio.Event) -> None:
        """Wait out the pause; a shared one ends as soon as another session is subscribed."""
        if pause.is_shared:
            await until_set(sibling_subscribed, pause.wait_ns / 1e9)
        else:
            await asyncio.sleep(pause.wait_ns / 1e9)


class Retry:
    """The waits of one session. One task owns it.

    Waits for a broker that is down grow to about a second; a subscribed sibling ends them. Waits grow to
    ``mqtt.reconnect_max`` when the broker refuses only this session, or gives a reason.
    """

    def __init__(self, settings: MqttSettings, siblings: Siblings, *, rng: random.Random | None = None) -> None:
        initial_ns, max_ns = nanoseconds(settings.reconnect_initial), nanoseconds(settings.reconnect_max)
        self._siblings = siblings
        self._stable_after_ns = nanoseconds(settings.stable_after)
        jitter = settings.reconnect_jitter
        soon_ns = max(initial_ns, min(max_ns, round(SOON_NS * (1 + jitter))))
        self._soon = Backoff(initial_ns, soon_ns, jitter, rng=rng)  # while the broker is down
        self._growing = Backoff(initial_ns, max_ns, jitter, rng=rng)  # after a refusal, or when waiting does not help
        self._since_ns: int | None = None  # when the connection was subscribed
        self._short_lived = 0  # connections in a row that ended soon

    @property
    def short_lived(self) -> bool:
        """Whether three connections in a row ended within ``stable_after``, although the broker answers."""
        return self._short_lived >= SHORT_LIVED_IN_A_ROW

    def subscribed(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._soon.reset()
        self._siblings.subscribed()

    def ended(self, label: str, now_ns: int) -> Pause:
        """The connection has ended; ``label`` is that of gateway_mqtt_disconnects_total."""
        if self._since_ns is not None and now_ns - self._since_ns >= self._stable_after_ns:
            self._short_lived = 0
            self._growing.reset()
        else:
            self._short_lived += 1
        self._since_ns = None
        if label in _AWAY:
            self._siblings.away(now_ns)
        # Brokers of MQTT 3.1.1 do not say that another client has taken the session over.
        if label in _NO_REASON and not self.short_lived:
            return self._wait_soon(now_ns)
        return Pause(self._growing.next_ns(now_ns), False)

    def failed(self, error: ConnectError, now_ns: int, label: str | None = None) -> Pause:
        """An attempt has failed; ``label`` is as for ``ended`` when the connection ended before SUBACK."""
        if error.code in _OURS_ALONE:
            return Pause(self._growing.next_ns(now_ns), False)
        if isinstance(error, MqttRefusedError) or error.reason in _CONFIGURATION:
            if self._siblings.lately_down(now_ns):
                return self._wait_soon(now_ns)
            return Pause(self._growing.next_ns(now_ns), True)
        if label is not None and label not in _NO_REASON:
            return Pause(self._growing.next_ns(now_ns), False)
        self._siblings.away(now_ns)
        self._short_lived = 0  # the broker was down, so no other client took the session
        return self._wait_soon(now_ns)

    def _wait_soon(self, now_ns: int) -> Pause:
        return Pause(self._soon.next_ns(now_ns), True)

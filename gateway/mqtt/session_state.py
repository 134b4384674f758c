"""The states of an MQTT session, and the table of its transitions.

    [*] --> waiting
    waiting --> connecting: the pause is over
    waiting --> ended: another slot has it
    connecting --> waiting: refused, or no answer
    connecting --> subscribing: CONNACK
    subscribing --> running: SUBACK
    subscribing --> waiting: refused, or connection lost
    running --> waiting: connection lost
    running --> renewing: another token or certificate
    renewing --> waiting: DISCONNECT, the broker keeps the session
    subscribing --> draining: SIGTERM
    running --> draining: SIGTERM
    renewing --> draining: SIGTERM
    draining --> stopped: all acknowledged, the broker keeps the session
    subscribing --> unsubscribing: gateway retire, or a session of earlier settings
    running --> unsubscribing: gateway retire
    renewing --> unsubscribing: gateway retire
    unsubscribing --> waiting: connection lost, for a session of earlier settings
    unsubscribing --> ending: all received and acknowledged
    unsubscribing --> ended: another client uses the client id
    ending --> waiting: connection lost, for a session of earlier settings
    ending --> ended: the broker forgets the session

Beside these, every state but ``ended`` becomes ``stopped`` when a stop finds no connection, or reaches its deadline.
The life of the worker's service is in ``gateway.base.lifecycle``.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final


class SessionState(Enum):
    """What a session does at the moment. Only the session changes it, in the event loop's thread."""

    WAITING = auto()
    CONNECTING = auto()
    SUBSCRIBING = auto()
    RUNNING = auto()
    RENEWING = auto()
    DRAINING = auto()
    UNSUBSCRIBING = auto()
    ENDING = auto()
    ENDED = auto()
    STOPPED = auto()


_S = SessionState
_STOPS: Final = frozenset({_S.DRAINING, _S.UNSUBSCRIBING, _S.STOPPED})

TRANSITIONS: Final[Mapping[SessionState, frozenset[SessionState]]] = MappingProxyType(
    {
        _S.WAITING: frozenset({_S.CONNECTING, _S.ENDED, _S.STOPPED}),
        _S.CONNECTING: frozenset({_S.SUBSCRIBING, _S.WAITING, _S.STOPPED}),
        _S.SUBSCRIBING: frozenset({_S.RUNNING, _S.WAITING}) | _STOPS,
        _S.RUNNING: frozenset({_S.RENEWING, _S.WAITING}) | _STOPS,
        _S.RENEWING: frozenset({_S.WAITING}) | _STOPS,
        _S.DRAINING: frozenset({_S.STOPPED}),
        _S.UNSUBSCRIBING: frozenset({_S.ENDING, _S.ENDED, _S.WAITING, _S.STOPPED}),
        _S.ENDING: frozenset({_S.ENDED, _S.WAITING, _S.STOPPED}),
        _S.ENDED: frozenset(),
        _S.STOPPED: frozenset(),
    }
)

ACCEPTED: Final = frozenset({_S.SUBSCRIBING, _S.RUNNING, _S.RENEWING, _S.DRAINING, _S.UNSUBSCRIBING, _S.ENDING})
"""The broker has accepted the login of the present connection."""

SUBSCRIBED: Final = ACCEPTED - {_S.SUBSCRIBING}
"""Messages come: the broker has granted the filters, or kept them from an earlier connection."""

RECEIVING: Final = frozenset({_S.RUNNING, _S.RENEWING, _S.DRAINING})
"""The broker has granted the filters on the present connection, and keeps them."""

STOPPING: Final = frozenset({_S.DRAINING, _S.UNSUBSCRIBING, _S.ENDING, _S.ENDED, _S.STOPPED})
"""No further connection follows, except for a session of earlier settings."""

"""The scripted broker's rules and what it keeps of a session."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import asyncio

    from tests.brokers import packets
    from tests.brokers.packets import Message
    from tests.brokers.scripted_link import Link

NOBODY = 0x10  # PUBACK: no matching subscribers (MQTT 5.0 section 3.4.2.1)


@dataclass
class Rules:
    """How the broker behaves; may be changed while it runs. Codes are MQTT 5's, in 3.1.1 the return code."""

    max_inflight: int = 32
    queue: int = 1000
    slow_start: bool = False  # one message until the first acknowledgement of a connection, as HiveMQ CE does
    forgets_members: bool = False  # sends nothing until a connection's second SUBSCRIBE, as HiveMQ CE may do
    max_mailbox: int | None = 1000  # messages that wait for a session's process, which is killed beyond; None: no limit
    send_timeout_s: float = 15.0  # EMQX's, of a connection that takes nothing
    strategy: Literal["round_robin", "hash_clientid"] = "round_robin"
    shared: bool = True  # SharedSubscriptionAvailable
    max_qos: int = 2
    refuse_connect: int | None = None
    refusal_properties: bytes = b""
    refuse_subscribe: int | None = None
    server_keepalive: int | None = None
    answers_connect: bool = True
    answers_subscribe: bool = True
    answers_pings: bool = True
    connack: bytes | None = None  # sent instead of a proper one
    suback: Callable[[packets.Subscribe], bytes] | None = None
    after_suback: bytes = b""  # sent behind it
    users: dict[str, bytes] | None = None
    check: Callable[[packets.Connect], int | None] | None = None  # the code of a refusal, as refuse_connect
    puback: int | None = None  # reason code for the gateways' own messages, which then go nowhere
    answers_publishers: bool = True  # else PUBACK and PUBREC wait for ``Link.answer_publisher``
    disconnects_publishers: int | None = None  # DISCONNECT instead, as EMQX with deny_action = disconnect
    sys_events: bool = False  # $SYS/brokers/NODE/clients/ID/connected and disconnected; EMQX's default is on


@dataclass
class Flying:
    """A message with a packet id: sent, not acknowledged. ``received``: PUBREC came, PUBREL is under way."""

    message: Message
    qos: int
    retain: bool
    received: bool = False


@dataclass
class Node:
    """One broker of the cluster. ``port`` stays the same over a stop and a start."""

    name: str
    port: int = 0
    server: asyncio.Server | None = None

    @property
    def running(self) -> bool:
        return self.server is not None


@dataclass
class Session:
    """What outlives a connection. It is a process at a node: ``stalled`` while that gets no time, so that what comes
    for it waits in its mailbox; ``dead`` when it died with its node, of which shared subscriptions do not hear."""

    client_id: str
    node: Node
    username: str | None = None
    stalled: bool = False
    dead: bool = False
    mailbox: deque[tuple[Message, int, bool]] = field(default_factory=deque)
    expiry: int = 0
    link: Link | None = None
    expires: asyncio.TimerHandle | None = None  # while it has no connection
    window: int = 32
    filters: dict[str, int] = field(default_factory=dict)  # with options byte, shared ones with their $share
    flying: dict[int, Flying] = field(default_factory=dict)
    queue: deque[Flying] = field(default_factory=deque)
    incoming: set[int] = field(default_factory=set)  # packet ids of QoS 2 from the client
    last_id: int = 0
    connects: int = 0
    created_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    connected_ms: int = 0  # when its present or last connection began
    disconnected_ms: int = 0  # when its last connection ended
    dropped: int = 0  # by its queue, for as long as the session lives
    dropped_here: int = 0  # the same, since the connection began
    acknowledged: list[int] = field(default_factory=list)  # packet ids in the order of PUBACK and PUBREC

    def held(self) -> list[Message]:
        """What it has for its client: sent and not acknowledged, or waiting."""
        held = [flying.message for flying in (*self.flying.values(), *self.queue)]
        return held + [message for message, _, _ in self.mailbox]

    def take_id(self) -> int:
        while True:
            self.last_id = self.last_id % 65535 + 1
            if self.last_id not in self.flying:
                return self.last_id

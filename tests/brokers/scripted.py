"""An MQTT broker in the test's own event loop that obeys EMQX 5.8's rules and, on request, breaks MQTT's.

What EMQX does and other brokers do not: a window of min(ours, 32) whose size CONNACK repeats; a queue of 1000 that
drops its oldest although the device was acknowledged; a shared subscription that chooses members by round robin or by a
hash of the publisher's client id over the member list, whether or not they are connected; after a reconnect what was
unacknowledged first, with DUP; the messages of a session that ends moved to the group's others, behind newer ones, but
lost on a kick and on a DISCONNECT that lowers the expiry to 0; 0x10 in the PUBACK when nobody is subscribed; a
connection that takes nothing for 15 s is ended; a restart loses all sessions with all they held. A session whose
process gets no time, or cannot write, keeps what comes for it in its mailbox; when that overflows it is killed with all
it held, and no counter says so. A node of the cluster that dies leaves its sessions among the members of shared
subscriptions: their share of what is published goes to nobody, and its publishers get PUBACK 0, until the node is back
or was forced to leave. ``Rules`` has what a test changes.
"""

import asyncio
import json
import ssl
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self

from tests.brokers import packets
from tests.brokers.packets import Message, Type
from tests.brokers.scripted_link import Link
from tests.brokers.scripted_rules import Flying, Node, Rules, Session
from tests.servers.playing import accepted_are_known

RETAIN_AS_PUBLISHED = 8
NEVER = 0xFFFF_FFFF  # a session expiry that does not come (MQTT 5.0 section 3.1.2.11.2)


def publish(broker: "ScriptedBroker", numbers: Iterable[int], *, qos: int = 1) -> None:
    """A message of each number, to ``devices/N`` from the device N of ten whose turn it is."""
    for number in numbers:
        device = number % 10
        broker.publish(Message(f"devices/{device}", b"%d" % number, qos, publisher=f"device-{device}"))


class ScriptedBroker:
    """Listens on 127.0.0.1 while its ``async with`` block runs; ``port``, its first node's, stays the same over
    ``stop`` and ``start``."""

    def __init__(
        self, rules: Rules | None = None, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", nodes: int = 1
    ) -> None:
        self.rules = rules or Rules()
        self.nodes = [Node(f"emqx{number or ''}@127.0.0.1") for number in range(nodes)]
        self.links: list[Link] = []
        self.empty = asyncio.Event()  # no connection is left
        self.empty.set()
        self.violations: list[str] = []  # what clients sent that MQTT does not allow: a test ends with none
        self.sessions: dict[str, Session] = {}
        self.groups: dict[tuple[str, str], list[Session]] = {}  # (group, filter) to members in the order they joined
        self.retained: dict[str, Message] = {}
        self.connects: list[packets.Connect] = []
        self.subscribes: list[packets.Subscribe] = []
        self.published = 0
        self.dropped: list[Message] = []  # for want of room, though the publisher was acknowledged
        self.unrouted: list[Message] = []  # nobody was subscribed: PUBACK says 0x10
        self.vanished: list[Message] = []  # given to a member on a dead node: PUBACK says 0
        self.bans: list[dict[str, str]] = []  # as EMQX lists them; nobody is kept out
        self.lost_messages: list[Message] = []  # with a session: kicked, ended by a DISCONNECT, gone with a restart
        self.trap: tuple[int, Callable[[], None]] | None = None  # called at the n-th acknowledgement from now, at once
        self.blocked = 0  # connections ended because they did not take what was sent
        self._turns: dict[tuple[str, str], int] = {}
        self._tls = tls
        self._host = host
        self._watch: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        await self.stop()
        assert kind is not None or not self.violations, self.violations

    @property
    def port(self) -> int:
        return self.nodes[0].port

    async def start(self) -> None:
        for node in self.nodes:
            await self.start_node(node)
        self._check_keepalives()

    async def stop(self, *, keep_sessions: bool = False) -> None:
        """Close the ports and every connection, without a DISCONNECT, as EMQX does: its sessions are in memory and go
        with it. ``keep_sessions``: they live on, as at a broker that writes them to a disk."""
        if self._watch is not None:
            self._watch.cancel()
        for node in self.nodes:
            await self._close(node)
        await self.empty.wait()
        if not keep_sessions:
            for session in self.sessions.values():
                if session.expires is not None:
                    session.expires.cancel()
                self.lost_messages += session.held()
            self.sessions.clear()
            self.groups.clear()

    # --- the cluster ---

    async def start_node(self, node: Node) -> None:
        """It is there, or back: shared subscriptions forget its dead."""
        node.server = await asyncio.get_running_loop().create_server(
            lambda: Link(self, node), self._host, node.port, ssl=self._tls, reuse_address=True
        )
        node.port = node.server.sockets[0].getsockname()[1]
        self._bury(node)

    async def kill_node(self, node: Node) -> None:
        """As by SIGKILL or the power: its sessions are gone with all they held, and stay members of their groups."""
        for session in [session for session in self.sessions.values() if session.node is node]:
            if session.link is not None:
                session.link.session = None
            self._die(session)
            session.dead = True
        await self._close(node)

    def force_leave(self, node: Node) -> None:
        """Take a node out of the cluster."""
        self.nodes.remove(node)
        self._bury(node)

    async def _close(self, node: Node) -> None:
        server, node.server = node.server, None
        if server is None:
            return
        server.close()
        await accepted_are_known()
        links = [link for link in self.links if link.node is node]
        for link in links:
            link.transport.abort()
        await server.wait_closed()
        for link in links:
            await link.ended.wait()

    def _bury(self, node: Node) -> None:
        for members in list(self.groups.values()):
            for session in [session for session in members if session.dead and session.node is node]:
                self._leave(session)

    # --- what a test does to sessions ---

    def session(self, client_id: str) -> Session:
        return self.sessions[client_id]

    def link(self, client_id: str) -> Link:
        """The connection of a client that has one."""
        link = self.sessions[client_id].link
        assert link is not None, f"{client_id} is not connected"
        return link

    def kick(self, client_id: str) -> None:
        """As by REST: its connection and its session go, with everything in it."""
        session = self.sessions[client_id]
        self._die(session)
        self._leave(session)
        if session.link is not None:
            session.link.session = None
            session.link.end(0x98)

    def stall(self, client_id: str) -> None:
        """Its session's process gets no time, until ``resume``: what comes waits in its mailbox."""
        self.sessions[client_id].stalled = True

    def resume(self, client_id: str) -> None:
        session = self.sessions[client_id]
        session.stalled = False
        self.opens_mailbox(session)

    def opens_mailbox(self, session: Session) -> None:
        """Its process goes on: what waits is delivered."""
        mailbox, session.mailbox = session.mailbox, deque()
        for message, options, retain in mailbox:
            self._deliver(session, message, options, retain=retain)
        self._pump(session)

    def _die(self, session: Session) -> None:
        """A session is gone with all it held, and gives nothing to anybody."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        if session.expires is not None:
            session.expires.cancel()
        self.lost_messages += session.held()

    def _killed(self, session: Session) -> None:
        """Its mailbox has overflown (force_shutdown.max_mailbox_size)."""
        self._die(session)
        self._leave(session)
        if session.link is not None:
            session.link.session = None
            session.link.transport.abort()

    # --- connections ---

    def connected(self, link: Link, connect: packets.Connect) -> None:
        rules = self.rules
        self.connects.append(connect)
        if not rules.answers_connect:
            return
        refusal = rules.refuse_connect
        if rules.users is not None and rules.users.get(connect.username or "") != connect.password:
            refusal = 0x86 if connect.v5 else 4
        if rules.check is not None:
            refusal = rules.check(connect)
        if refusal is not None:
            link.send(packets.connack(refusal, properties=rules.refusal_properties if connect.v5 else None))
            link.end()
            return
        session, present = self._session_for(link, connect)
        if rules.connack is not None:
            link.send(rules.connack)
        else:
            link.send(
                packets.connack(session_present=present, properties=self._properties(session) if connect.v5 else None)
            )
        for packet_id, flying in session.flying.items():
            self._send(session, packet_id, flying, dup=True)
        self._pump(session)
        self._tell_of(session, "connected")

    def _tell_of(self, session: Session, event: str) -> None:
        """An event message of EMQX's: QoS 0, from nobody, and counted by nobody."""
        if self.rules.sys_events:
            now_ms, username = time.time_ns() // 1_000_000, session.username or "undefined"
            payload = {"clientid": session.client_id, "username": username, "ipaddress": "127.0.0.1", "proto_ver": 5}
            payload |= {"proto_name": "MQTT", "protocol": "mqtt", "sockport": session.node.port, "ts": now_ms}
            payload |= {"connected_at": session.connected_ms}
            if event == "disconnected":
                payload |= {"reason": "tcp_closed", "disconnected_at": now_ms}
            else:
                payload |= {"keepalive": 30, "clean_start": True, "expiry_interval": session.expiry}
            topic = f"$SYS/brokers/{session.node.name}/clients/{session.client_id}/{event}"
            self._route(Message(topic, json.dumps(payload).encode(), publisher="emqx_sys"))

    def _properties(self, session: Session) -> bytes:
        properties = b"\x21" + session.window.to_bytes(2)
        if self.rules.server_keepalive is not None:
            properties += b"\x13" + self.rules.server_keepalive.to_bytes(2)
        if not self.rules.shared:
            properties += b"\x2a\0"
        return properties

    def _session_for(self, link: Link, connect: packets.Connect) -> tuple[Session, bool]:
        session = self.sessions.get(connect.client_id)
        if session is not None and session.link is not None:
            session.link.session = None
            session.link.end(0x8E)
        if session is not None and connect.clean:
            self._terminate(session)
            session = None
        present = session is not None
        if session is not None and session.expires is not None:
            session.expires.cancel()
        if session is None:
            session = self.sessions[connect.client_id] = Session(connect.client_id, link.node)
        session.link = link
        session.node = link.node
        session.username = connect.username
        session.expiry = connect.expiry
        session.connects += 1
        session.connected_ms = time.time_ns() // 1_000_000
        session.dropped_here = 0
        session.window = min(connect.receive_maximum, self.rules.max_inflight)
        link.session = session
        return session, present

    def lost(self, link: Link) -> None:
        session, connect = link.session, link.connect
        if session is None or connect is None:
            return
        session.link = None
        session.disconnected_ms = time.time_ns() // 1_000_000
        if not session.stalled:
            self.opens_mailbox(session)
        self._tell_of(session, "disconnected")
        if connect.will is not None and not link.goodbye:
            self.publish(connect.will)
        if not session.expiry:
            self._terminate(session)
        elif session.expiry != NEVER:
            session.expires = asyncio.get_running_loop().call_later(session.expiry, self._terminate, session)

    def _terminate(self, session: Session) -> None:
        """The session ends: its group's others get what it held, behind newer messages; the last one's is gone."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        memberships = [key for key, members in self.groups.items() if session in members]
        self._leave(session)
        inflight = list(session.flying.values())
        held = [flying for flying in inflight if flying.qos == 1] + [f for f in session.queue if f.qos]
        # MQTT 5.0 section 4.8.2: what is in the middle of a QoS 2 exchange is not sent to another member.
        self.lost_messages += [flying.message for flying in inflight if flying.qos == 2]
        for flying in held:
            for group, text in memberships:
                if packets.matches(text, flying.message.topic) and self.groups.get((group, text)):
                    self._dispatch_shared((group, text), flying.message)
                    break
            else:
                self.lost_messages.append(flying.message)

    def _leave(self, session: Session) -> None:
        for text in list(session.filters):
            self.unsubscribe(session, text)

    def _check_keepalives(self) -> None:
        loop = asyncio.get_running_loop()
        late_s = loop.time() - self._watch.when() if self._watch is not None else 0.0
        for link in list(self.links):
            link.heard += late_s  # while this process stood still, so did the client, or the broker could not hear it
            if link.connect is None:
                continue
            keepalive = self.rules.server_keepalive if link.v5 else None
            keepalive = link.connect.keepalive if keepalive is None else keepalive
            if keepalive and loop.time() - link.heard > 1.5 * keepalive:
                link.end(0x8D)
            if link.blocked_s(loop.time()) > self.rules.send_timeout_s:
                self.blocked += 1
                link.transport.abort()
        self._watch = loop.call_later(0.1, self._check_keepalives)

    # --- subscriptions ---

    def subscribe(self, link: Link, session: Session, request: packets.Subscribe) -> None:
        self.subscribes.append(request)
        link.subscribes += 1
        rules = self.rules
        if not rules.answers_subscribe:
            return
        if rules.suback is not None:
            link.send(rules.suback(request))
            return
        codes = bytearray()
        for text, options in request.filters:
            share = text.startswith("$share/")
            if rules.refuse_subscribe is not None:
                codes.append(rules.refuse_subscribe)
            elif share and not rules.shared:
                codes.append(0x9E if link.v5 else 0x80)
            else:
                qos = min(options & 3, rules.max_qos)
                codes.append(qos)
                session.filters[text] = options & ~3 | qos
                if share:
                    _, group, rest = text.split("/", 2)
                    members = self.groups.setdefault((group, rest), [])
                    if session not in members:
                        members.append(session)
        link.send(packets.suback(request.packet_id, bytes(codes), v5=link.v5))
        for text, options in request.filters:
            if not text.startswith("$share/") and options >> 4 & 3 < 2:
                for message in [m for t, m in self.retained.items() if packets.matches(text, t)]:
                    self._deliver(session, message, options, retain=True)
        if rules.after_suback:
            link.send(rules.after_suback)
        if rules.forgets_members:
            self._pump(session)

    def unsubscribe(self, session: Session, text: str) -> None:
        session.filters.pop(text, None)
        if text.startswith("$share/"):
            _, group, rest = text.split("/", 2)
            members = self.groups.get((group, rest), [])
            if session in members:
                members.remove(session)
            if not members:
                self.groups.pop((group, rest), None)

    # --- messages ---

    def publish(self, message: Message) -> bool:
        """A device's message, acknowledged to it whatever becomes of it; whether anybody was subscribed. Maybe nobody
        is to a retained one: it is taken all the same."""
        self.published += 1
        if message.retain:
            self.retained[message.topic] = message
            if not message.payload:
                del self.retained[message.topic]
        reached = self._route(message)
        if not reached:
            self.unrouted.append(message)
        return reached

    def _route(self, message: Message) -> bool:
        reached = False
        for session in list(self.sessions.values()):
            for text, options in list(session.filters.items()):  # the delivery may kill it
                if not text.startswith("$share/") and packets.matches(text, message.topic):
                    self._deliver(session, message, options)
                    reached = True
        for key in list(self.groups):
            if packets.matches(key[1], message.topic):
                self._dispatch_shared(key, message)
                reached = True
        return reached

    def _dispatch_shared(self, key: tuple[str, str], message: Message) -> None:
        members = self.groups[key]
        if self.rules.strategy == "hash_clientid":
            member = members[zlib.crc32(message.publisher.encode()) % len(members)]
        else:
            self._turns[key] = self._turns.get(key, -1) + 1
            member = members[self._turns[key] % len(members)]
        if member.dead:
            self.vanished.append(message)
            return
        self._deliver(member, message, member.filters[f"$share/{key[0]}/{key[1]}"])

    def _deliver(self, session: Session, message: Message, options: int, *, retain: bool = False) -> None:
        if session.stalled or (session.link is not None and session.link.blocked):
            session.mailbox.append((message, options, retain))
            if self.rules.max_mailbox is not None and len(session.mailbox) > self.rules.max_mailbox:
                self._killed(session)
            return
        qos = min(message.qos, options & 3)
        retain = retain or (message.retain and bool(options & RETAIN_AS_PUBLISHED))
        flying = Flying(message, qos, retain)
        if qos == 0 and session.link is not None:
            self._send(session, 0, flying)
            return
        session.queue.append(flying)
        self._pump(session)
        if len(session.queue) > self.rules.queue:
            self.dropped.append(session.queue.popleft().message)
            session.dropped += 1
            session.dropped_here += 1

    def _pump(self, session: Session) -> None:
        while (
            not session.stalled
            and session.link is not None
            and session.queue
            and len(session.flying) < self._window(session, session.link)
        ):
            flying = session.queue.popleft()
            if flying.qos == 0:
                self._send(session, 0, flying)
                continue
            packet_id = session.take_id()
            session.flying[packet_id] = flying
            self._send(session, packet_id, flying)

    def _window(self, session: Session, link: Link) -> int:
        if self.rules.forgets_members and link.subscribes < 2:
            return 0
        return 1 if self.rules.slow_start and not link.acknowledged else session.window

    def _send(self, session: Session, packet_id: int, flying: Flying, *, dup: bool = False) -> None:
        assert session.link is not None
        if flying.received:
            session.link.send(packets.pubrel(packet_id))
            return
        message = flying.message
        session.link.send(
            packets.publish(
                message.topic, message.payload, qos=flying.qos, packet_id=packet_id, retain=flying.retain, dup=dup,
                properties=message.properties if session.link.v5 else None,
            )
        )  # fmt: skip

    def answered(self, session: Session, kind: Type, packet_id: int) -> None:
        flying = session.flying.get(packet_id)
        assert flying is not None, f"{session.client_id} sent {kind.name} for id {packet_id}, which is not under way"
        if kind is not Type.PUBCOMP:
            session.acknowledged.append(packet_id)
            if self.trap is not None:
                left, function = self.trap
                self.trap = (left - 1, function) if left > 1 else None
                if left <= 1:
                    function()
        if kind is Type.PUBREC:
            assert flying.qos == 2
            session.flying[packet_id] = replace(flying, received=True)
            assert session.link is not None
            session.link.send(packets.pubrel(packet_id))
            return
        assert flying.qos == (1 if kind is Type.PUBACK else 2), f"{kind.name} for a message of QoS {flying.qos}"
        del session.flying[packet_id]
        self._pump(session)

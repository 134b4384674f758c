"""EMQX 5.8's REST API, answering from the scripted broker's real state.

Paths, field names, codes and the order of checks are those of ``emqx_dashboard`` and of ``emqx_mgmt_api_clients``,
``_nodes``, ``_configs``, ``_metrics``, ``_stats``, ``_subscriptions`` and ``_banned``. EMQX refreshes a
client's figures up to 15 s late (its ``idle_timeout``); this one tells them as they are.
"""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, Self

from aiohttp import web

from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Node, Session

MAX_LIMIT = 10_000
FIELDS = frozenset(
    """awaiting_rel_cnt awaiting_rel_max clean_start clientid connected connected_at created_at disconnected_at
    expiry_interval heap_size inflight_cnt inflight_max ip_address is_bridge is_expired keepalive mailbox_len
    mqueue_dropped mqueue_len mqueue_max node port proto_name proto_ver recv_cnt recv_msg recv_msg.dropped
    recv_msg.dropped.await_pubrel_timeout recv_msg.qos0 recv_msg.qos1 recv_msg.qos2 recv_oct recv_pkt reductions
    send_cnt send_msg send_msg.dropped send_msg.dropped.expired send_msg.dropped.queue_full send_msg.dropped.too_large
    send_msg.qos0 send_msg.qos1 send_msg.qos2 send_oct send_pkt subscriptions_cnt subscriptions_max username mountpoint
    durable client_attrs""".split()  # noqa: SIM905 - fifty names in five lines
)

Fault = Literal[
    "",
    "error",  # 500, as when a node of the cluster does not answer
    "deaf",  # to the query: whatever stands in front leaves it out
    "deep",  # JSON in JSON in JSON
    "html",  # 200 with a page: a proxy's, or another service's
    "hang",  # no answer
    "shape",  # JSON of another shape
]


class EmqxRest:
    """Listens on 127.0.0.1 while its ``async with`` block runs, in the broker's event loop.

    ``version``: of EMQX. 5.0 looks at the last of several client ids alone and does not know ``fields``; 4.4 has
    another API altogether. ``keys``: API keys with secret and role, as in ``api_key.bootstrap_file``.
    """

    def __init__(
        self,
        broker: ScriptedBroker,
        *,
        version: Literal["5.8.9", "5.0.3", "4.4.19"] = "5.8.9",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.broker = broker
        self.version = version
        self.keys: dict[str, tuple[str, str]] = {"key": ("secret", "viewer")}
        self.requests: list[str] = []  # paths with their queries
        self.fault: Fault = ""
        self.unknown_fields = frozenset[str]()  # names this version does not know yet
        self.port = 0
        self._tls = tls
        self._released = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Open the port, the same one as before."""
        application = web.Application(middlewares=[self._guard])
        for path, handler in {
            "/api/v5/clients": self._clients,
            "/api/v5/clients/{clientid}": self._client,
            "/api/v5/nodes": self._nodes,
            "/api/v5/configs/global_zone": self._zone,
            "/api/v5/metrics": self._metrics,
            "/api/v5/banned": self._banned,
            "/api/v5/stats": self._stats,
            "/api/v5/subscriptions": self._all_subscriptions,
        }.items():
            application.router.add_get(path, handler)
        self._released.clear()
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port, as a dashboard listener that is switched off."""
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- before every answer ---

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        if self.fault == "hang":
            await self._released.wait()
        if self.fault == "deep":
            return web.Response(text="[" * 100_000 + "]" * 100_000, content_type="application/json")
        if self.fault == "html":
            return web.Response(text="<html>welcome</html>", content_type="text/html")
        if self.version.startswith("4."):
            if request.path.startswith("/api/v4/"):
                return web.Response(status=401, text="UNAUTHORIZED", headers={"WWW-Authenticate": "Basic"})
            return web.Response(status=404)
        if not request.path.startswith("/api/v5/"):
            return _error(404, "NOT_FOUND", "Request Path Not Found")
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if self.fault == "error":
            return _error(500, "NODE_DOWN", "bad rpc call")
        if self.fault == "shape":
            return web.json_response({"data": "none"})
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _error(404, "NOT_FOUND", "Request Path Not Found")

    def _refusal(self, request: web.Request) -> web.Response | None:
        kind, _, shown = request.headers.get("Authorization", "").partition(" ")
        if kind != "Basic":
            return _error(401, "AUTHORIZATION_HEADER_ERROR", "Support authorization: basic/bearer")
        key, _, secret = base64.b64decode(shown).decode().partition(":")
        if key not in self.keys or self.keys[key][0] != secret:
            return _error(401, "BAD_API_KEY_OR_SECRET", "Check api_key/api_secret")
        if self.keys[key][1] == "publisher":  # a role that may publish and do nothing else
            return _error(403, "UNAUTHORIZED_ROLE", "This API Key don't have permission to access this resource")
        return None

    # --- answers ---

    async def _clients(self, request: web.Request) -> web.Response:
        sessions = list(self.broker.sessions.values())
        wanted = request.query.getall("clientid", [])
        if wanted and self.fault != "deaf":
            wanted = wanted[-1:] if self.version.startswith("5.0") else wanted
            sessions = [session for session in sessions if session.client_id in wanted]
        if like := request.query.get("like_clientid"):
            sessions = [session for session in sessions if like in session.client_id]
        limit, page = int(request.query.get("limit", "100")), int(request.query.get("page", "1"))
        if not 1 <= limit <= MAX_LIMIT or page < 1:
            return _error(400, "BAD_REQUEST", "page_limit_invalid")
        rows = [self._row(session) for session in sessions]
        fields = request.query.get("fields", "all")
        if fields != "all" and not self.version.startswith("5.0"):
            names = fields.split(",")
            if unknown := set(names) - (FIELDS - self.unknown_fields):
                return _error(400, "BAD_REQUEST", f"not_a_enum_symbol {sorted(unknown)}")
            rows = [{name: row[name] for name in names if name in row} for row in rows]
        return _page(request, rows, tells_of_next=not self.version.startswith("5.0"))

    def _row(self, session: Session) -> dict[str, object]:
        """A client as ``format_channel_info`` makes it, those of its fields that have a meaning here."""
        row = {
            "clientid": session.client_id, "username": session.username, "node": session.node.name,
            "ip_address": "127.0.0.1", "connected": session.link is not None,
            "created_at": _rfc3339(session.created_ms), "connected_at": _rfc3339(session.connected_ms),
            "expiry_interval": session.expiry, "clean_start": session.expiry == 0, "is_expired": False,
            "proto_name": "MQTT", "proto_ver": 5 if session.link is None or session.link.v5 else 4,
            "inflight_cnt": len(session.flying), "inflight_max": session.window, "mqueue_len": len(session.queue),
            "mqueue_max": self.broker.rules.queue, "mqueue_dropped": session.dropped,
            "awaiting_rel_cnt": len(session.incoming), "awaiting_rel_max": 100, "mailbox_len": len(session.mailbox),
            "subscriptions_cnt": len(session.filters), "subscriptions_max": "infinity",
            "send_msg.dropped": session.dropped_here, "send_msg.dropped.queue_full": session.dropped_here,
            "send_msg.dropped.expired": 0, "send_msg.dropped.too_large": 0,
            "send_msg.qos2": sum(one.qos == 2 for one in session.flying.values()),
        }  # fmt: skip
        if session.link is None:
            row["disconnected_at"] = _rfc3339(session.disconnected_ms)
        return row

    async def _client(self, request: web.Request) -> web.Response:
        session = self.broker.sessions.get(request.match_info["clientid"])
        if session is None:
            return _error(404, "CLIENTID_NOT_FOUND", "Client ID not found")
        return web.json_response(self._row(session))

    async def _all_subscriptions(self, request: web.Request) -> web.Response:
        """Those of sessions on nodes that run: each node lists its own."""
        return _page(request, [row for session in self.broker.sessions.values() for row in _subscribed(session)])

    async def _nodes(self, _request: web.Request) -> web.Response:
        return web.json_response([self._node(node) for node in self.broker.nodes])

    def _node(self, node: Node) -> dict[str, object]:
        """One that is stopped has a name and a status, and no more."""
        if not node.running:
            return {"node": node.name, "node_status": "stopped", "role": "core"}
        return {
            "node": node.name, "node_status": "running", "version": self.version, "edition": "Opensource",
            "role": "core", "uptime": 3_600_000,
            "connections": sum(session.node is node for session in self.broker.sessions.values()),
            "live_connections": sum(link.node is node for link in self.broker.links),
            "otp_release": "26.2.5.2-1/14.2.5.2",
        }  # fmt: skip

    async def _stats(self, _request: web.Request) -> web.Response:
        """With ``aggregate=true``. Shared subscriptions are in a table that every node has whole, the dead with it."""
        sessions = self.broker.sessions.values()
        counts = {
            "sessions.count": len(sessions),
            "live_connections.count": len(self.broker.links),
            "subscriptions.count": sum(len(session.filters) for session in sessions),
            "subscriptions.shared.count": sum(len(members) for members in self.broker.groups.values()),
        }
        return web.json_response(counts)

    async def _zone(self, _request: web.Request) -> web.Response:
        rules = self.broker.rules
        mqtt = {
            "max_inflight": rules.max_inflight, "max_mqueue_len": rules.queue, "mqueue_store_qos0": True,
            "max_awaiting_rel": 100, "await_rel_timeout": "300s", "retry_interval": "infinity",
            "session_expiry_interval": "2h", "max_packet_size": "1MB", "shared_subscription": rules.shared,
            "shared_subscription_strategy": rules.strategy, "idle_timeout": "15s",
        }  # fmt: skip
        shutdown = {"enable": True, "max_heap_size": "32MB", "max_mailbox_size": rules.max_mailbox or "infinity"}
        zone = {
            "mqtt": mqtt,
            "force_shutdown": shutdown,
            "flapping_detect": {"enable": False, "window_time": "1m", "max_count": 15, "ban_time": "5m"},
            "durable_sessions": {"enable": False},
        }
        return web.json_response(zone)

    async def _metrics(self, request: web.Request) -> web.Response:
        broker = self.broker
        counts = {
            "messages.received": broker.published,
            "messages.dropped.no_subscribers": len(broker.unrouted),
            "delivery.dropped.queue_full": len(broker.dropped),
            "delivery.dropped": len(broker.dropped),
            "packets.publish.dropped": 0,
        }
        aggregated = request.query.get("aggregate") == "true"
        return web.json_response(counts if aggregated else [{"node": broker.nodes[0].name, **counts}])

    async def _banned(self, request: web.Request) -> web.Response:
        return _page(request, self.broker.bans)


def _page(request: web.Request, rows: Sequence[object], *, tells_of_next: bool = True) -> web.Response:
    limit, page = int(request.query.get("limit", "100")), int(request.query.get("page", "1"))
    meta = {"count": len(rows), "limit": limit, "page": page}
    if tells_of_next:
        meta["hasnext"] = len(rows) > page * limit
    return web.json_response({"data": rows[(page - 1) * limit : page * limit], "meta": meta})


def _subscribed(session: Session) -> list[dict[str, object]]:
    return [
        {
            "topic": text, "clientid": session.client_id, "node": session.node.name, "qos": options & 3,
            "nl": options >> 2 & 1, "rap": options >> 3 & 1, "rh": options >> 4 & 3, "durable": False,
        }
        for text, options in session.filters.items()
    ]  # fmt: skip


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)


def _rfc3339(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")

"""A client of EMQX 5's REST API that only reads, so the role ``viewer`` suffices.

Each request has a connection of its own: requests are seconds apart, and TLS files and the key's secret may change in
between. The first request imports aiohttp, in a thread.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from bridge.fresh_secret import fresh
from config.errors import ExitStatus, GatewayError
from gateway.health.emqx.model import FIELDS, Ban, EmqxClient, EmqxNode, EmqxZone, number, text

if TYPE_CHECKING:
    from auth.jwt.fetching import Answer
    from config.settings import EmqxSettings
    from gateway.base.lookout_metrics import Trouble

T = TypeVar("T")

_BASE: Final = "/api/v5"
_LARGEST: Final = 4 << 20  # 1,000 clients of all fields are 2 MB
_PAGE: Final = 1000
_MAX_PAGES: Final = 100
_MAX_ROWS: Final = _PAGE * _MAX_PAGES
_ROWS_PER_CLIENT: Final = 4  # a session that moves is in the list of each node
_QUERY_BYTES: Final = 4000  # EMQX's HTTP server refuses request lines of more than 8,000
_SHARED: Final = ("$share/", "$queue/")
_NO_CLIENT: Final = frozenset({"CLIENTID_NOT_FOUND", "RESOURCE_NOT_FOUND"})  # the second in the first 5.0
_STARTS_OF_4: Final = ("/api/v4/brokers", "/api/v4/nodes")


class EmqxApiError(GatewayError):
    """EMQX's REST API gave no usable answer. The sentence holds nothing secret."""

    exit_status = ExitStatus.UNAVAILABLE

    def __init__(self, sentence: str, trouble: Trouble) -> None:
        super().__init__(sentence)
        self.trouble = trouble


class EmqxRefusedError(EmqxApiError):
    exit_status = ExitStatus.REFUSED


class EmqxApi:
    """Asks EMQX at ``emqx.url``, which must be set. Every method raises EmqxApiError, or ConfigError for files of
    ``emqx.tls``; none retries. Belongs to one event loop; needs no closing."""

    def __init__(self, settings: EmqxSettings) -> None:
        assert settings.url is not None, "emqx.url is not set"
        self._url = settings.url.rstrip("/")
        self._settings = settings
        self._names_fields = True  # until EMQX refuses a name among FIELDS

    async def clients(self, client_ids: Iterable[str]) -> dict[str, EmqxClient]:
        """The sessions of these client ids that EMQX has. One request for some 50 ids, and one for each id that is not
        in the answer: before 5.7 EMQX took only the last of several ids."""
        wanted = list(dict.fromkeys(client_ids))
        found: dict[str, EmqxClient] = {}
        for some in _chunks(wanted):
            query = [("clientid", one) for one in some]
            for values in await self._pages("/clients", query, FIELDS, most=_ROWS_PER_CLIENT * len(some)):
                client = self._parsed(EmqxClient.parse, values, "/clients")
                if client.client_id in some:
                    _keep(found, client)
        for client_id in wanted:
            if client_id not in found and (one := await self.client(client_id)) is not None:
                found[client_id] = one
        return found

    async def client(self, client_id: str) -> EmqxClient | None:
        """The session of one client id; None if EMQX has none."""
        answer = await self._ask(f"/clients/{quote(client_id, safe='')}")
        if answer.status == 404 and _code(answer) in _NO_CLIENT:
            return None
        return self._parsed(EmqxClient.parse, await self._document(answer, "/clients", dict), "/clients")

    async def clients_like(self, part: str) -> list[EmqxClient]:
        """The sessions with ``part`` somewhere in their client id."""
        rows = await self._pages("/clients", [("like_clientid", part)], FIELDS)
        return [self._parsed(EmqxClient.parse, values, "/clients") for values in rows]

    async def nodes(self) -> list[EmqxNode]:
        rows = await self._document(await self._ask("/nodes"), "/nodes", list)
        return [self._parsed(EmqxNode.parse, row, "/nodes") for row in rows]

    async def shared_members(self) -> int:
        """The number of members of all shared subscriptions in the cluster's table, dead sessions included."""
        document = await self._document(await self._ask("/stats", [("aggregate", "true")]), "/stats", dict)
        return number(document, "subscriptions.shared.count")

    async def shared_subscriptions(self) -> int | None:
        """The number of shared subscriptions of live sessions on the running nodes; None when there are too many to
        count. Durable sessions are in no such table."""
        rows = await self._subscriptions()
        if rows is None:
            return None
        return sum(text(row, "topic").startswith(_SHARED) and row.get("durable") is not True for row in rows)

    async def subscriptions(self) -> list[tuple[str, str]] | None:
        """Client id and filter of each subscription, of shared ones without the group; None when there are too many."""
        rows = await self._subscriptions()
        return None if rows is None else [(text(row, "clientid"), _plain(text(row, "topic"))) for row in rows]

    async def _subscriptions(self) -> list[Mapping[str, Any]] | None:
        """All rows of EMQX's list of subscriptions; None when there are too many."""
        found: list[Mapping[str, Any]] = []
        for page in range(1, _MAX_PAGES + 1):
            answer = await self._ask("/subscriptions", [("limit", str(_PAGE)), ("page", str(page))])
            document = await self._document(answer, "/subscriptions", dict)
            rows = document.get("data")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise self._strange("/subscriptions", "no list of data")
            found += [{name: row.get(name) for name in ("topic", "clientid", "durable")} for row in rows]
            if not rows or not _has_more(document.get("meta"), len(found)):
                return found
        return None

    async def zone(self) -> EmqxZone:
        """The global zone: windows, queues and expiry of sessions."""
        path = "/configs/global_zone"
        return self._parsed(EmqxZone.parse, await self._document(await self._ask(path), path, dict), path)

    async def bans(self) -> list[Ban]:
        return [self._parsed(Ban.parse, row, "/banned") for row in await self._pages("/banned", [])]

    async def metrics(self) -> dict[str, int]:
        """The cluster's counters by EMQX's own names, such as ``messages.dropped.no_subscribers``. A node's restart
        resets its part."""
        document = await self._document(await self._ask("/metrics", [("aggregate", "true")]), "/metrics", dict)
        return {name: number(document, name) for name in document}

    # --- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, path: str, query: Sequence[tuple[str, str]] = ()) -> Answer:
        """EMQX's answer to GET, whatever its status. Raises EmqxApiError without one."""
        from auth.jwt.fetching import Fetcher, FetchError

        settings = self._settings
        fetcher = Fetcher(
            f"{self._url}{path if path.startswith('/api/') else _BASE + path}{'?' if query else ''}{urlencode(query)}",
            "emqx.url",
            tls=settings.tls,
            tls_setting="emqx.tls",
            timeout_s=settings.timeout.total_seconds(),
            largest=_LARGEST,
        )
        secret = fresh(settings.api_secret, "emqx.api_secret") if settings.api_secret is not None else ""
        shown = base64.b64encode(f"{settings.api_key or ''}:{secret}".encode()).decode()
        try:
            return await fetcher.get({"Authorization": f"Basic {shown}"})
        except FetchError as error:
            raise EmqxApiError(str(error), "unreachable") from error

    async def _pages(
        self, path: str, query: Sequence[tuple[str, str]], fields: Sequence[str] = (), *, most: int = _MAX_ROWS
    ) -> list[dict[str, Any]]:
        """The rows of a list, read page by page. More than ``most`` are an error: a proxy that removes the query would
        make EMQX list a million clients."""
        limit = min(_PAGE, most + 1)
        rows: list[dict[str, Any]] = []
        for page in range(1, _MAX_PAGES + 1):
            shown = [*query, ("limit", str(limit)), ("page", str(page))]
            named = [("fields", ",".join(fields))] if fields and self._names_fields else []
            answer = await self._ask(path, shown + named)
            if answer.status == 400 and named:
                self._names_fields = False  # EMQX then lists all fields, as before 5.7
                answer = await self._ask(path, shown)
            document = await self._document(answer, path, dict)
            data, meta = document.get("data"), document.get("meta")
            if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
                raise self._strange(path, "no list of data")
            rows += data
            if len(rows) > most:
                raise self._strange(path, f"more than {most} rows, as if the query were missing")
            if not data or not _has_more(meta, len(rows)):
                return rows
        raise self._strange(path, f"more than {_MAX_PAGES} pages")

    async def _document(self, answer: Answer, path: str, kind: type) -> Any:
        """The JSON of a good answer: an object or a list."""
        if answer.status != 200:
            raise await self._failure(answer, path)
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):  # UnicodeDecodeError among them
            raise EmqxApiError(
                f"The answer of {self._where} to {_BASE}{path} is no JSON. Is this EMQX's dashboard port "
                "(18083), or another service's?",
                "not_emqx",
            ) from None
        if not isinstance(document, kind):
            raise self._strange(path, f"no {'object' if kind is dict else 'list'}")
        return document

    def _parsed(self, parse: Callable[[Mapping[str, Any]], T], values: object, path: str) -> T:
        """``values`` as ``parse`` reads them. Raises EmqxApiError when it cannot."""
        if not isinstance(values, dict):
            raise self._strange(path, "no object")
        try:
            return parse(values)
        except ValueError as error:
            raise self._strange(path, str(error)) from None

    @property
    def _where(self) -> str:
        return f"emqx.url: {self._url}"

    def _strange(self, path: str, what: str) -> EmqxApiError:
        return EmqxApiError(
            f"{self._where} does not answer as EMQX 5 does ({path}: {what}). Is it EMQX's own REST API?", "answer"
        )

    async def _failure(self, answer: Answer, path: str) -> EmqxApiError:
        """The error for an answer that is not 200."""
        code, status = _code(answer), answer.status
        if status == 401 and code:
            return EmqxRefusedError(
                f"EMQX at {self._where} refuses the key {self._settings.api_key!r} ({code}). Check emqx.api_key and "
                "emqx.api_secret, and in its dashboard (System, API Key) that the key is enabled and has not expired.",
                "refused",
            )
        if status == 403 and code:
            return EmqxRefusedError(
                f"EMQX at {self._where} does not let the key {self._settings.api_key!r} read {path} ({code}). Give it "
                "the role viewer.",
                "forbidden",
            )
        if status >= 500 and code:
            return EmqxApiError(f"EMQX at {self._where} failed on {path} ({status} {code}).", "answer")
        if code and code != "NOT_FOUND":
            return EmqxApiError(f"EMQX at {self._where} answers {path} with {status} {code}.", "answer")
        if await self._is_emqx_4():
            return EmqxApiError(
                f"{self._where} is an EMQX 4, which has another REST API (/api/v4). The gateway needs EMQX 5 or later: "
                "remove emqx.url.",
                "emqx_4",
            )
        return EmqxApiError(
            f"{self._where} answers {_BASE}{path} with status {status}, unlike EMQX 5. Is this EMQX's dashboard port "
            "(18083), or the port of MQTT or another service?",
            "not_emqx",
        )

    async def _is_emqx_4(self) -> bool:
        """Whether it answers the paths of EMQX 4's API as that does."""
        for path in _STARTS_OF_4:
            try:
                answer = await self._ask(path)
            except EmqxApiError:
                return False
            if answer.status == 401 and answer.body.strip() == b"UNAUTHORIZED":
                return True
            if answer.status == 200 and b'"code":0' in answer.body.replace(b" ", b""):
                return True
        return False


def _code(answer: Answer) -> str:
    """EMQX's code of an error; empty without one."""
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return ""
    code = document.get("code") if isinstance(document, dict) else None
    return code if isinstance(code, str) and len(code) <= 64 and code.replace("_", "").isalnum() else ""


def _has_more(meta: object, so_far: int) -> bool:
    """Whether the list has more rows. EMQX says so; before 5.0.8 it says how many there are."""
    if not isinstance(meta, dict):
        return False
    if isinstance(more := meta.get("hasnext"), bool):
        return more
    return number(meta, "count") > so_far


def _keep(found: dict[str, EmqxClient], client: EmqxClient) -> None:
    """Keep one row for each session. While it moves, two nodes list it: the connected or newer row is right."""
    other = found.get(client.client_id)
    if other is None or (client.connected, client.connection_ms) >= (other.connected, other.connection_ms):
        found[client.client_id] = client


def _chunks(client_ids: Sequence[str]) -> Iterator[list[str]]:
    """Client ids in groups that fit a request line."""
    some: list[str] = []
    size = 0
    for client_id in client_ids:
        more = len(quote(client_id, safe="")) + len("clientid=&")
        if some and size + more > _QUERY_BYTES:
            yield some
            some, size = [], 0
        some.append(client_id)
        size += more
    if some:
        yield some


def _plain(filter_: str) -> str:
    """A filter without the beginning of a shared subscription."""
    if filter_.startswith("$share/"):
        return filter_.split("/", 2)[-1]
    return filter_.removeprefix("$queue/")

"""A client of EMQX 5's REST API, for looking alone: it changes nothing there, so the role ``viewer`` suffices.

Each question is a connection of its own: there is one in seconds, and TLS files and the key's secret may have changed
by the next. aiohttp is imported by the first question, in a thread.
"""

from __future__ import annotations

__all__ = ["EmqxApi", "EmqxApiError", "EmqxRefusedError", "Trouble"]

import base64
import json
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode

from bridge.fresh_secret import fresh
from config.errors import ExitStatus, GatewayError
from gateway.health.emqx.model import FIELDS, Ban, EmqxClient, EmqxNode, EmqxSubscription, EmqxZone, number, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from auth.jwt.fetching import Answer
    from config.settings import EmqxSettings

T = TypeVar("T")

_BASE: Final = "/api/v5"
_LARGEST: Final = 4 << 20  # 1,000 clients of all fields are 2 MB
_PAGE: Final = 1000
_MAX_PAGES: Final = 100
_MAX_ROWS: Final = _PAGE * _MAX_PAGES
_ROWS_PER_CLIENT: Final = 4  # a session that moves stands in the list of each node
_QUERY_BYTES: Final = 4000  # EMQX's HTTP server refuses request lines of more than 8,000
_SHARED: Final = ("$share/", "$queue/")
_NO_CLIENT: Final = frozenset({"CLIENTID_NOT_FOUND", "RESOURCE_NOT_FOUND"})  # the second in the first 5.0
_STARTS_OF_4: Final = ("/api/v4/brokers", "/api/v4/nodes")

Trouble = Literal[
    "unreachable",  # no such host, connection refused, no TLS, no answer in time
    "refused",  # the key is wrong, expired or switched off
    "forbidden",  # the key's role or scope does not allow this
    "not_emqx",  # whatever answers there is no EMQX
    "emqx_4",  # EMQX, but of a version with another API
    "answer",  # EMQX answers, and not as its documentation says
]


class EmqxApiError(GatewayError):
    """EMQX's REST API could not be asked, or its answer is none. The sentence holds nothing secret."""

    exit_status = ExitStatus.UNAVAILABLE

    def __init__(self, sentence: str, trouble: Trouble) -> None:
        super().__init__(sentence)
        self.trouble = trouble


class EmqxRefusedError(EmqxApiError):
    """EMQX answered, and does not let us look."""

    exit_status = ExitStatus.REFUSED


class EmqxApi:
    """Asks EMQX at ``emqx.url``, which must be set. Every method raises EmqxApiError, and ConfigError when the files of
    ``emqx.tls`` cannot be used; none retries. Belongs to one event loop; needs no closing."""

    def __init__(self, settings: EmqxSettings) -> None:
        assert settings.url is not None, "emqx.url is not set"
        self._url = settings.url.rstrip("/")
        self._settings = settings
        self._names_fields = True  # until EMQX refuses a name among FIELDS

    async def clients(self, client_ids: Iterable[str]) -> dict[str, EmqxClient]:
        """Those of the client ids that EMQX has a session of. One question for some 50 of them, and one for each that
        is not in the answer: before 5.7 EMQX looked at the last of several ids alone."""
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
        """Those with ``part`` somewhere in their client id."""
        rows = await self._pages("/clients", [("like_clientid", part)], FIELDS)
        return [self._parsed(EmqxClient.parse, values, "/clients") for values in rows]

    async def subscriptions(self, client_id: str) -> list[EmqxSubscription] | None:
        """What a client has subscribed to; None if EMQX has no session of it."""
        answer = await self._ask(f"/clients/{quote(client_id, safe='')}/subscriptions")
        if answer.status == 404 and _code(answer) in _NO_CLIENT:
            return None
        rows = await self._document(answer, "/clients", list)
        return [self._parsed(EmqxSubscription.parse, row, "/clients") for row in rows]

    async def nodes(self) -> list[EmqxNode]:
        """The nodes of the cluster, with their versions."""
        rows = await self._document(await self._ask("/nodes"), "/nodes", list)
        return [self._parsed(EmqxNode.parse, row, "/nodes") for row in rows]

    async def shared_members(self) -> int:
        """Members of all shared subscriptions, as the cluster's table has them: also of sessions that are dead."""
        document = await self._document(await self._ask("/stats", [("aggregate", "true")]), "/stats", dict)
        return number(document, "subscriptions.shared.count")

    async def shared_subscriptions(self) -> int | None:
        """Shared subscriptions in memory that the nodes that run have, each of a session that lives; None when they
        are among too many to be gone through. A durable session's are in no such table."""
        found = seen = 0
        for page in range(1, _MAX_PAGES + 1):
            answer = await self._ask("/subscriptions", [("limit", str(_PAGE)), ("page", str(page))])
            document = await self._document(answer, "/subscriptions", dict)
            rows = document.get("data")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise self._strange("/subscriptions", "no list of data")
            found += sum(text(row, "topic").startswith(_SHARED) and row.get("durable") is not True for row in rows)
            seen += len(rows)
            if not rows or not _has_more(document.get("meta"), seen):
                return found
        return None

    async def zone(self) -> EmqxZone:
        """Windows, queues and expiry of sessions: the global zone."""
        path = "/configs/global_zone"
        return self._parsed(EmqxZone.parse, await self._document(await self._ask(path), path, dict), path)

    async def bans(self) -> list[Ban]:
        """Who is banned."""
        return [self._parsed(Ban.parse, row, "/banned") for row in await self._pages("/banned", [])]

    async def metrics(self) -> dict[str, int]:
        """The cluster's counters by EMQX's own names, such as ``messages.dropped.no_subscribers``. They begin anew when
        a node restarts."""
        document = await self._document(await self._ask("/metrics", [("aggregate", "true")]), "/metrics", dict)
        return {name: number(document, name) for name in document}

    # --- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, path: str, query: Sequence[tuple[str, str]] = ()) -> Answer:
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
        """The rows of a list that EMQX gives page by page; more than ``most`` are an error. Something between us that
        leaves the query out would have all of a million clients go through a worker's memory."""
        limit = min(_PAGE, most + 1)
        rows: list[dict[str, Any]] = []
        for page in range(1, _MAX_PAGES + 1):
            shown = [*query, ("limit", str(limit)), ("page", str(page))]
            named = [("fields", ",".join(fields))] if fields and self._names_fields else []
            answer = await self._ask(path, shown + named)
            if answer.status == 400 and named:
                self._names_fields = False  # all of them then, as before 5.7
                answer = await self._ask(path, shown)
            document = await self._document(answer, path, dict)
            data, meta = document.get("data"), document.get("meta")
            if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
                raise self._strange(path, "no list of data")
            rows += data
            if len(rows) > most:
                raise self._strange(path, f"more than {most} rows, as if it did not see what is asked for")
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
                f"{self._where} answers {_BASE}{path} with something else than JSON. Is this EMQX's dashboard port "
                "(18083), and not that of another service?",
                "not_emqx",
            ) from None
        if not isinstance(document, kind):
            raise self._strange(path, f"no {'object' if kind is dict else 'list'}")
        return document

    def _parsed(self, parse: Callable[[Mapping[str, Any]], T], values: object, path: str) -> T:
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
            return EmqxApiError(
                f"EMQX at {self._where} has trouble of its own with {path} ({status} {code}).", "answer"
            )
        if code and code != "NOT_FOUND":
            return EmqxApiError(f"EMQX at {self._where} answers {path} with {status} {code}.", "answer")
        if await self._is_emqx_4():
            return EmqxApiError(
                f"{self._where} is an EMQX 4, whose REST API is another one (/api/v4). Only EMQX 5 and later can be "
                "asked; leave emqx.url out.",
                "emqx_4",
            )
        return EmqxApiError(
            f"{self._where} answers {_BASE}{path} with status {status}, which EMQX 5 does not. Is this EMQX's "
            "dashboard port (18083), and not MQTT's or another service's?",
            "not_emqx",
        )

    async def _is_emqx_4(self) -> bool:
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
    """The code of an error as EMQX gives it; empty where there is none."""
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return ""
    code = document.get("code") if isinstance(document, dict) else None
    return code if isinstance(code, str) and len(code) <= 64 and code.replace("_", "").isalnum() else ""


def _has_more(meta: object, so_far: int) -> bool:
    """EMQX says so, or, before 5.0.8, how many there are."""
    if not isinstance(meta, dict):
        return False
    if isinstance(more := meta.get("hasnext"), bool):
        return more
    return number(meta, "count") > so_far


def _keep(found: dict[str, EmqxClient], client: EmqxClient) -> None:
    """While a session moves to another node both list it: the one that is connected, or newer, is it."""
    other = found.get(client.client_id)
    if other is None or (client.connected, client.connection_ms) >= (other.connected, other.connection_ms):
        found[client.client_id] = client


def _chunks(client_ids: Sequence[str]) -> Iterator[list[str]]:
    """As many at a time as fit a request line."""
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

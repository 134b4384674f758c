"""An identity provider for tests: a real HTTP(S) server with JSON web keys that rotate and an OAuth 2.0 token endpoint.

It runs in a thread of its own, so that a test's loop is free and processes of the gateway can use it too. Every way in
which such a server misbehaves is one value of ``token_fault`` or ``jwks_fault``.
"""

import asyncio
import base64
import contextlib
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote_plus

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from tests.servers.authority import Issued
from tests.waiting import DEADLINE_S

ES256: Literal["ES256"] = "ES256"  # the default: made and used in microseconds
_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}

Fault = Literal[
    "",
    "error",  # 500 with an HTML page
    "refused",  # 403 with an OAuth error
    "garbage",  # 200 with what is no JSON
    "list",  # 200 with JSON of another shape
    "redirect",  # 302 to `redirect_to`
    "huge",  # 200 with far more than anybody needs
    "endless",  # 200 with a body that never ends
    "held",  # no answer until `release()`
    "cut",  # the connection breaks in the middle of the body
    "empty",  # 200 with an object that lacks what is asked for
]


@dataclass
class SigningKey:
    """A key pair, and how it is published."""

    kid: str
    algorithm: str
    private: Any = field(repr=False)
    published: bool = True
    extra: dict[str, Any] = field(default_factory=dict)  # members to add or (None) leave out of its JWK

    def jwk(self) -> dict[str, Any]:
        public = self.private.public_key()
        made: dict[str, Any] = get_default_algorithms()[self.algorithm].to_jwk(public, as_dict=True)
        made |= {"kid": self.kid, "alg": self.algorithm, "use": "sig"} | self.extra
        made.pop("key_ops", None)
        return {name: value for name, value in made.items() if value is not None}


def make_key(algorithm: str = ES256, kid: str | None = None, *, bits: int = 2048, **extra: Any) -> SigningKey:
    """A new key pair. RSA takes a fifth of a second, all others no time."""
    private: Any
    if algorithm in _CURVES:
        private = ec.generate_private_key(_CURVES[algorithm]())
    elif algorithm == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
    else:
        private = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    return SigningKey(kid or secrets.token_hex(6), algorithm, private, extra=extra)


class IdentityProvider:
    """Runs while its ``with`` block does, on a free port of 127.0.0.1.

    ``clients`` maps client ids to secrets. Tokens are JWTs signed by the newest key, with ``claims`` added. Attributes
    may be changed by the test at any time. ``counts`` counts requests: ``token``, ``jwks``, ``elsewhere``.
    """

    def __init__(self, *, certificate: Issued | None = None, client_ca: Path | None = None) -> None:
        self.clients: dict[str, str] = {"gateway": "client-secret-0815"}
        self.keys: list[SigningKey] = [make_key()]
        self.claims: dict[str, Any] = {}
        self.lifetime_s = 300
        self.expires_in: object = "as lifetime_s"  # what the answer says; None leaves it out
        self.opaque = False  # tokens that are no JWT
        self.token_type = "Bearer"
        self.token_fault: Fault = ""
        self.jwks_fault: Fault = ""
        self.redirect_to = ""
        self.counts: Counter[str] = Counter()
        self.forms: list[dict[str, str]] = []  # of each token request, secrets included
        self.headers: list[Mapping[str, str]] = []  # of each token request
        self.issued: list[str] = []
        self._certificate, self._client_ca = certificate, client_ca
        self._port = 0
        self._kept: socket.socket | None = None  # bound and never listening: the port is ours while we are down
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="identity provider", daemon=True)
        self._runner: web.AppRunner | None = None

    # --- what a test does with it -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._kept = self._bound(0)
        self._port = self._kept.getsockname()[1]
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the identity provider did not stop"
        self._loop.close()
        assert self._kept is not None
        self._kept.close()

    @property
    def url(self) -> str:
        """Also the issuer (``iss``) of its tokens."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"

    def up(self) -> None:
        """Listen; after ``down`` on the same port."""
        self._run(self._listen())

    def down(self) -> None:
        """Stop listening and break every connection."""
        self._run(self._silence())

    def release(self) -> None:
        """Let requests go on that are held."""
        self._released.set()

    def rotate(self, algorithm: str = ES256, *, keep_old: bool = True, **options: Any) -> SigningKey:
        """A new key, which signs from now on. Without ``keep_old`` the others are published no more."""
        key = make_key(algorithm, **options)
        for other in self.keys:
            other.published = other.published and keep_old
        self.keys.append(key)
        return key

    def sign(
        self,
        claims: Mapping[str, Any] | None = None,
        *,
        key: SigningKey | None = None,
        lifetime_s: float | None = None,
        **headers: Any,
    ) -> str:
        """A token of this issuer. A claim or header of None is left out."""
        key = key or self.keys[-1]
        now = int(time.time())
        life = self.lifetime_s if lifetime_s is None else lifetime_s
        whole: dict[str, Any] = {"iss": self.url, "iat": now, "exp": int(now + life), **(claims or {})}
        wanted = {"kid": key.kid} | headers
        return jwt.encode(
            {name: value for name, value in whole.items() if value is not None},
            key.private,
            algorithm=key.algorithm,
            headers={name: value for name, value in wanted.items() if value is not None},
        )

    def wait_for(self, what: Callable[[], bool], why: str) -> None:
        """Block until ``what()``, asked anew after every request. Fails after DEADLINE_S."""
        with self._changed:
            assert self._changed.wait_for(what, DEADLINE_S), f"waited in vain: {why}; requests so far: {self.counts}"

    # --- the server ---------------------------------------------------------------------------------------------------

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _listen(self) -> None:
        if self._runner is not None:
            return
        app = web.Application()
        app.router.add_get("/jwks", self._jwks)
        app.router.add_post("/token", self._token)
        app.router.add_route("*", "/{rest:.*}", self._elsewhere)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, self._bound(self._port), ssl_context=self._tls()).start()

    def _bound(self, port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        return made

    async def _silence(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _tls(self) -> ssl.SSLContext | None:
        return self._certificate and self._certificate.server_context(self._client_ca)

    def _count(self, what: str) -> None:
        with self._changed:
            self.counts[what] += 1
            self._changed.notify_all()

    async def _elsewhere(self, _request: web.Request) -> web.Response:
        self._count("elsewhere")
        return web.Response(status=404)

    async def _jwks(self, request: web.Request) -> web.StreamResponse:
        self._count("jwks")
        if self.jwks_fault:
            return await self._faulty(request, self.jwks_fault)
        return web.json_response({"keys": [key.jwk() for key in self.keys if key.published]})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        self.headers.append(dict(request.headers))
        self._count("token")
        if self.token_fault:
            return await self._faulty(request, self.token_fault)
        try:
            client = self._authenticated(request, form)
        except PermissionError:
            headers = {"WWW-Authenticate": 'Basic realm="tokens"'} if "Authorization" in request.headers else {}
            return web.json_response({"error": "invalid_client"}, status=401, headers=headers)
        except ValueError:
            return web.json_response({"error": "invalid_request"}, status=400)
        if form.get("grant_type") != "client_credentials":
            return web.json_response({"error": "unsupported_grant_type"}, status=400)
        if "forbidden" in form.get("scope", "").split():
            return web.json_response(
                {"error": "invalid_scope", "error_description": "this scope is not yours"}, status=400
            )
        return self._answer(client, form)

    def _answer(self, client: str, form: Mapping[str, str]) -> web.Response:
        claims: dict[str, Any] = {"sub": client, "jti": secrets.token_hex(8), **self.claims}
        if form.get("scope"):
            claims["scope"] = form["scope"]
        if form.get("audience"):
            claims["aud"] = form["audience"]
        token = secrets.token_urlsafe(24) if self.opaque else self.sign(claims)
        self.issued.append(token)
        answer: dict[str, object] = {"access_token": token, "token_type": self.token_type}
        if self.expires_in is not None:
            answer["expires_in"] = self.lifetime_s if self.expires_in == "as lifetime_s" else self.expires_in
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    def _authenticated(self, request: web.Request, form: Mapping[str, str]) -> str:
        """The client's id. Raises PermissionError, or ValueError when it uses two ways at once (RFC 6749, 2.3)."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme and "client_secret" in form:
            raise ValueError
        if scheme.lower() == "basic":
            name, _, secret = base64.b64decode(given).decode().partition(":")
            name, secret = unquote_plus(name), unquote_plus(secret)
        elif "client_secret" in form:
            name, secret = form.get("client_id", ""), form["client_secret"]
        elif request.transport is not None and request.transport.get_extra_info("peercert"):
            return form["client_id"]
        else:
            raise PermissionError
        if self.clients.get(name) != secret:
            raise PermissionError
        return name

    async def _faulty(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        match fault:
            case "error":
                return web.Response(status=500, text="<html>boom</html>", content_type="text/html")
            case "refused":
                return web.json_response({"error": "unauthorized_client", "error_description": "not you"}, status=403)
            case "garbage":
                return web.Response(text="{no json", content_type="application/json")
            case "list":
                return web.json_response([1, 2, 3])
            case "redirect":
                return web.Response(status=302, headers={"Location": self.redirect_to})
            case "huge":
                return web.json_response({"filler": "x" * (8 << 20)})
            case "empty":
                return web.json_response({})
            case "held":
                while not self._released.is_set():  # noqa: ASYNC110 - set from another thread
                    await asyncio.sleep(0.01)
                return web.Response(status=503)
            case _:
                return await self._streamed(request, endless=fault == "endless")

    async def _streamed(self, request: web.Request, *, endless: bool) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            await answer.write(b'{"keys": [')
            while endless and not self._released.is_set():
                await answer.write(b" ")
                await asyncio.sleep(0.01)
        assert request.transport is not None or endless
        if request.transport is not None:
            request.transport.abort()
        return answer


class Clock:
    """Monotonic time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

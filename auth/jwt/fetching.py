"""One request to a server of keys or tokens, limited in time and size.

Redirects are not followed, because the settings name the trusted server. ``HTTPS_PROXY`` and ``.netrc`` are not used. A
connection serves one request: requests are minutes apart, and TLS files may change between them.
"""

import asyncio
import importlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlsplit

from auth.errors import AuthError
from bridge.tls import distrust, tls_context
from config.error_words import words
from config.errors import ExitStatus, forget_frames
from config.settings import TlsSettings

_CHUNK = 16 << 10


class FetchError(AuthError):
    """A failed request. The sentence names the setting and the address without its query, and has nothing of the
    answer."""

    exit_status = ExitStatus.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer with its whole body, not compressed."""

    status: int
    body: bytes = field(repr=False)


class Fetcher:
    """Asks one address. ``setting`` is its name ("mqtt.token.oauth.token_url"), ``tls_setting`` that of its TLS table.
    Belongs to one event loop."""

    def __init__(
        self, url: str, setting: str, *, tls: TlsSettings, tls_setting: str, timeout_s: float, largest: int
    ) -> None:
        """``setting`` and ``tls_setting`` are names in sentences, ``largest`` is the most bytes of an answer."""
        self._url = url
        self._setting = setting
        self._tls = tls
        self._tls_setting = tls_setting
        self._timeout_s = timeout_s
        self._largest = largest
        parts = urlsplit(url)
        self._shown = f"{parts.scheme}://{parts.netloc}{parts.path}"

    def __str__(self) -> str:
        return f"{self._setting}: {self._shown}"

    async def get(self, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
        """The answer to a GET. Raises FetchError, and ConfigError for unusable TLS files."""
        return await self._ask("GET", headers, None)

    async def post(self, form: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        """The answer to a POST of this form. Raises FetchError, and ConfigError for unusable TLS files."""
        return await self._ask("POST", headers, form)

    async def _ask(self, method: str, headers: Mapping[str, str], form: Mapping[str, str] | None) -> Answer:
        """The answer. Raises FetchError, whose sentence begins with the setting."""
        # The import takes 0.4 s, for which a worker's start must not wait.
        await asyncio.to_thread(importlib.import_module, "aiohttp")
        context: ssl.SSLContext | bool = True
        if self._url.lower().startswith("https://"):
            context = await asyncio.to_thread(tls_context, self._tls, self._tls_setting)
        try:
            return await self._exchange(method, headers, form, context)
        except FetchError:
            raise
        except Exception as error:
            forget_frames(error)
            if (reason := self._reason(error)) is None:
                raise
            raise FetchError(f"{self} {reason}") from None

    async def _exchange(
        self, method: str, headers: Mapping[str, str], form: Mapping[str, str] | None, context: ssl.SSLContext | bool
    ) -> Answer:
        """One request and its answer. Raises FetchError for a redirect, compression or too long a body; the library's
        errors."""
        import aiohttp

        wanted = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a few compressed kilobytes may be gigabytes
        ) as session:
            asked = session.request(method, self._url, headers=wanted, data=form, allow_redirects=False)
            async with asked as answer:
                if 300 <= answer.status < 400:
                    raise FetchError(
                        f"{self} redirects ({answer.status}), which is not followed, since the "
                        "settings alone say whom to ask. Write the address that it leads to, if that is right."
                    )
                if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise FetchError(f"{self} compresses its answer, which it was asked not to.")
                body = b""
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    body += chunk
                    if len(body) > self._largest:
                        raise FetchError(
                            f"{self} answers with more than {self._largest} bytes. Is it the right address?"
                        )
                return Answer(answer.status, body)

    def _reason(self, error: Exception) -> str | None:
        """What follows "the address …" in a sentence about ``error``; None for a defect."""
        import aiohttp

        match error:
            case TimeoutError():
                return f"has not answered within {self._timeout_s:g}s. Is it reachable from here?"
            case aiohttp.ClientConnectorCertificateError():
                return _verification(error.certificate_error, self._tls_setting)
            case aiohttp.ClientSSLError():
                said = words(error.os_error)
                return f"cannot be asked ({said}). Check {self._tls_setting}, and that the port speaks TLS."
            case aiohttp.ClientConnectorDNSError():
                return "cannot be found: its host name has no address. Is it spelled right, and does DNS work here?"
            case aiohttp.ClientConnectorError():
                return f"cannot be reached ({words(error.os_error)}). Is it running?"
            case aiohttp.ClientResponseError():
                return "broke the answer off, or it is no HTTP. Does the port speak HTTP?"
            case aiohttp.ClientError() | OSError():
                return f"broke the answer off ({words(error)}). Does the port speak HTTP?"
            case _:
                return None


def _verification(error: Exception, table: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return distrust(error, table)
    return f"shows a certificate that is not trusted ({words(error)}). Check {table}.ca_file."

"""Who may read what on the HTTP port. Pure, except that the token is read again from its file.

- ``/healthz`` and ``/readyz`` are open: probes have no secrets. Reasons are shown on a loopback port, and to clients
  who may read the rest.
- A client certificate of an authority in ``http.tls.client_ca_file``, or ``http.token``, opens everything. Where one of
  them is set, nothing else does.
- Without them a loopback port is open to this machine, and any other gives ``/metrics`` alone.

A browser on this machine runs pages of strangers, which must not read the port. With DNS rebinding, such a page points
its own name at 127.0.0.1, and sends that name as ``Host``. So an open loopback port answers only names of this machine.

A browser would send a certificate or a typed token along with requests of other origins. They are refused where the
browser names the origin (``Sec-Fetch-Site``).
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.fresh_secret import fresh
from config.values.addresses import is_loopback
from config.values.secret_files import UNGUESSABLE, VISIBLE

if TYPE_CHECKING:
    from config.settings import HttpSettings

PROBES: Final = ("/healthz", "/readyz")
_OWN_SITES: Final = ("", "same-origin", "none")  # "none": typed into the address bar


@dataclass(frozen=True, slots=True)
class Question:
    """What a request shows. ``host``, ``authorization`` and those after them are its headers, empty where it has none;
    ``certified``: TLS has verified a client certificate."""

    path: str
    host: str = ""
    authorization: str = ""
    fetch_site: str = ""
    fetch_dest: str = ""
    certified: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status`` is 200 to answer, else 401 or 403 with a ``sentence``. ``terse``: the status without reasons.
    ``tried``: a wrong token was shown."""

    status: int = 200
    sentence: str = ""
    terse: bool = False
    tried: bool = False


_ANSWER: Final = Verdict()


class Guard:
    """Decides by the settings of one port. ``host_name`` is what its ``http.host`` is called."""

    def __init__(self, settings: HttpSettings, host_name: str = "http.host") -> None:
        self._token = settings.token
        self._by_certificate = settings.tls is not None and settings.tls.client_ca_file is not None
        self._host = settings.host.lower()
        self._host_name = host_name
        self._loopback = is_loopback(settings.host)

    def judge(self, question: Question) -> Verdict:
        """Whether to answer this request. May block for one small file: the token's."""
        probe = question.path in PROBES
        if question.fetch_site not in _OWN_SITES and question.fetch_dest != "document":
            return Verdict(
                403,
                "A page of another site asks for this, which is not for it to read. Open it by its own address.",
            )
        if question.certified:
            return _ANSWER
        tried = bool(question.authorization) and self._token is not None
        if tried and self._shows_token(question.authorization):
            return _ANSWER
        if probe:
            return Verdict(terse=not self._loopback or not self._is_own(question.host), tried=tried)
        if self._token is not None or self._by_certificate:
            return self._closed(tried=tried)
        if not self._loopback:
            return _ANSWER if question.path == "/metrics" else Verdict(403, self._explain_exposed())
        if not self._is_own(question.host):
            return Verdict(403, self._explain_host())
        return _ANSWER

    def _shows_token(self, authorization: str) -> bool:
        assert self._token is not None
        wanted = fresh(self._token, "http.token", VISIBLE if self._loopback else UNGUESSABLE).encode()
        # The time that this takes tells nothing of the token but its length.
        return bool(wanted) and hmac.compare_digest(wanted, _shown(authorization))

    def _closed(self, *, tried: bool) -> Verdict:
        """The refusal for a request without a right token or certificate; ``tried``: it showed a wrong token."""
        if self._token is None:
            return Verdict(
                403,
                "This needs a client certificate of an authority in http.tls.client_ca_file; /healthz and /readyz do"
                " not.",
            )
        certificate = ", or a client certificate" if self._by_certificate else ""
        return Verdict(
            401,
            "This needs http.token, as `Authorization: Bearer …` or as the password of Basic authentication with any"
            f" user name{certificate}; /healthz and /readyz do not.",
            tried=tried,
        )

    def _explain_exposed(self) -> str:
        return (
            f"This port can be reached from other machines ({self._host_name} = {self._host}), so the status page and"
            " /status are closed. Set http.token (or http.token_file), or http.tls with http.tls.client_ca_file, to"
            " open them to those who have the token or a certificate; /metrics, /healthz and /readyz are open."
        )

    def _explain_host(self) -> str:
        return (
            "This port answers to names of this machine alone (localhost, 127.0.0.1, [::1], and"
            f" {self._host_name} = {self._host}), so that no page of a stranger reads it through a browser. Use one of"
            " them; a reverse proxy sends one as Host, or the token: set http.token."
        )

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this machine. One that is missing does: browsers always send it."""
        name = _name_of(host)
        return not host or is_loopback(name) or name == self._host


def _name_of(host: str) -> str:
    """A Host header without its port and brackets."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _shown(authorization: str) -> bytes:
    """The token in an Authorization header: Bearer's, or Basic's password (RFC 7617: after the first colon). Empty for
    anything else."""
    scheme, _, value = authorization.strip().partition(" ")
    value = value.strip()
    match scheme.lower():
        case "bearer":
            return value.encode("utf-8", "surrogateescape")
        case "basic":
            try:
                pair = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                return b""
            return pair.partition(b":")[2]
        case _:
            return b""

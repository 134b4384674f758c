"""The Maven mirror of ``GATEWAY_MAVEN_MIRROR``, and what it takes to be let in there."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gateway.local.runtime.errors import DownloadError

if TYPE_CHECKING:
    from gateway.local.runtime.jar import Jar

_PROBE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, repr=False)
class Mirror:
    """A repository in Maven's layout. ``address`` ends with a slash and holds no credentials."""

    address: str
    host: str
    username: str
    password: str
    realm: str


def find_mirror(jars: Sequence[Jar]) -> Mirror | None:
    """The mirror set in the environment, or None. User name and password may stand in its address.

    A mirror is asked for the first of ``jars``: Ivy gives a password only to the realm it is told of, and does not say
    that one was missing or wrong. Raises DownloadError for that, and for an address that is none.
    """
    text = os.environ.get("GATEWAY_MAVEN_MIRROR")
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https", "file") or not (parts.hostname or parts.scheme == "file"):
        raise DownloadError(
            "GATEWAY_MAVEN_MIRROR is no address of a Maven repository: it should begin with https://, http:// or file://."
        )
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/") + "/"
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    realm = ""
    if parts.scheme != "file" and jars:
        realm = _realm(address + _path(jars[0]), username, password)
    return Mirror(address, parts.hostname or "", username, password, realm)


def _path(jar: Jar) -> str:
    return f"{jar.organisation.replace('.', '/')}/{jar.name}/{jar.version}/{jar.file_name}"


def _realm(address: str, username: str, password: str) -> str:
    """What the mirror calls the place its password is for; empty when it wants none, or does not answer (Ivy tells)."""
    question = _head(address, None)
    if question is None:
        return ""
    if not username:
        raise DownloadError(
            "The mirror GATEWAY_MAVEN_MIRROR wants a user name and password: https://user:password@host/path."
        )
    answer = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
    if _head(address, answer) is not None:
        raise DownloadError("The mirror GATEWAY_MAVEN_MIRROR refuses the user name and password in its address.")
    found = re.search(r'realm="([^"]*)"', question, re.IGNORECASE)
    return found[1] if found else ""


def _head(address: str, authorization: str | None) -> str | None:
    """The ``WWW-Authenticate`` header of a refusal; None for every other outcome."""
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310 - the scheme was checked
    if authorization is not None:
        request.add_header("Authorization", authorization)
    with contextlib.suppress(OSError, http.client.HTTPException):
        try:
            urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()  # noqa: S310 - the scheme was checked
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.UNAUTHORIZED:
                    return str(error.headers.get("WWW-Authenticate", ""))
    return None

"""Relations between the settings of the HTTP port."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

import re
from typing import TYPE_CHECKING, Final

from config.relations.rules import Rule, View
from config.values.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH: Final = 16  # of letters and digits at random: 80 bits and more
_VISIBLE: Final = re.compile(r"[!-~]+")


def _token(view: View) -> str:
    token = view.settings.http.token
    return "" if token is None else token.get_secret_value()


def _token_text(view: View) -> Iterator[str]:
    if view.settings.http.token is not None and not _VISIBLE.fullmatch(_token(view)):
        yield (
            f"{view.say('http', 'token')} is empty, or has characters other than visible ASCII: nobody could send it in"
            " a header, and the port would stay closed; take letters and digits, or remove it."
        )


def _token_guessable(view: View) -> Iterator[str]:
    if not is_loopback(view.settings.http.host) and 0 < len(_token(view)) < _LENGTH:
        yield (
            f"{view.say('http', 'token')} has fewer than {_LENGTH} characters, but {view.say('http', 'host')} can be"
            " reached from other machines: it could be found by trying; take a longer one, made at random."
        )


REFUSED = (
    Rule(("http.token",), _token_text),
    Rule(("http.token", "http.host"), _token_guessable),
)


def _token_readable(view: View) -> Iterator[str]:
    http = view.settings.http
    if http.token is not None and http.tls is None and not is_loopback(http.host):
        yield (
            f"{view.say('http', 'token')} is sent readable to everybody on the way, since {view.say('http', 'host')}"
            " can be reached from other machines and there is no http.tls; add an [http.tls] table, unless only"
            " Prometheus and operators are on that network, or TLS ends in front of the gateway."
        )


def _token_short(view: View) -> Iterator[str]:
    if is_loopback(view.settings.http.host) and 0 < len(_token(view)) < _LENGTH:
        yield (
            f"{view.say('http', 'token')} has fewer than {_LENGTH} characters: it can be found by trying; take a longer"
            " one, made at random."
        )


WARNED = (
    Rule(("http.token", "http.host", "http.tls"), _token_readable),
    Rule(("http.token", "http.host"), _token_short),
)

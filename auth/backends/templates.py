"""Texts of settings with ``${username}`` and its like, and what a login puts there."""

from __future__ import annotations

__all__ = ["LoginTemplate", "usable"]

from typing import TYPE_CHECKING, Final

from auth.wording import NAME_MAX
from config.errors import ConfigError
from config.values.auth_placeholders import quoted_placeholder, split_placeholders

if TYPE_CHECKING:
    from auth.model import LoginRequest
    from config.values.auth_placeholders import Placeholder


class LoginTemplate:
    """``literals`` with ``names`` between them: one literal more than names."""

    __slots__ = ("literals", "names")

    def __init__(self, text: str, setting: str, *, sql: bool = False) -> None:
        """``setting`` names where the text was written ("auth.redis.key"). Raises ConfigError for a placeholder that
        there is none of, for a text without any, and, in SQL, for one within quotes."""
        try:
            self.literals, self.names = split_placeholders(text)
            quoted = quoted_placeholder(text) if sql else None
        except ValueError as error:
            raise ConfigError(f"{setting}: {error}.") from None
        if not self.names:
            raise ConfigError(
                f"{setting} has no placeholder such as ${{username}}: all devices would be the same user to it."
            )
        if quoted is not None:
            raise ConfigError(
                f"{setting} has ${{{quoted}}} within quotes, where it would be text and not the value: a placeholder "
                "becomes a parameter and takes no quotes; remove them."
            )

    def values(self, request: LoginRequest) -> tuple[str, ...]:
        """The value of each placeholder, in the order of the text."""
        return tuple(_value(request, name) for name in self.names)

    def user(self, request: LoginRequest) -> str:
        """By what the user is found: the first value that is not empty, a user name before others."""
        names: Final = sorted(set(self.names), key=_BY_RANK.index)
        return next((value for name in names if (value := _value(request, name))), "")

    def filled(self, values: tuple[str, ...]) -> str:
        """The text with these values between its literals."""
        pieces = [self.literals[0]]
        for value, literal in zip(values, self.literals[1:], strict=True):
            pieces += (value, literal)
        return "".join(pieces)


_BY_RANK: Final[tuple[Placeholder, ...]] = ("username", "clientid", "cert_common_name", "peerhost")


def _value(request: LoginRequest, name: Placeholder) -> str:
    match name:
        case "username":
            return request.username
        case "clientid":
            return request.clientid
        case "cert_common_name":
            return request.cert_common_name
        case "peerhost":
            return request.peerhost


def usable(values: tuple[str, ...]) -> bool:
    """Whether users may be looked up by these: UTF-8, since JSON can spell half a surrogate pair, which no server
    stores; and none longer than ``auth.wording.NAME_MAX``."""
    try:
        for value in values:
            value.encode()
    except UnicodeEncodeError:
        return False
    return all(len(value) <= NAME_MAX for value in values)

"""Texts of settings with placeholders such as ``${username}``, filled from a login."""

from typing import Final

from auth.model import LoginRequest
from auth.names import NAME_MAX
from config.values.auth_placeholders import Placeholder, split_placeholders, tells_apart


class LoginTemplate:
    """``literals`` with ``names`` between them: one literal more than names."""

    __slots__ = ("literals", "names")

    def __init__(self, text: str) -> None:
        self.literals, self.names = split_placeholders(text)

    def values(self, request: LoginRequest) -> tuple[str, ...]:
        """The value of each placeholder, in the order of the text."""
        return tuple(_value(request, name) for name in self.names)

    def user(self, request: LoginRequest) -> str:
        """The name of the user: the first value that is not empty, a user name before others."""
        names: Final = sorted(set(self.names), key=_BY_RANK.index)
        return next((value for name in names if (value := _value(request, name))), "")

    def concerns(self, request: LoginRequest) -> bool:
        """Whether the filled text stands for this login's names and no others."""
        values = self.values(request)
        return tells_apart(self.literals, values) and usable(values)

    def filled(self, values: tuple[str, ...]) -> str:
        """The text with these values between its literals."""
        pieces = [self.literals[0]]
        for value, literal in zip(values, self.literals[1:], strict=True):
            pieces += (value, literal)
        return "".join(pieces)


_BY_RANK: Final[tuple[Placeholder, ...]] = ("username", "clientid", "cert_common_name", "peerhost")


def _value(request: LoginRequest, name: Placeholder) -> str:
    """What the login has for this placeholder; perhaps empty."""
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
    """Whether users may be looked up by these values: valid UTF-8 (JSON may have half a surrogate pair), and none
    longer than ``auth.names.NAME_MAX``."""
    try:
        for value in values:
            value.encode()
    except UnicodeEncodeError:
        return False
    return all(len(value) <= NAME_MAX for value in values)

"""EMQX's questions to ours: the bodies of its HTTP authentication and authorisation (``deploy/emqx`` makes EMQX send
them so), and the answers that it understands.

EMQX takes any status but 200 for "ask the next one", which is no refusal. So whatever cannot be read as a question is
:class:`UnreadableError` here, and the server's answer to it is a 200 that says deny.
"""

from __future__ import annotations

__all__ = ["DENY", "IGNORE", "Dialect", "UnreadableError", "split_groups"]

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import parse_qsl

from auth.model import AccessRequest, LoginRequest, Subject
from config.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from auth.model import Action

DENY: Final = b'{"result":"deny"}'
IGNORE: Final = b'{"result":"ignore"}'

_TEXT_MAX: Final = 65_535  # bytes of an MQTT string (MQTT 5.0, 1.5.4), so no more characters either
_FORM: Final = b"application/x-www-form-urlencoded"
_FORM_FIELDS_MAX: Final = 128
_NO_GROUPS: Final[frozenset[str]] = frozenset()
_NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})
_QOS: Final[Mapping[object, int]] = MappingProxyType({0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2, "": 0})
_FLAGS: Final[Mapping[object, bool]] = MappingProxyType(
    {True: True, False: False, "true": True, "false": False, "1": True, "0": False, "": False}
)


class UnreadableError(GatewayError):
    """A body that is no question of ours. Its text is one of a few sentences, none with anything from the body."""


class Dialect:
    """Reads bodies; one for a service.

    A body comes from EMQX, but what stands in its texts comes from whoever connects: lone surrogates and NUL, which
    JSON can carry and nothing behind us can store, are refused here, once for all.

    Args:
        attributes: names of the client attributes that EMQX sends back (``auth.client_attributes``), each as the field
            ``attr_NAME``.
    """

    def __init__(self, attributes: Sequence[str] = ()) -> None:
        self._attributes = tuple((f"attr_{name}", name) for name in attributes)

    def login(self, content_type: bytes, body: bytes | None) -> LoginRequest:
        """The question of ``POST /authn``. Raises UnreadableError; so it does for None, a body too large to keep."""
        given = _fields(content_type, body)
        return LoginRequest(
            _text(given, "username"),
            _text(given, "clientid"),
            _text(given, "password"),
            _text(given, "peerhost"),
            _text(given, "cert_common_name"),
            _text(given, "cert_subject"),
            _text(given, "listener"),
            _text(given, "zone"),
        )

    def access(self, content_type: bytes, body: bytes | None) -> AccessRequest:
        """The question of ``POST /authz``. Raises UnreadableError, as ``login`` does."""
        given = _fields(content_type, body)
        action = given.get("action")
        if action not in ("publish", "subscribe"):
            raise UnreadableError("action is neither publish nor subscribe")
        topic = given.get("topic")
        if not isinstance(topic, str) or not topic:  # a topic may well be called "undefined"
            raise UnreadableError("there is no topic")
        subject = Subject(
            _text(given, "username"),
            _text(given, "clientid"),
            _text(given, "peerhost"),
            _text(given, "cert_common_name"),
            _text(given, "tenant"),
            split_groups(_text(given, "groups")),
            self._attribute_values(given) if self._attributes else _NO_ATTRIBUTES,
        )
        return AccessRequest(
            subject,
            cast("Action", action),
            topic,
            _known(given, "qos", _QOS),
            retain=_known(given, "retain", _FLAGS),
        )

    def _attribute_values(self, given: dict[str, Any]) -> Mapping[str, str]:
        return {name: value for field, name in self._attributes if (value := _text(given, field))}


def split_groups(text: str) -> frozenset[str]:
    """The groups that a login's answer joined with commas (``client_attrs.groups``)."""
    if not text:
        return _NO_GROUPS
    return frozenset(text.split(",")) - {""}


def _fields(content_type: bytes, body: bytes | None) -> dict[str, Any]:
    """The body's fields. What a JSON body says of its character set is not looked at: JSON is UTF-8 (RFC 8259)."""
    if body is None:
        raise UnreadableError("the body is larger than auth.limits.request_bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise UnreadableError("the body is not UTF-8") from None
    if content_type[: len(_FORM)].lower() == _FORM:
        given, suspicious = _form(text), True
    else:
        given = _json(text)
        # A JSON text holds control characters and surrogates as escapes alone: without one there are none.
        suspicious = "\\u" in text
    if suspicious or len(body) > _TEXT_MAX:
        _check_texts(given)
    return given


def _json(text: str) -> dict[str, Any]:
    try:
        # EMQX's bodies begin with the brace and end with it: for those the decoder need not look for white space.
        given, end = _DECODER.raw_decode(text) if text.startswith("{") else (_DECODER.decode(text), len(text))
        if end != len(text) and text[end:].strip(" \t\r\n"):
            raise UnreadableError("the body is not JSON")
    except RecursionError:
        raise UnreadableError("the body is nested too deeply") from None
    except ValueError:  # JSONDecodeError is one, so is an integer of more than 4300 digits
        raise UnreadableError("the body is not JSON") from None
    if not isinstance(given, dict):
        raise UnreadableError("the body is no JSON object")
    return given


def _form(text: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_FORM_FIELDS_MAX
        )
    except ValueError:  # UnicodeDecodeError is one
        raise UnreadableError("the body is no form") from None
    return _once(cast("list[tuple[str, Any]]", pairs))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two fields of one name could be judged by the one and used by the other."""
    given = dict(pairs)
    if len(given) != len(pairs):
        raise UnreadableError("a field is there twice")
    return given


def _refuse_constant(_name: str) -> NoReturn:
    raise UnreadableError("the body is not JSON")  # NaN and Infinity, which JSON does not have


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse_constant)


def _check_texts(given: dict[str, Any]) -> None:
    for value in given.values():
        if not isinstance(value, str):
            continue
        if "\0" in value:
            raise UnreadableError("a text holds NUL")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise UnreadableError("a text holds half a surrogate pair") from None
        if size > _TEXT_MAX:
            raise UnreadableError("a text is longer than MQTT allows")


def _text(given: dict[str, Any], name: str) -> str:
    """A text, "" where there is none: EMQX writes that as "", as "undefined" or not at all."""
    value = given.get(name)
    if isinstance(value, str):
        return value if value != "undefined" else ""
    if value is None:
        return ""
    raise UnreadableError(f"{name} is no text")


def _known(given: dict[str, Any], name: str, values: Mapping[object, Any]) -> Any:
    """``qos`` and ``retain``, which come as numbers, booleans or texts, as the template has it."""
    value = given.get(name)
    if value is None or value == "undefined":
        value = ""
    try:
        return values[value]
    except (KeyError, TypeError):  # TypeError: a list or an object, which cannot be looked up
        raise UnreadableError(f"{name} is not what it can be") from None

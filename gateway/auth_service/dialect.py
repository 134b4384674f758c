"""Reads the bodies of EMQX's questions about logins and topics, in the form that ``deploy/emqx`` configures.

EMQX takes any status but 200 for "ask the next one", which is no refusal. So an unreadable body raises
:class:`UnreadableError`, and the server answers it with status 200 and deny.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast
from urllib.parse import parse_qsl

from auth.model import AccessRequest, Action, LoginRequest, Subject
from config.errors import GatewayError

DENY: Final = b'{"result":"deny"}'

_TEXT_MAX: Final = 65_535  # most bytes of an MQTT string (MQTT 5.0, 1.5.4), and so most characters
_FORM: Final = b"application/x-www-form-urlencoded"
_FORM_FIELDS_MAX: Final = 128
_NO_GROUPS: Final[frozenset[str]] = frozenset()
_NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})
_QOS: Final[Mapping[object, int]] = MappingProxyType({0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2, "": 0})
_FLAGS: Final[Mapping[object, bool]] = MappingProxyType(
    {True: True, False: False, "true": True, "false": False, "1": True, "0": False, "": False}
)


class UnreadableError(GatewayError):
    """An unreadable body. Its text is one of a few sentences, never with a part of the body."""


class Dialect:
    """Reads bodies; one for a service.

    A body comes from EMQX, but its texts come from any client. So lone surrogates and NUL, which JSON can carry and
    databases cannot store, are refused here.

    Args:
        attributes: names of the client attributes that EMQX sends back (``auth.client_attributes``), each as the field
            ``attr_NAME``.
    """

    def __init__(self, attributes: Sequence[str] = ()) -> None:
        self._attributes = tuple((f"attr_{name}", name) for name in attributes)

    def login(self, content_type: bytes, body: bytes | None) -> LoginRequest:
        """The question of ``POST /authn``. Raises UnreadableError, also for None, a body that was too large to keep."""
        given = _fields(content_type, body)
        return LoginRequest(
            _text(given, "username"),
            _text(given, "clientid"),
            _text(given, "password"),
            _text(given, "peerhost"),
            _text(given, "cert_common_name"),
        )

    def access(self, content_type: bytes, body: bytes | None) -> AccessRequest:
        """The question of ``POST /authz``. Raises UnreadableError, as ``login`` does."""
        given = _fields(content_type, body)
        action = given.get("action")
        if action not in ("publish", "subscribe"):
            raise UnreadableError("action is neither publish nor subscribe")
        topic = given.get("topic")
        if not isinstance(topic, str) or not topic:  # "undefined" is a valid topic
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
    """The groups of ``client_attrs.groups``, which a login's answer joins with commas."""
    if not text:
        return _NO_GROUPS
    return frozenset(text.split(",")) - {""}


def _fields(content_type: bytes, body: bytes | None) -> dict[str, Any]:
    """The body's fields. A character set in the content type is ignored for JSON, which is UTF-8 (RFC 8259). Raises
    UnreadableError; a body of None was too large to keep."""
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
        # JSON has control characters and surrogates only as escapes, so a text without a backslash has none.
        suspicious = "\\u" in text
    if suspicious or len(body) > _TEXT_MAX:
        _check_texts(given)
    return given


def _json(text: str) -> dict[str, Any]:
    """The object in a JSON body. Raises UnreadableError."""
    try:
        # EMQX's bodies begin and end with a brace, so the decoder need not skip white space.
        given, end = _DECODER.raw_decode(text) if text.startswith("{") else (_DECODER.decode(text), len(text))
        if end != len(text) and text[end:].strip(" \t\r\n"):
            raise UnreadableError("the body is not JSON")
    except RecursionError:
        raise UnreadableError("the body is nested too deeply") from None
    except ValueError:  # includes JSONDecodeError, and integers of more than 4300 digits
        raise UnreadableError("the body is not JSON") from None
    if not isinstance(given, dict):
        raise UnreadableError("the body is no JSON object")
    return given


def _form(text: str) -> dict[str, Any]:
    """The fields of a form's body. Raises UnreadableError."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_FORM_FIELDS_MAX
        )
    except ValueError:  # includes UnicodeDecodeError
        raise UnreadableError("the body is no form") from None
    return _once(cast("list[tuple[str, Any]]", pairs))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields as a dictionary. Refuses two of one name: one could be checked and the other used."""
    given = dict(pairs)
    if len(given) != len(pairs):
        raise UnreadableError("a field is there twice")
    return given


def _refuse_constant(_name: str) -> NoReturn:
    raise UnreadableError("the body is not JSON")  # NaN and Infinity, which JSON does not have


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse_constant)


def _check_texts(given: dict[str, Any]) -> None:
    """Raises UnreadableError for a text with NUL or half a surrogate pair, or longer than MQTT allows."""
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
    """A text, or "" if missing: EMQX then sends "", "undefined" or no field."""
    value = given.get(name)
    if isinstance(value, str):
        return value if value != "undefined" else ""
    if value is None:
        return ""
    raise UnreadableError(f"{name} is no text")


def _known(given: dict[str, Any], name: str, values: Mapping[object, Any]) -> Any:
    """The entry in ``values`` of ``qos`` or ``retain``: a number, boolean or text, depending on EMQX's template.
    Missing: 0 or False."""
    value = given.get(name)
    if value is None or value == "undefined":
        value = ""
    try:
        return values[value]
    except (KeyError, TypeError):  # TypeError: a list or an object
        raise UnreadableError(f"{name} has no known value") from None

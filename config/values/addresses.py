"""Addresses of brokers and other servers, and their parts."""

import ipaddress
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator

MqttScheme = Literal["mqtt", "mqtts", "ws", "wss"]
_DEFAULT_PORTS: dict[MqttScheme, int] = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084}
_FOREIGN_SCHEMES = {"tcp": "mqtt", "ssl": "mqtts", "tls": "mqtts", "mqtt+ssl": "mqtts", "http": "ws", "https": "wss"}

_HOST_AND_PORT = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^:\[\]/]*))(?::(?P<port>[^:]*))?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")  # RFC 9110, 5.5
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """The address of an MQTT broker. ``host`` is a name or an IP address without brackets; ``port`` is always set."""

    scheme: MqttScheme
    host: str
    port: int

    @property
    def encrypted(self) -> bool:
        return self.scheme in {"mqtts", "wss"}

    @property
    def websocket(self) -> bool:
        return self.scheme in {"ws", "wss"}

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class KafkaAddress(NamedTuple):
    """The address of a Kafka broker; ``host`` is without brackets."""

    host: str
    port: int


class LdapAddress(NamedTuple):
    """The address of a directory; ``encrypted``: TLS from the first byte. ``host`` is without brackets."""

    encrypted: bool
    host: str
    port: int


def parse_mqtt_address(text: str) -> MqttAddress:
    """The parts of ``mqtt://host[:port]``, with the scheme's default port. Raises ValueError with a sentence.

    No sentence repeats the text, which may contain a password.
    """
    scheme, found, rest = text.partition("://")
    if not found:
        raise ValueError('an address starts with its scheme, as in "mqtt://broker.example:1883"')
    lowered = scheme.lower()
    if lowered not in _DEFAULT_PORTS:
        close = _FOREIGN_SCHEMES.get(lowered) or next(iter(get_close_matches(lowered, _DEFAULT_PORTS, 1)), None)
        hint = f'; did you mean "{close}://"?' if close else ""
        raise ValueError(f"the scheme is one of mqtt, mqtts, ws and wss{hint}")
    if "@" in rest:
        raise ValueError("an address holds no user name or password; write them to mqtt.username and mqtt.password")
    rest = rest.removesuffix("/")
    if "/" in rest or "?" in rest:
        raise ValueError("an address ends with the port; write the WebSocket path to mqtt.websocket_path")
    known: MqttScheme = lowered
    host, port = _host_and_port(rest)
    return MqttAddress(known, host, _DEFAULT_PORTS[known] if port is None else port)


def parse_server_reference(text: str, base: MqttAddress) -> MqttAddress:
    """The address in a Server Reference (MQTT 5.0 section 4.11): a name, perhaps with a port.

    Scheme and a missing port are those of ``base``, the server that sent it. Raises ValueError with a sentence that
    does not repeat the text.
    """
    if "://" in text:
        return parse_mqtt_address(text)
    host, port = _host_and_port(text)
    return MqttAddress(base.scheme, host, base.port if port is None else port)


def parse_kafka_address(text: str) -> KafkaAddress:
    """The parts of ``host:port``. Raises ValueError with a sentence that does not repeat the text."""
    if "://" in text:
        raise ValueError('a Kafka address has no scheme: write "host:9092" and say TLS or SASL in kafka.security')
    if "@" in text:
        raise ValueError("an address holds no user name or password; write them to kafka.sasl")
    host, port = _host_and_port(text)
    if port is None:
        raise ValueError('a Kafka address names its port, as in "broker.example:9092"; IPv6 stands in brackets')
    return KafkaAddress(host, port)


def parse_ldap_address(text: str) -> LdapAddress:
    """The parts of ``ldap://host[:port]`` or ``ldaps://…``. Raises ValueError with a sentence that does not repeat the
    text."""
    scheme, found, rest = text.partition("://")
    if not found or scheme not in {"ldap", "ldaps"}:
        raise ValueError('an address starts with its scheme, as in "ldaps://ldap.example:636"')
    host, port = _host_and_port(rest)
    return LdapAddress(scheme == "ldaps", host, port or (636 if scheme == "ldaps" else 389))


def parse_http_url(text: str) -> str:
    """The host of ``http://host[:port]/path?query`` or ``https://…``. Raises ValueError with a sentence that does not
    repeat the text."""
    scheme, found, _ = text.partition("://")
    if not found or scheme.lower() not in {"http", "https"}:
        raise ValueError('a URL starts with its scheme, as in "https://issuer.example/path"')
    if not text.isascii() or any(character <= " " or character in '\\"<>^`{|}\x7f' for character in text):
        raise ValueError("a URL holds no spaces, control characters or letters beyond ASCII; write them as %XX")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("the text in brackets is no IPv6 address") from None
    if "@" in parts.netloc:
        raise ValueError("this URL holds no user name or password; they have settings of their own")
    if parts.fragment:
        raise ValueError('a URL that is fetched has no "#" part')
    host, _ = _host_and_port(parts.netloc)
    return host


def check_host(text: str) -> str:
    """``text``, if it is a host name or an IP address and nothing else. Raises ValueError with a sentence that does not
    repeat the text, which may contain a password."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if any(character in text for character in ":/@[]"):
            raise ValueError("a host stands alone here, without scheme, user, port or brackets") from None
        _host_and_port(text)
    return text


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """``headers``, if HTTP can carry each, name to value. Raises ValueError with a sentence without values."""
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an HTTP header: letters, digits and some signs, without spaces")
        if not _HEADER_VALUE.fullmatch(text):
            raise ValueError(f"the value of {name!r} has a line break or another control character")
    return headers


def is_readable_on_the_way(url: str) -> bool:
    """Whether data sent to ``url`` leaves this machine unencrypted. ``url`` must parse."""
    return not url.lower().startswith("https://") and not is_loopback(parse_http_url(url))


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine: ``localhost`` or a loopback address. Names are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _host_and_port(text: str) -> tuple[str, int | None]:
    """Host, and port if given. Raises ValueError with a sentence that does not repeat the text."""
    found = _HOST_AND_PORT.fullmatch(text)
    if not found:
        raise ValueError("after the host comes a colon and a port; IPv6 stands in brackets, as in [::1]:1883")
    six, host, port = found["six"], found["host"], found["port"]
    if six is not None:
        try:
            ipaddress.IPv6Address(six)
        except ValueError:
            raise ValueError("the text in brackets is no IPv6 address") from None
        host = six
    elif not host:
        raise ValueError("the host is missing")
    elif len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise ValueError("the host is neither a host name nor an IP address")
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError("a port is a number from 1 to 65535")
    return host, int(port)


def _check_mqtt(text: str) -> str:
    parse_mqtt_address(text)
    return text


def _check_kafka(text: str) -> str:
    parse_kafka_address(text)
    return text


def _check_ldap(text: str) -> str:
    parse_ldap_address(text)
    return text


def _check_http(text: str) -> str:
    parse_http_url(text)
    return text


HttpHeaders = Annotated[dict[str, str], AfterValidator(check_headers)]
"""HTTP headers, name to value, that a request can carry."""

HostText = Annotated[str, AfterValidator(check_host)]
"""A host name or an IP address, IPv6 without brackets."""

HttpUrlText = Annotated[str, AfterValidator(_check_http)]
"""An ``http://`` or ``https://`` URL as text, known to parse."""

MqttAddressText = Annotated[str, AfterValidator(_check_mqtt)]
"""An MQTT address as text, known to parse."""

KafkaAddressText = Annotated[str, AfterValidator(_check_kafka)]
"""A Kafka address as text, known to parse."""

LdapAddressText = Annotated[str, AfterValidator(_check_ldap)]
"""An LDAP address as text, known to parse."""

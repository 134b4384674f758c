"""Record headers made from a message's properties, flags and identity."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from bridge import wire
from bridge.message import MessageView, Properties

if TYPE_CHECKING:
    from bridge.routing.template import Template
    from bridge.wire import Header, MessageIdKind

_FLAG_HEADERS: Final = (("qos", wire.MQTT_QOS, 1, 3), ("retain", wire.MQTT_RETAIN, 0, 1), ("dup", wire.MQTT_DUP, 3, 1))


def property_headers(properties: Properties) -> list[Header]:
    """The headers for MQTT 5 properties. The result may be kept: it depends on nothing else."""
    headers: list[Header] = []
    if properties.payload_format:
        headers.append((wire.MQTT_PAYLOAD_FORMAT, b"1"))
    if properties.content_type is not None:
        headers.append((wire.MQTT_CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append((wire.MQTT_RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append((wire.MQTT_CORRELATION_DATA, properties.correlation_data))
    if properties.message_expiry is not None:
        headers.append((wire.MQTT_MESSAGE_EXPIRY, b"%d" % properties.message_expiry))
    headers += [(wire.MQTT_USER_PREFIX + name, value.encode()) for name, value in properties.user]
    return headers


def message_id_headers(message_id: bytes, kind: MessageIdKind) -> list[Header]:
    """The two headers of a message's identity: the id and its kind."""
    return [(wire.GATEWAY_MESSAGE_ID, message_id), (wire.GATEWAY_MESSAGE_ID_KIND, kind.value.encode())]


@lru_cache(maxsize=64)  # routes with the same settings share them: 3 KB each
def flag_headers(
    selected: frozenset[str], extra: tuple[tuple[str, Template], ...] = ()
) -> tuple[tuple[Header, ...], ...]:
    """The headers of each of the 16 PUBLISH flag nibbles: the ``selected`` flags that are not 0, and templates that
    read flags."""
    return tuple(tuple(_of_flags(flags, selected, extra)) for flags in range(16))


def _of_flags(flags: int, selected: frozenset[str], extra: tuple[tuple[str, Template], ...]) -> Iterator[Header]:
    """The headers of one nibble of PUBLISH flags."""
    for word, name, shift, mask in _FLAG_HEADERS:
        value = flags >> shift & mask
        if value and word in selected:
            yield name, b"%d" % value
    view = MessageView("", flags)
    for name, template in extra:
        yield name, template.render(view)

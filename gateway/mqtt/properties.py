"""The properties of a PUBLISH, read from their bytes (MQTT 5.0 sections 2.2.2 and 3.3.2.3)."""

from bridge.message import Properties
from gateway.mqtt.errors import MalformedPacketError

_PAYLOAD_FORMAT, _MESSAGE_EXPIRY, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA = 0x01, 0x02, 0x03, 0x08, 0x09
_SUBSCRIPTION_ID, _TOPIC_ALIAS, _USER_PROPERTY = 0x0B, 0x23, 0x26
_FIXED_SIZES = {_PAYLOAD_FORMAT: 1, _TOPIC_ALIAS: 2}
_REPEATABLE = (_SUBSCRIPTION_ID, _USER_PROPERTY)


def parse_properties(raw: bytes) -> Properties:
    """The properties of a PUBLISH, by name. Raises MalformedPacketError for anything the specification forbids there.

    A topic alias is refused: the gateway announces none (MQTT 5.0 section 3.3.2.3.4).
    """
    user: list[tuple[str, str]] = []
    content_type = response_topic = None
    correlation_data = None
    payload_format = 0
    message_expiry = None
    seen = 0
    position, end = 0, len(raw)
    try:
        while position < end:
            identifier = raw[position]
            position += 1
            if identifier not in _REPEATABLE:
                if seen >> identifier & 1:
                    raise MalformedPacketError(
                        f"The broker sent property 0x{identifier:02x} twice in one PUBLISH.", 0x82
                    )
                seen |= 1 << identifier
            if identifier == _USER_PROPERTY:
                name, position = _text(raw, position)
                value, position = _text(raw, position)
                user.append((name, value))
            elif identifier == _CONTENT_TYPE:
                content_type, position = _text(raw, position)
            elif identifier == _MESSAGE_EXPIRY:
                message_expiry = int.from_bytes(_bytes(raw, position, 4))
                position += 4
            elif identifier == _PAYLOAD_FORMAT:
                # Only 0 and 1 exist. EMQX passes on what a device sends, so another value says nothing: as with a text
                # that is no UTF-8, a refusal would end the connection at each redelivery.
                payload_format = int(raw[position] == 1)
                position += 1
            elif identifier == _RESPONSE_TOPIC:
                response_topic, position = _text(raw, position)
            elif identifier == _CORRELATION_DATA:
                length = int.from_bytes(_bytes(raw, position, 2))
                correlation_data = _bytes(raw, position + 2, length)
                position += 2 + length
            elif identifier == _SUBSCRIPTION_ID:
                position = _skip_varint(raw, position)
            elif identifier == _TOPIC_ALIAS:
                raise MalformedPacketError("The broker sent a topic alias, although we announced none.", 0x94)
            else:
                raise MalformedPacketError(f"The broker sent property 0x{identifier:02x}, which a PUBLISH cannot have.")
    except IndexError:
        raise MalformedPacketError("The properties of a PUBLISH end in the middle of one.") from None
    return Properties(tuple(user), content_type, response_topic, correlation_data, payload_format, message_expiry)


def without_expiry(content: bytes) -> bytes:
    """Properties with their length, and a payload, as they are but for the message expiry, which is 0.

    A broker counts it down while it holds a message [MQTT-3.3.2-6], so two sendings of one message differ in it.
    Raises nothing: what is malformed is left for others to judge."""
    try:
        size, position = content[0], 1
        while content[position - 1] > 127:
            if position == 4:  # a length has no more bytes; a run of such bytes would be read in quadratic time
                return content
            size = size & ~(128 << 7 * (position - 1)) | content[position] << 7 * position
            position += 1
        end = position + size
        if content.find(_MESSAGE_EXPIRY, position, end) < 0:
            return content
        while position < end:
            identifier = content[position]
            position += 1
            if identifier == _MESSAGE_EXPIRY:
                return content[:position] + bytes(4) + content[position + 4 :]
            if identifier == _SUBSCRIPTION_ID:
                position = _skip_varint(content, position)
            else:
                for _ in range(2 if identifier == _USER_PROPERTY else 1):
                    position += _FIXED_SIZES.get(identifier) or 2 + (content[position] << 8 | content[position + 1])
    except (IndexError, MalformedPacketError):
        pass
    return content


def _bytes(raw: bytes, position: int, length: int) -> bytes:
    data = raw[position : position + length]
    if len(data) != length:
        raise IndexError
    return data


def _text(raw: bytes, position: int) -> tuple[str, int]:
    """The string at ``position``, after its length of two bytes, and the position behind it."""
    length = raw[position] << 8 | raw[position + 1]
    position += 2
    # What is no UTF-8 is shown as \xff and the like. MQTT calls it malformed, but it is a device's doing, which EMQX
    # passes on (``mqtt.strict_mode`` is off by default): it would come again after each reconnect, nothing behind it.
    return _bytes(raw, position, length).decode(errors="backslashreplace"), position + length


def _skip_varint(raw: bytes, position: int) -> int:
    for step in range(4):
        if raw[position + step] < 128:
            return position + step + 1
    raise MalformedPacketError("A subscription identifier is longer than four bytes.")

"""The names of MQTT's control packets, for messages."""

from __future__ import annotations

__all__ = ["packet_name"]

_NAMES = (
    "", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE",
    "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip


def packet_name(number: int) -> str:
    """The name of a control packet type (MQTT 5.0 section 2.1.2)."""
    return f"{_NAMES[number]} packet" if 0 < number < len(_NAMES) else f"packet of type {number}"

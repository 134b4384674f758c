"""Births and deaths of devices out of Kafka's records, in the forms that are in use. Plain Python."""

import json
from typing import Final

from streaming.devices.records import MOST, Presence

# The same words as in bridge.commands.reading, which may not be imported here.
_BIRTHS: Final = frozenset({"online", "connected", "birth", "up", "alive", "true", "1"})
_DEATHS: Final = frozenset({"offline", "disconnected", "death", "down", "lost", "dead", "false", "0"})
_SPARKPLUG: Final = {"NBIRTH": True, "DBIRTH": True, "NDEATH": False, "DDEATH": False}
_FIELDS: Final = ("status", "state", "online", "connected")
_MOST_DETAIL: Final = 200


def parse_presence(
    device: str, gateway: str, mqtt_topic: str | None, value: bytes | None, received_ms: int
) -> Presence | None:
    """What a record says of a device; None if it is no birth and no death.

    In this order: EMQX's events, whose topic ends with ``/connected`` or ``/disconnected``; Sparkplug's message type in
    the topic; a JSON object's ``status``, ``state``, ``online`` or ``connected``; the payload as a word, ``online`` or
    ``offline``; and EMQX's events again by their fields, where the record does not say its topic.
    """
    text = (value or b"").decode("utf-8", "replace").strip()
    try:
        fields = json.loads(text) if text.startswith("{") else {}
    except (ValueError, RecursionError):
        fields = {}
    online = _by_topic(mqtt_topic or "")
    if online is None:
        online = _by_fields(fields) if fields else _word(text)
    if online is None:
        return None
    connected, reason = fields.get("connected_at"), fields.get("reason")
    session = connected if type(connected) is int and 0 < connected <= MOST else None
    detail = reason[:_MOST_DETAIL] if isinstance(reason, str) else ""
    detail = detail.encode(errors="replace").decode()  # half a pair of surrogates is no text, and would end the job
    return Presence(device, gateway, online, session, received_ms, detail)


def _by_topic(topic: str) -> bool | None:  # True: a birth; False: a death; None: neither
    levels = topic.split("/")
    if topic.startswith("$SYS/brokers/"):
        return {"connected": True, "disconnected": False}.get(levels[-1])
    return _SPARKPLUG.get(levels[2]) if levels[0] == "spBv1.0" and len(levels) > 2 else None


def _by_fields(fields: dict[str, object]) -> bool | None:  # True: a birth; False: a death; None: neither
    for name in _FIELDS:
        value = fields.get(name)
        if isinstance(value, str | int) and (online := _word(str(value))) is not None:
            return online
    if "clientid" in fields and ("disconnected_at" in fields or "connected_at" in fields):
        return not ("disconnected_at" in fields or "reason" in fields)
    return None


def _word(text: str) -> bool | None:
    word = text.strip('"').lower()
    return True if word in _BIRTHS else False if word in _DEATHS else None

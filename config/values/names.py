"""Names that MQTT and Kafka accept: filters, topics, and templates of them."""

from __future__ import annotations

__all__ = [
    "KafkaTopicName",
    "MqttFilter",
    "ReplicationFactor",
    "Template",
    "check_kafka_topic",
    "check_mqtt_filter",
    "disjoint_groups",
    "filter_covers",
    "filters_overlap",
    "placeholders",
]

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from config.values.grammar import Count

if TYPE_CHECKING:
    from collections.abc import Iterable

_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_PREFIXES = {
    "$share": "the shared subscription is made from mqtt.distribution and mqtt.share_group",
    "$queue": "the shared subscription is made from mqtt.distribution and mqtt.share_group",
    "$exclusive": "an exclusive subscription cannot be shared among sessions",
}


def check_mqtt_filter(text: str) -> str:
    """``text``, if it is a valid topic filter (MQTT 5.0, 4.7); else ValueError with a sentence."""
    if not text:
        raise ValueError("a filter is not empty")
    if "\x00" in text:
        raise ValueError("a filter holds no NUL character")
    if len(text.encode("utf-8", "surrogatepass")) > 65535:
        raise ValueError("a filter is at most 65,535 bytes long")
    levels = text.split("/")
    if (reason := _PREFIXES.get(levels[0])) is not None:
        raise ValueError(f"a filter does not start with {levels[0]}/: {reason}")
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            raise ValueError('"#" stands alone in the last level, as in "devices/#"')
        if "+" in level and level != "+":
            raise ValueError('"+" stands alone in its level, as in "devices/+/state"')
    return text


def check_kafka_topic(text: str) -> str:
    """``text``, if Kafka accepts it as the name of a topic that is not its own; else ValueError with a sentence."""
    if text in {".", ".."} or not _KAFKA_TOPIC.fullmatch(text):
        raise ValueError(
            "a Kafka topic is named with 1 to 249 letters, digits, '.', '_' and '-', and is not '.' or '..'"
        )
    if text.startswith("__"):
        raise ValueError("topics that start with two underscores are Kafka's own")
    return text


def placeholders(text: str) -> list[str]:
    """The names in the ``${…}`` of ``text``, in order. Raises ValueError for one that is empty or not closed."""
    names = _PLACEHOLDER.findall(text)
    if "${" in _PLACEHOLDER.sub("", text):
        raise ValueError('a placeholder is written "${name}"; a closing brace is missing')
    if "" in names:
        raise ValueError("a placeholder has a name between its braces")
    return names


def filter_covers(wide: str, narrow: str) -> bool:
    """Whether every topic that ``narrow`` matches is matched by ``wide`` too; both valid."""
    ours, rest = _levels(wide)
    theirs, their_rest = _levels(narrow)
    if len(theirs) < len(ours) or ((their_rest or len(theirs) > len(ours)) and not rest):
        return False
    if ours[0] == "+" and theirs[0].startswith("$"):
        return False
    return all(our in ("+", their) for our, their in zip(ours, theirs, strict=False))


def filters_overlap(one: str, other: str) -> bool:
    """Whether some topic is matched by both of two valid filters."""
    ours, rest = _levels(one)
    theirs, their_rest = _levels(other)
    if (len(ours) < len(theirs) and not rest) or (len(theirs) < len(ours) and not their_rest):
        return False
    if {ours[0], theirs[0]} & {"+"} and (ours[0].startswith("$") or theirs[0].startswith("$")):
        return False
    return all("+" in (our, their) or our == their for our, their in zip(ours, theirs, strict=False))


def _levels(text: str) -> tuple[list[str], bool]:
    """The levels before a last "#", and whether there is one. A lone "#" is "+/#", since a topic has a first level.

    Wildcards in the first level match no topic that starts with "$" (MQTT 5.0, 4.7.2).
    """
    levels = text.split("/")
    if levels[-1] != "#":
        return levels, False
    levels.pop()
    return levels or ["+"], True


def disjoint_groups(filters: Iterable[str]) -> list[list[str]]:
    """The filters in groups such that no topic is matched from two groups; those that another one covers are left
    out."""
    unique = list(dict.fromkeys(filters))
    kept: list[str] = []
    for text in unique:
        if not any(filter_covers(other, text) for other in kept):
            kept = [other for other in kept if not filter_covers(text, other)] + [text]
    groups: list[list[str]] = []
    for text in kept:
        meets = [group for group in groups if any(filters_overlap(text, other) for other in group)]
        groups = [group for group in groups if group not in meets] + [
            [*(one for group in meets for one in group), text]
        ]
    return groups


def _check_replication(value: int) -> int:
    if value == 0:
        raise ValueError("replication is -1 (the broker's default) or at least 1")
    return value


MqttFilter = Annotated[str, AfterValidator(check_mqtt_filter)]
"""A topic filter, known to be valid."""

KafkaTopicName = Annotated[str, AfterValidator(check_kafka_topic)]
"""The name of a Kafka topic, known to be valid."""

Template = str
"""Text with ``${…}`` placeholders for values of a message. ``bridge.routing.template`` reads it, and is the judge of
it."""

ReplicationFactor = Annotated[Count, Field(ge=-1, le=32767), AfterValidator(_check_replication)]
"""Copies of a partition: -1 for the broker's default, or at least 1 (a 16-bit number in Kafka's protocol)."""

"""Names that Kafka accepts, templates of them, and folders."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from config.values.grammar import Count

_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")


def check_kafka_topic(text: str) -> str:
    """``text``, if it is a valid topic name and not one of Kafka's own. Raises ValueError with a sentence."""
    if text in {".", ".."} or not _KAFKA_TOPIC.fullmatch(text):
        raise ValueError(
            "a Kafka topic is named with 1 to 249 letters, digits, '.', '_' and '-', and is not '.' or '..'"
        )
    if text.startswith("__"):
        raise ValueError("topics that start with two underscores are Kafka's own")
    return text


def placeholders(text: str) -> list[str]:
    """The names in the ``${…}`` of ``text``, in order. Raises ValueError for an empty or unclosed one."""
    names = _PLACEHOLDER.findall(text)
    if "${" in _PLACEHOLDER.sub("", text):
        raise ValueError('a placeholder is written "${name}"; a closing brace is missing')
    if "" in names:
        raise ValueError("a placeholder has a name between its braces")
    return names


def _check_replication(value: int) -> int:
    if value == 0:
        raise ValueError("replication is -1 (the broker's default) or at least 1")
    return value


def _check_folder(value: object) -> object:
    if value == "":
        raise ValueError('an empty text names no folder; "." is the current one')
    return value


KafkaTopicName = Annotated[str, AfterValidator(check_kafka_topic)]
"""The name of a Kafka topic, known to be valid."""

Template = str
"""Text with ``${…}`` placeholders for values of a message. ``bridge.routing.template`` parses and checks it."""

ReplicationFactor = Annotated[Count, Field(ge=-1, le=32767), AfterValidator(_check_replication)]
"""Copies of a partition: -1 for the broker's default, or at least 1 (a 16-bit number in Kafka's protocol)."""

Folder = Annotated[Path, BeforeValidator(_check_folder)]
"""A folder. Python would take an empty path for the current one."""

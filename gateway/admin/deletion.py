"""Reasons not to delete a topic, and causes that would create it again. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.admin.topic_plan import templated, wanted_topics

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.admin.model import ConfigEntry


def kafka_s_own(names: Iterable[str]) -> str | None:
    """Why topics of these names may not be deleted; None if they may. They need not exist."""
    own = [name for name in names if name.startswith("__")]
    if own:
        return f"{', '.join(own)} belongs to Kafka: without it consumers lose their offsets. It is not deleted here."
    return None


def deletion_forbidden(brokers: Mapping[int, Mapping[str, ConfigEntry]]) -> str | None:
    """Why this Kafka deletes no topics; None if it does."""
    forbidding = _brokers_with(brokers, "delete.topic.enable", "false")
    if forbidding:
        return (
            f"Kafka forbids it: delete.topic.enable=false on broker {forbidding}. Set it to true in server.properties "
            "of every broker and controller, and restart them one by one."
        )
    return None


def deletion_warnings(
    settings: Settings, names: Sequence[str], brokers: Mapping[int, Mapping[str, ConfigEntry]]
) -> list[str]:
    """Sentences about programs and settings that would create the topics again or wait for them."""
    warnings = []
    if creating := _brokers_with(brokers, "auto.create.topics.enable", "true"):
        warnings.append(
            f"auto.create.topics.enable=true on broker {creating}: any producer or consumer that still uses the "
            "topic creates it again, with the broker's default settings. Stop them first."
        )
    wanted = {topic.name: topic.used_by for topic in wanted_topics(settings)}
    for name in names:
        used_by = wanted.get(name)
        if used_by is None:
            continue
        if settings.kafka.topics.create:
            then = "a gateway with these settings creates it again (kafka.topics.create = true)"
        else:
            then = "messages for it wait in a running gateway until the topic exists again"
        warnings.append(f"The settings use {name} ({', '.join(used_by)}): {then}.")
    if routes := templated(settings):
        each = ", ".join(f"{route} ({template})" for route, template in routes)
        warnings.append(f"Some routes make topics from messages, and may write to these: {each}.")
    return warnings


def _brokers_with(brokers: Mapping[int, Mapping[str, ConfigEntry]], key: str, value: str) -> str:
    """The brokers with this configuration, as a list for a sentence."""
    found = [number for number, configs in brokers.items() if key in configs and configs[key].value == value]
    return ", ".join(str(number) for number in found)

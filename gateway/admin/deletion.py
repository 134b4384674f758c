"""What speaks against deleting a topic, and what would bring it back. No I/O."""

from __future__ import annotations

__all__ = ["deletion_forbidden", "deletion_warnings", "kafka_s_own"]

from typing import TYPE_CHECKING

from gateway.admin.topic_plan import templated, wanted_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from config.settings import Settings
    from gateway.admin.model import ConfigEntry


def kafka_s_own(names: Iterable[str]) -> str | None:
    """Why topics of these names are not deleted, whether they are there or not; None for others."""
    own = [name for name in names if name.startswith("__")]
    if own:
        return (
            f"{', '.join(own)} belongs to Kafka itself: without it consumers lose their place. It is not deleted here."
        )
    return None


def deletion_forbidden(brokers: Mapping[int, Mapping[str, ConfigEntry]]) -> str | None:
    """Why Kafka deletes no topic; None when it does."""
    forbidding = _those(brokers, "delete.topic.enable", "false")
    if forbidding:
        return (
            f"Kafka forbids it: delete.topic.enable=false on broker {forbidding}. Set it to true in server.properties "
            "of every broker and controller, and restart them one by one."
        )
    return None


def deletion_warnings(
    settings: Settings, names: Sequence[str], brokers: Mapping[int, Mapping[str, ConfigEntry]]
) -> list[str]:
    """What would make the topics anew, or wait for them, as sentences."""
    warnings = []
    if creating := _those(brokers, "auto.create.topics.enable", "true"):
        warnings.append(
            f"auto.create.topics.enable=true on broker {creating}: any producer or consumer that still asks for the "
            "topic makes it anew, with the broker's default settings. Stop them first."
        )
    wanted = {topic.name: topic.used_by for topic in wanted_topics(settings)}
    for name in names:
        used_by = wanted.get(name)
        if used_by is None:
            continue
        if settings.kafka.topics.create:
            then = "a gateway that runs with them makes it anew (kafka.topics.create = true)"
        else:
            then = "what a running gateway gets for it waits until the topic is there again"
        warnings.append(f"The settings use {name} ({', '.join(used_by)}): {then}.")
    if routes := templated(settings):
        each = ", ".join(f"{route} ({template})" for route, template in routes)
        warnings.append(f"Some routes make their topics from messages, and may write to these: {each}.")
    return warnings


def _those(brokers: Mapping[int, Mapping[str, ConfigEntry]], key: str, value: str) -> str:
    """The brokers whose configuration says so, as a list for a sentence."""
    found = [number for number, configs in brokers.items() if key in configs and configs[key].value == value]
    return ", ".join(str(number) for number in found)

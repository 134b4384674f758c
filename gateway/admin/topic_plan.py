"""Compares the settings' topics with Kafka's, and plans the steps. No I/O.

Only explicit settings lead to a step. ``kafka.topics.partitions`` and ``.replication`` are for topics to create; an
existing topic grows only if ``kafka.topics.declare`` names it with its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from bridge.routing.template import Template
from config.numbers import many

if TYPE_CHECKING:
    from config.settings import Settings, TopicSettings
    from gateway.admin.model import ConfigEntry, Topic

StepKind = Literal["create", "grow", "configure", "differs", "nothing"]
"""``differs``: the topic differs from the settings, and no step here can correct it; the text names the tool."""

ACTIONS: Final[frozenset[StepKind]] = frozenset({"create", "grow", "configure"})
_LISTS: Final = frozenset({"cleanup.policy"})  # values without an order
_BROKERS_CHOICE: Final = -1


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic in the settings. It is created with ``partitions`` and ``replication``, or with as many partitions as a
    topic of ``beside`` if that has more. With ``grows`` an existing one must have ``partitions``. Differences from
    values that are not set explicitly are not reported."""

    name: str
    used_by: tuple[str, ...]
    partitions: int
    replication: int
    configs: dict[str, str] = field(default_factory=dict)
    grows: bool = False
    partitions_said: bool = False
    replication_said: bool = False
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step or a fact. ``before`` and ``after`` are for machines and the audit."""

    topic: str
    kind: StepKind
    text: str
    warning: str = ""
    before: dict[str, object] = field(default_factory=dict, hash=False)
    after: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def acts(self) -> bool:
        return self.kind in ACTIONS


def wanted_topics(settings: Settings) -> tuple[Wanted, ...]:
    """All topics in the settings: of routes, dead letters, the ledger, commands and their statuses, and declared
    ones."""
    uses: dict[str, list[str]] = {}
    for route in settings.routes:
        if (name := _constant(settings, route.topic)) is not None:
            uses.setdefault(name, []).append(f"route {route.name}")
    for name in settings.dead_letter_topics:
        uses.setdefault(name, []).append("dead letters")
    if settings.ledger.topic:
        uses.setdefault(settings.ledger.topic, []).append("ledger")
    configs: dict[str, dict[str, str]] = {}
    beside: dict[str, tuple[str, ...]] = {}  # topics whose partition count a new topic at least gets
    for one in settings.commands:
        for name in one.topics:
            uses.setdefault(name, []).append(f"commands {one.name}")
            configs[name] = {"cleanup.policy": "delete"}
        uses.setdefault(one.status_topic, []).append(f"statuses of {one.name}")
        configs[one.status_topic] = {
            "cleanup.policy": "compact,delete",
            "retention.ms": str(int(one.status_retention.total_seconds() * 1000)),
        }
        beside[one.status_topic] = one.topics
    declared = {topic.name: topic for topic in settings.kafka.topics.declare}
    for name in declared:
        uses.setdefault(name, []).append("declared")
    return tuple(
        _wanted(settings, name, tuple(used), declared.get(name), configs.get(name, {}), beside.get(name, ()))
        for name, used in sorted(uses.items())
    )


def templated(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Routes whose topic comes from a template, as (route, template). Their topics cannot be planned."""
    return tuple((route.name, route.topic) for route in settings.routes if _constant(settings, route.topic) is None)


def _constant(settings: Settings, template: str) -> str | None:
    parsed = Template.parse(template).bind(instance=settings.instance, device=Template.parse("?"))
    constant = parsed.constant
    return None if constant is None or "${device}" in template else constant.decode()


def _wanted(
    settings: Settings,
    name: str,
    used_by: tuple[str, ...],
    declared: TopicSettings | None,
    configs: dict[str, str],
    beside: tuple[str, ...],
) -> Wanted:
    """A topic as it should be. Declared settings come before ``configs``, those that its use asks for. It gets at least
    as many partitions as the topics ``beside`` it."""
    common = settings.kafka.topics
    if declared is None:
        return Wanted(
            name,
            used_by,
            common.partitions,
            common.replication,
            configs,
            partitions_said="partitions" in common.model_fields_set,
            replication_said="replication" in common.model_fields_set,
            beside=beside,
        )
    configs = dict(configs)
    if declared.retention is not None:
        configs["retention.ms"] = str(int(declared.retention.total_seconds() * 1000))
    if declared.cleanup_policy is not None:
        configs["cleanup.policy"] = declared.cleanup_policy
    said = "partitions" in declared.model_fields_set
    return Wanted(
        name,
        used_by,
        declared.partitions,
        declared.replication,
        configs,
        grows=said,
        partitions_said=said,
        replication_said="replication" in declared.model_fields_set,
        beside=() if said else beside,
    )


def plan(
    wanted: Iterable[Wanted],
    there: Mapping[str, Topic],
    configs: Mapping[str, Mapping[str, ConfigEntry]],
) -> tuple[Step, ...]:
    """The steps by topic, at least one for each ("nothing" if it matches). ``configs`` has the whole configuration of
    each existing topic."""
    steps: list[Step] = []
    by_name = {topic.name: topic for topic in wanted}
    counts = {name: topic.partitions for name, topic in by_name.items()}
    counts |= {name: len(topic.partitions) for name, topic in there.items()}
    for topic in by_name.values():
        found = there.get(topic.name)
        if found is None:
            steps.append(_creation_step(topic, max(counts[name] for name in (topic.name, *topic.beside))))
            continue
        own = [*_partition_steps(topic, found), *_config_steps(topic, configs.get(topic.name, {})),
               *_replication_steps(topic, found)]  # fmt: skip
        steps += own or [Step(topic.name, "nothing", _as_it_is(topic, found))]
    return tuple(steps)


def _creation_step(topic: Wanted, partitions: int) -> Step:
    copies = "the broker's default replication" if topic.replication == _BROKERS_CHOICE else (
        f"replication {topic.replication}"
    )  # fmt: skip
    settings = "".join(f", {key}={value}" for key, value in topic.configs.items())
    after = {"partitions": partitions, "replication": topic.replication, "configs": dict(topic.configs)}
    return Step(topic.name, "create", f"{many(partitions, 'partition')}, {copies}{settings}", after=dict(after))


def _partition_steps(topic: Wanted, found: Topic) -> list[Step]:
    """``partitions_said``: the settings have a number; ``grows``: it is also for a topic that exists."""
    count = len(found.partitions)
    if topic.partitions == count or not topic.partitions_said:
        return []
    fewer = topic.partitions < count
    if fewer and not topic.grows:
        return []
    if fewer or not topic.grows:
        text = f"has {many(count, 'partition')}, the settings say {topic.partitions}: " + (
            "partitions cannot be removed. For fewer, create a topic with another name and move its readers"
            if fewer
            else "kafka.topics.partitions applies to new topics only. To grow this one, name it in "
            "kafka.topics.declare with its partitions"
        )
        return [Step(topic.name, "differs", text, before={"partitions": count}, after={"partitions": topic.partitions})]
    warning = (
        f"With {topic.partitions} instead of {count} partitions most keys move to another one. A device's later "
        "records may then be read before its earlier ones, until readers have caught up. State kept by partition is "
        f"wrong. A running gateway uses the first {count} partitions until gateway restart. This cannot be undone."
    )
    return [
        Step(topic.name, "grow", f"from {count} to {many(topic.partitions, 'partition')}", warning,
             {"partitions": count}, {"partitions": topic.partitions})
    ]  # fmt: skip


def _config_steps(topic: Wanted, there: Mapping[str, ConfigEntry]) -> list[Step]:
    changes = {}
    for key, value in topic.configs.items():
        entry = there.get(key)
        now = entry.value if entry is not None else None
        if not _same(key, now, value):
            changes[key] = (now, value)
    if not changes:
        return []
    text = ", ".join(f"{key}: {now if now is not None else 'unset'} → {value}" for key, (now, value) in changes.items())
    return [
        Step(topic.name, "configure", text, _config_warning(changes),
             {key: now for key, (now, _) in changes.items()}, {key: value for key, (_, value) in changes.items()})
    ]  # fmt: skip


def _config_warning(changes: Mapping[str, tuple[str | None, str]]) -> str:
    """What these changes (present and later values) make Kafka delete or refuse; empty if nothing."""
    now, later = changes.get("retention.ms", (None, ""))
    if now is not None and later and _shorter(later, now):
        return "Kafka deletes records older than the new retention within minutes; they cannot be restored."
    if "compact" in changes.get("cleanup.policy", ("", ""))[1].split(","):
        return "Compaction keeps only the last record of each key, and refuses records without a key."
    return ""


def _shorter(later: str, now: str) -> bool:
    for_ever = -1
    return int(now) == for_ever or int(later) < int(now)


def _same(key: str, now: str | None, wanted: str) -> bool:
    if now is not None and key in _LISTS:
        return {part.strip() for part in now.split(",")} == set(wanted.split(","))
    return now == wanted


def _replication_steps(topic: Wanted, found: Topic) -> list[Step]:
    if not topic.replication_said or topic.replication in {_BROKERS_CHOICE, found.replication}:
        return []
    text = (
        f"has replication {found.replication}, the settings say {topic.replication}: change it with "
        "kafka-reassign-partitions.sh or Cruise Control, which move the data between brokers"
    )
    return [
        Step(topic.name, "differs", text, before={"replication": found.replication},
             after={"replication": topic.replication})
    ]  # fmt: skip


def _as_it_is(topic: Wanted, found: Topic) -> str:
    settings = "".join(f", {key}={value}" for key, value in topic.configs.items())
    return f"{many(len(found.partitions), 'partition')}, replication {found.replication}{settings}"

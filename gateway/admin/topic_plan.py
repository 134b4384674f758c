"""What the settings' topics should be, what they are, and the steps from one to the other. No I/O.

A step is taken only for what the settings say in so many words. ``kafka.topics.partitions`` and ``.replication`` are
for topics that are made; one that exists is grown only when ``kafka.topics.declare`` names it with its partitions.
"""

from __future__ import annotations

__all__ = ["ACTIONS", "Step", "StepKind", "Wanted", "plan", "templated", "wanted_topics"]

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from bridge.routing.template import Template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from config.settings import Settings, TopicSettings
    from gateway.admin.model import ConfigEntry, Topic

StepKind = Literal["create", "grow", "configure", "differs", "nothing"]
"""``differs``: the topic is not as the settings say, and no step of ours makes it so; the text says what does."""

ACTIONS: Final[frozenset[StepKind]] = frozenset({"create", "grow", "configure"})
_LISTS: Final = frozenset({"cleanup.policy"})  # values whose order means nothing
_BROKERS_CHOICE: Final = -1


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic that settings name. ``partitions`` and ``replication`` are what it is made with; ``grows``: one that
    exists is held to the first. What the settings did not say in so many words is no difference worth a word."""

    name: str
    used_by: tuple[str, ...]
    partitions: int
    replication: int
    configs: dict[str, str] = field(default_factory=dict)
    grows: bool = False
    partitions_said: bool = False
    replication_said: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, or to know. ``before`` and ``after`` are for machines and the audit."""

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
    """Every topic that the settings name: the routes', the dead letters', the ledger's, and declared ones."""
    uses: dict[str, list[str]] = {}
    for route in settings.routes:
        if (name := _constant(settings, route.topic)) is not None:
            uses.setdefault(name, []).append(f"route {route.name}")
    for name in settings.dead_letter_topics:
        uses.setdefault(name, []).append("dead letters")
    if settings.ledger.topic:
        uses.setdefault(settings.ledger.topic, []).append("ledger")
    declared = {topic.name: topic for topic in settings.kafka.topics.declare}
    for name in declared:
        uses.setdefault(name, []).append("declared")
    return tuple(_wanted(settings, name, tuple(used), declared.get(name)) for name, used in sorted(uses.items()))


def templated(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Routes whose topic is made from each message, as (route, template): nobody can plan those."""
    return tuple((route.name, route.topic) for route in settings.routes if _constant(settings, route.topic) is None)


def _constant(settings: Settings, template: str) -> str | None:
    parsed = Template.parse(template).bind(instance=settings.instance, device=Template.parse("?"))
    constant = parsed.constant
    return None if constant is None or "${device}" in template else constant.decode()


def _wanted(settings: Settings, name: str, used_by: tuple[str, ...], declared: TopicSettings | None) -> Wanted:
    common = settings.kafka.topics
    if declared is None:
        return Wanted(
            name,
            used_by,
            common.partitions,
            common.replication,
            partitions_said="partitions" in common.model_fields_set,
            replication_said="replication" in common.model_fields_set,
        )
    configs = {}
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
    )


def plan(
    wanted: Iterable[Wanted],
    there: Mapping[str, Topic],
    configs: Mapping[str, Mapping[str, ConfigEntry]],
) -> tuple[Step, ...]:
    """The steps, topic by topic; at least one for each ("nothing" where all is well). ``configs`` has the whole
    configuration of each topic that is there."""
    steps: list[Step] = []
    for topic in wanted:
        found = there.get(topic.name)
        if found is None:
            steps.append(_creation(topic))
            continue
        own = [*_partitions(topic, found), *_configuration(topic, configs.get(topic.name, {})),
               *_replication(topic, found)]  # fmt: skip
        steps += own or [Step(topic.name, "nothing", _as_it_is(topic, found))]
    return tuple(steps)


def _creation(topic: Wanted) -> Step:
    copies = "the broker's default replication" if topic.replication == _BROKERS_CHOICE else (
        f"replication {topic.replication}"
    )  # fmt: skip
    settings = "".join(f", {key}={value}" for key, value in topic.configs.items())
    after = {"partitions": topic.partitions, "replication": topic.replication, "configs": dict(topic.configs)}
    return Step(topic.name, "create", f"{_count(topic.partitions)}, {copies}{settings}", after=dict(after))


def _partitions(topic: Wanted, found: Topic) -> list[Step]:
    count = len(found.partitions)
    if topic.partitions == count or not topic.partitions_said:
        return []
    if topic.partitions < count:
        if not topic.grows:
            return []
        text = (
            f"has {_count(count)}, the settings say {topic.partitions}: partitions only ever grow. To have fewer, make "
            "a topic of another name and move its readers"
        )
        return [Step(topic.name, "differs", text, before={"partitions": count}, after={"partitions": topic.partitions})]
    if not topic.grows:
        text = (
            f"has {_count(count)}; kafka.topics.partitions = {topic.partitions} is for topics that are made. To grow "
            "this one, name it in kafka.topics.declare with its partitions"
        )
        return [Step(topic.name, "differs", text, before={"partitions": count}, after={"partitions": topic.partitions})]
    warning = (
        f"With {topic.partitions} partitions most keys go to another one than with {count}: a device's later records "
        "may be read before its earlier ones until readers have caught up with what was written before, and state kept "
        f"by partition is in the wrong place. A gateway that runs goes on with the first {count} until it is restarted "
        "(gateway restart), and starts with the new number then. This cannot be undone."
    )
    return [
        Step(topic.name, "grow", f"from {count} to {_count(topic.partitions)}", warning,
             {"partitions": count}, {"partitions": topic.partitions})
    ]  # fmt: skip


def _configuration(topic: Wanted, there: Mapping[str, ConfigEntry]) -> list[Step]:
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
    now, later = changes.get("retention.ms", (None, ""))
    if now is not None and later and _shorter(later, now):
        return "Kafka deletes what is older than the new retention within minutes; nobody brings it back."
    if "compact" in changes.get("cleanup.policy", ("", ""))[1].split(","):
        return "Compaction keeps the last record of each key alone, and refuses records without a key."
    return ""


def _shorter(later: str, now: str) -> bool:
    for_ever = -1
    return int(now) == for_ever or int(later) < int(now)


def _same(key: str, now: str | None, wanted: str) -> bool:
    if now is not None and key in _LISTS:
        return {part.strip() for part in now.split(",")} == set(wanted.split(","))
    return now == wanted


def _replication(topic: Wanted, found: Topic) -> list[Step]:
    if not topic.replication_said or topic.replication in {_BROKERS_CHOICE, found.replication}:
        return []
    text = (
        f"has replication {found.replication}, the settings say {topic.replication}: that moves data between brokers, "
        "which kafka-reassign-partitions.sh does (or Cruise Control)"
    )
    return [
        Step(topic.name, "differs", text, before={"replication": found.replication},
             after={"replication": topic.replication})
    ]  # fmt: skip


def _as_it_is(topic: Wanted, found: Topic) -> str:
    settings = "".join(f", {key}={value}" for key, value in topic.configs.items())
    return f"{_count(len(found.partitions))}, replication {found.replication}{settings}"


def _count(number: int) -> str:
    return f"{number} partition{'s' * (number != 1)}"

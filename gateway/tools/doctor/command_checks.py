"""Facts and verdicts about commands to devices: their topics and groups in Kafka, and who else subscribes in EMQX.

Loaded only where the settings have commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from config.errors import ExitStatus, GatewayError
from config.numbers import many, some
from config.relations.commands import as_filters
from config.values.grammar import format_duration
from config.values.topic_filters import intersection
from gateway.components.commanding import group_name
from gateway.health.emqx.api import EmqxApi
from gateway.tools.doctor.threads import answer, call

if TYPE_CHECKING:
    from config.settings import Settings
    from config.tables.commands import CommandSettings
    from gateway.admin.kafka import KafkaAdmin
    from gateway.health.emqx.model import EmqxZone
    from gateway.tools.doctor.model import Findings

NAMES: Final = ("command_topics", "command_status", "command_group")


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """``partitions`` and ``configs`` are by topic; missing topics are missing. ``groups`` are the states of known
    groups. ``problems`` has the reason for what is unknown: ``topics``, ``configs``, or a group's name."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, GatewayError] = field(default_factory=dict)


async def gather(settings: Settings, admin: KafkaAdmin, timeout_s: float, *, has_groups: bool) -> CommandFacts:
    """Ask Kafka; takes at most two time-outs. ``has_groups``: Kafka's topic for groups exists."""
    problems: dict[str, GatewayError] = {}

    def ask(name: str, work: Callable[[], Any], default: Any) -> Awaitable[Any]:
        return answer(name, call(work, timeout_s + 1), problems, default)

    names = sorted({name for one in settings.commands for name in (*one.topics, one.status_topic)})
    topics = await ask("topics", lambda: admin.topics(names), ())
    found = {topic.name: len(topic.partitions) for topic in topics}
    groups = [group_name(settings, one) for one in settings.commands] if has_groups else []
    configs, *told = await asyncio.gather(
        ask("configs", lambda: admin.configs("topic", found), {}),
        *(ask(name, partial(admin.group, name), None) for name in groups),
    )
    return CommandFacts(
        found,
        {name: {key: one.value for key, one in entries.items() if one.value} for name, entries in configs.items()},
        {name: group.state for name, group in zip(groups, told, strict=True) if group is not None},
        problems,
    )


def judge_commands(findings: Findings, settings: Settings, facts: CommandFacts) -> None:
    for one in settings.commands:
        if "topics" in facts.problems:
            findings.skip(NAMES, f"Kafka does not tell of the topics: {facts.problems['topics']}", one.name)
            continue
        _judge_topics(findings, one, facts)
        _judge_status(findings, one, facts)
        _judge_group(findings, settings, one, facts)


def _judge_topics(findings: Findings, one: CommandSettings, facts: CommandFacts) -> None:
    check = findings.of("command_topics", one.name)
    missing = [topic for topic in one.topics if topic not in facts.partitions]
    configs = {topic: facts.configs[topic] for topic in one.topics if topic in facts.configs}
    compacted = [topic for topic, config in configs.items() if "compact" in config.get("cleanup.policy", "")]
    expiry_ms = round(one.expiry.total_seconds() * 1000)
    # A retention below 0 is without end.
    short = {topic: kept for topic, config in configs.items() if 0 <= (kept := _retention_ms(config)) < expiry_ms}
    if missing:
        check.fail(
            f"Topic {some(missing)} is not there, or this user may not see it: no command is read.",
            "Create it with cleanup.policy=delete; the user needs Describe and Read.",
            status=ExitStatus.UNAVAILABLE,
        )
    elif compacted:
        check.fail(
            f"Topic {some(compacted)} is compacted: Kafka deletes a device's older commands before they are read.",
            "Set cleanup.policy=delete.",
        )
    elif short:
        told = some(f"{topic} {milliseconds:,} ms" for topic, milliseconds in short.items())
        check.fail(
            f"Kafka deletes commands before they expire ({format_duration(one.expiry)}): retention.ms of {told}.",
            "Set retention.ms above the longest expiry, a header's included; a day at least.",
        )
    elif "configs" in facts.problems:
        check.skip(f"Kafka does not tell the topics' settings: {facts.problems['configs']}")
    else:
        check.ok(f"{some(one.topics)}: not compacted, and kept longer than a command lives.")


def _retention_ms(config: Mapping[str, str]) -> int:
    """Negative: for ever, or unknown."""
    text = config.get("retention.ms", "")
    return int(text) if text.isdigit() else -1


def _judge_status(findings: Findings, one: CommandSettings, facts: CommandFacts) -> None:
    check = findings.of("command_status", one.name)
    topic = one.status_topic
    count = facts.partitions.get(topic)
    needed = max((facts.partitions.get(name, 0) for name in one.topics), default=0)
    policy = facts.configs.get(topic, {}).get("cleanup.policy")
    if count is None:
        check.fail(
            f"The status topic {topic} is not there, or this user may not see it.",
            f"Create it with cleanup.policy=compact,delete and {max(needed, 1)} partitions; the user needs Write and "
            "Read.",
            status=ExitStatus.UNAVAILABLE,
        )
    elif count < needed:
        check.fail(
            f"The status topic {topic} has {many(count, 'partition')}, the command topics up to {needed}: a command's "
            "status goes to the partition of its own number.",
            f"gateway topics apply, or kafka-topics.sh --alter --topic {topic} --partitions {needed}",
        )
    elif policy is None:
        check.skip(f"Kafka does not tell the settings of {topic}: {facts.problems.get('configs', 'no reason given')}")
    elif "compact" not in policy:
        check.warn(
            f"The status topic {topic} is not compacted ({policy}): it keeps every status of a command, not the last.",
            "Set cleanup.policy=compact,delete.",
        )
    else:
        check.ok(f"The status topic {topic} is compacted, with {many(count, 'partition')}.")


def _judge_group(findings: Findings, settings: Settings, one: CommandSettings, facts: CommandFacts) -> None:
    name = group_name(settings, one)
    check = findings.of("command_group", one.name)
    if name in facts.groups:
        check.ok(f"The group {name} is {facts.groups[name]}.", state=facts.groups[name])
    elif name in facts.problems:
        check.warn(
            f"The group {name} cannot be described: {facts.problems[name]}",
            "It is made at the first start. Later: give the user Read on the group, and look at its coordinator.",
        )
    else:
        check.skip(f"Kafka has no consumer group yet, so not {name}.")


# --- EMQX ----------------------------------------------------------------------------------------


async def subscribers(settings: Settings) -> list[tuple[str, str]] | str:
    """Client id and filter of every subscription in EMQX; a sentence why they are unknown."""
    try:
        found = await EmqxApi(settings.emqx).subscriptions()
    except GatewayError as error:
        return str(error)
    return "there are too many subscriptions to read" if found is None else found


def judge_emqx(
    findings: Findings, settings: Settings, found: Sequence[tuple[str, str]] | str, zone: EmqxZone | None
) -> None:
    """Whether 0x10, "nobody subscribes", can be trusted; and what EMQX keeps for devices that are away."""
    for one in settings.commands:
        check = findings.of("command_subscribers", one.name)
        if isinstance(found, str):
            check.skip(f"EMQX does not tell who subscribes: {found}")
        elif others := _others(one, found):
            check.warn(
                f"{many(len(others), 'client')} subscribe to the commands of more than one device: {some(others)}. "
                "EMQX then never answers that nobody subscribes (0x10), and commands leave for devices that are away.",
                "Let them read the Kafka topics instead, or take sent for no more than it says.",
                clients=others,
            )
        else:
            check.ok("Only devices subscribe to their commands: 0x10 says that the device does not.")
        if one.when_offline == "queue" and zone is not None and not zone.durable_sessions:
            kept = "without limit" if zone.max_mqueue_len is None else f"{zone.max_mqueue_len} messages a session"
            findings.of("command_queue", one.name).warn(
                f"Commands for devices that are away wait in EMQX's memory, {kept}: a full queue drops its oldest, "
                "a restart of EMQX all of them. Their status stays sent, or becomes timed_out.",
                'Set when_offline = "wait", or durable_sessions.enable in EMQX.',
                max_mqueue_len=zone.max_mqueue_len,
            )


def _others(one: CommandSettings, found: Sequence[tuple[str, str]]) -> list[str]:
    """Client ids that subscribe to the commands of several devices: their filter has a wildcard where the device is."""
    at = next(place for place, level in enumerate(one.mqtt_topic.split("/")) if "${device}" in level)
    topics = as_filters(one.mqtt_topic)
    found_levels = ((client_id, filter_, filter_.split("/")) for client_id, filter_ in found)
    return sorted(
        {
            client_id
            for client_id, filter_, levels in found_levels
            if ("#" in levels[: at + 1] or levels[at : at + 1] == ["+"])
            and any(intersection(filter_, topic) is not None for topic in topics)
        }
    )

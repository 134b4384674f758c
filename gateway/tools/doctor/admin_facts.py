"""Facts from Kafka's administration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.admin.looking import unseen
from gateway.tools.doctor.threads import answer, call

if TYPE_CHECKING:
    from config.errors import GatewayError
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import Answers, Cluster, Group, LogDir, Reassignment
    from gateway.tools.doctor.kafka_facts import Known

Configs = dict[str, str]


@dataclass(frozen=True, slots=True)
class AdminFacts:
    """Facts that are None, or missing in a mapping, are unknown; ``problems`` has the reason, by the question's
    name."""

    cluster: Cluster | None = None
    brokers: Mapping[int, Configs] = field(default_factory=dict)
    topics: Mapping[str, Configs] = field(default_factory=dict)
    reassignments: tuple[Reassignment, ...] | None = None
    log_dirs: Answers[tuple[LogDir, ...]] | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)  # why a group's topics cannot be judged
    problems: Mapping[str, GatewayError] = field(default_factory=dict)


async def gather(
    admin: KafkaAdmin, cluster: asyncio.Task[Cluster], known: Known, groups: Sequence[str], timeout_s: float
) -> AdminFacts:
    """Ask all questions at once; takes at most two time-outs. ``cluster`` is already being asked."""
    problems: dict[str, GatewayError] = {}

    def ask(name: str, work: Callable[[], Any], default: Any = None) -> Awaitable[Any]:
        return answer(name, call(work, timeout_s + 1), problems, default)

    nodes = [] if known.layout is None else [one.node for one in known.layout.brokers]
    has_groups = known.layout is not None and "__consumer_offsets" in known.layout.topics
    told = asyncio.gather(
        answer("cluster", cluster, problems),
        asyncio.gather(*(ask(f"config of broker {node}", partial(_broker, admin, node)) for node in nodes)),
        ask("config of topics", partial(_topics, admin, known.ours), {}),
        ask("reassignments", admin.reassignments),
        ask("log dirs", admin.log_dirs),
        # Without groups so far, the question for a coordinator would create Kafka's topic for them.
        asyncio.gather(*(ask(f"group {name}", partial(_group, admin, name)) for name in groups if has_groups)),
    )
    found, configs, topics, reassignments, log_dirs, described = await told
    brokers = {node: config for node, config in zip(nodes, configs, strict=True) if config is not None}
    asked = [one for one in described if one is not None]
    seen = {group.id: group for group, _ in asked}
    unseen = {group.id: why for group, why in asked if why}
    return AdminFacts(found, brokers, topics, reassignments, log_dirs, seen, unseen, problems)


def _group(admin: KafkaAdmin, name: str) -> tuple[Group, str]:
    group = admin.group(name)
    assigned = {place.topic for member in group.members for place in member.assignment}
    return group, unseen(admin, assigned | {place.topic for place in admin.committed(name).values})


def _broker(admin: KafkaAdmin, node: int) -> Configs:
    return _plain(admin.configs("broker", [str(node)])[str(node)])


def _topics(admin: KafkaAdmin, names: Sequence[str]) -> dict[str, Configs]:
    return {name: _plain(entries) for name, entries in admin.configs("topic", names).items()}


def _plain(entries: Mapping[str, Any]) -> Configs:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}

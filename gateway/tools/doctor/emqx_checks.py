"""Facts and verdicts from EMQX's REST API: versions, limits, drops, and sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from config.errors import GatewayError
from config.numbers import many, some
from gateway.base.group_plan import client_ids, group_plans, session_names
from gateway.health.emqx.api import EmqxApi
from gateway.tools.doctor.threads import answer

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.health.emqx.model import Ban, EmqxClient, EmqxNode, EmqxZone
    from gateway.tools.doctor.model import Findings, Verdict

_RESTART_S: Final = 5.0  # generous time without a session during a worker's restart
_PAUSE_S: Final = 15.0  # EMQX's send_timeout, after which it ends a connection that takes nothing
_BEHIND_API: Final = ("nodes", "window", "queue", "mailbox", "strategy", "drops", "sessions", "orphans", "bans")


@dataclass(frozen=True, slots=True)
class EmqxFacts:
    """Facts that are None are unknown; ``problems`` has the reason, by the question's name."""

    nodes: list[EmqxNode] | None = None
    zone: EmqxZone | None = None
    clients: Mapping[str, EmqxClient] | None = None
    bans: list[Ban] | None = None
    problems: Mapping[str, GatewayError] = field(default_factory=dict)


def expected_ids(settings: Settings, workers: int) -> list[str]:
    numbers = range(workers) if settings.workers != 0 else [settings.worker]
    return [client_id for number in numbers for _, client_id in client_ids(settings, number)]


def session_pattern(settings: Settings) -> re.Pattern[str]:
    """A pattern of this instance's client ids, also of removed workers and sessions."""
    groups = "|".join(re.escape(group.name) + "-" for group in settings.mqtt.groups)
    parts = {
        "${instance}": re.escape(settings.instance),
        "${worker}": r"\d+",
        "${session}": rf"(?:{groups})?\d+" if groups else r"\d+",
    }
    text = "".join(parts.get(part, re.escape(part)) for part in re.split(r"(\$\{\w+\})", settings.mqtt.client_id))
    return re.compile(text)


async def gather(settings: Settings, workers: int) -> EmqxFacts:
    """Ask EMQX's REST API; takes at most a few times ``emqx.timeout``."""
    api, problems = EmqxApi(settings.emqx), dict[str, GatewayError]()
    try:
        nodes = await api.nodes()
    except GatewayError as error:
        return EmqxFacts(problems={"api": error})
    expected = expected_ids(settings, workers)
    start = settings.mqtt.client_id.replace("${instance}", settings.instance).partition("${")[0]

    zone, clients, bans = await asyncio.gather(
        answer("zone", api.zone(), problems, who="EMQX"),
        answer("clients", _clients(api, start, expected), problems, who="EMQX"),
        answer("bans", api.bans(), problems, who="EMQX"),
    )
    return EmqxFacts(nodes, zone, clients, bans, problems)


async def _clients(api: EmqxApi, start: str, expected: list[str]) -> dict[str, EmqxClient]:
    """The instance's clients and similar ones; without a common beginning of the client ids, only the instance's."""
    found = await api.clients(expected)
    if start:
        found |= {one.client_id: one for one in await api.clients_like(start)}
    return found


def judge_emqx(
    findings: Findings, settings: Settings, facts: EmqxFacts, workers: int, *, runs: bool, rate: float | None
) -> None:
    """All checks of the group. ``runs``: the gateway runs. ``rate``: its received messages a second, if known."""
    if (problem := facts.problems.get("api")) is not None:
        findings.of("api").fail(
            str(problem), "See emqx.url, emqx.api_key and emqx.api_secret.", status=problem.exit_status
        )
        findings.skip(_BEHIND_API, "Not tried: EMQX's REST API cannot be asked (api).")
        return
    _judge_nodes(findings, facts)
    if facts.zone is None:
        zone = ("window", "queue", "mailbox", "strategy")
        findings.skip(zone, f"EMQX does not tell its settings: {facts.problems['zone']}")
    else:
        _judge_window(findings, settings, facts.zone)
        _judge_queue(findings, settings, facts.zone, workers, rate)
        _judge_mailbox(findings, settings, facts.zone, workers, rate)
        _judge_strategy(findings, settings, facts.zone, workers)
    if facts.clients is None:
        clients = ("drops", "sessions", "orphans")
        findings.skip(clients, f"EMQX does not tell of its clients: {facts.problems['clients']}")
    else:
        _judge_sessions(findings, settings, facts.clients, workers, runs=runs)
    _judge_bans(findings, settings, facts, workers)


def _judge_nodes(findings: Findings, facts: EmqxFacts) -> None:
    nodes = facts.nodes or []
    findings.of("api").ok("EMQX's REST API answers.")
    away = [f"{node.name} ({node.status})" for node in nodes if node.status != "running"]
    versions = sorted({node.version for node in nodes} - {""})  # a stopped node has no version
    text = f"EMQX {', '.join(versions) or 'of unknown version'} on {many(len(nodes), 'node')}"
    if away:
        findings.of("nodes").fail(f"{text}; not running: {some(away)}.", "Start them, or take them out of the cluster.")
    elif len(versions) > 1:
        findings.of("nodes").warn(f"{text}: of different versions.", "Finish the upgrade.", versions=versions)
    else:
        findings.of("nodes").ok(f"{text}, all running.", versions=versions)


def _judge_window(findings: Findings, settings: Settings, zone: EmqxZone) -> None:
    check = findings.of("window")
    wanted = max(plan.settings.mqtt.receive_maximum for plan in group_plans(settings))
    if zone.max_inflight is not None and zone.max_inflight < wanted:
        check.warn(
            f"mqtt.max_inflight of EMQX is {zone.max_inflight}: it sends a session no more unacknowledged messages, "
            f"though the gateway would take {wanted} (mqtt.receive_maximum).",
            f"Set mqtt.max_inflight = {wanted} in EMQX (Management, MQTT Settings, or the zone).",
            max_inflight=zone.max_inflight,
        )
    else:
        check.ok(f"mqtt.max_inflight of EMQX is {zone.max_inflight or 'without limit'}.")


def _judge_queue(findings: Findings, settings: Settings, zone: EmqxZone, workers: int, rate: float | None) -> None:
    """``rate``: messages a second that the gateway receives; None if unknown."""
    check = findings.of("queue")
    if zone.durable_sessions:
        if settings.mqtt.distribution == "shared":
            check.warn(
                "EMQX keeps its sessions on disk (durable_sessions.enable). The open-source edition then refuses every "
                "shared subscription (0x9E), which mqtt.distribution = shared needs.",
                'Set mqtt.distribution = "partitioned", or durable_sessions.enable = false in EMQX.',
            )
        else:
            check.ok("EMQX keeps what waits for an absent session on disk (durable_sessions.enable).")
        return
    if zone.max_mqueue_len is None:
        check.ok("EMQX queues without limit while a session is away.")
        return
    sessions = len(session_names(settings)) * workers
    bears = sessions * zone.max_mqueue_len / _RESTART_S
    text = (
        f"EMQX queues {zone.max_mqueue_len} messages for each of {sessions} sessions (mqtt.max_mqueue_len) and then "
        f"drops the oldest, though devices were acknowledged: enough for a restart of {_RESTART_S:g} s at "
        f"{bears:,.0f} messages a second"
    )
    check = findings.of("queue", max_mqueue_len=zone.max_mqueue_len, bears_per_second=bears, rate=rate)
    wanted = "Raise mqtt.max_mqueue_len in EMQX (100000) where more comes than that."
    _judge_rate(check, text, rate, bears, wanted, "the next restart loses some")


def _judge_mailbox(findings: Findings, settings: Settings, zone: EmqxZone, workers: int, rate: float | None) -> None:
    """If a session's process in EMQX is blocked, its mailbox must hold the messages meanwhile, or the session is
    lost."""
    if zone.max_mailbox is None:
        findings.of("mailbox").ok("EMQX kills no session for the length of its mailbox.")
        return
    sessions = len(session_names(settings)) * workers
    bears = sessions * zone.max_mailbox / _PAUSE_S
    text = (
        f"EMQX kills a session with all it holds when more than {zone.max_mailbox} messages wait for its process "
        f"(force_shutdown.max_mailbox_size): enough for {_PAUSE_S:g} s in which it cannot write, at {bears:,.0f} "
        f"messages a second over {many(sessions, 'session')}"
    )
    check = findings.of("mailbox", max_mailbox_size=zone.max_mailbox, bears_per_second=bears, rate=rate)
    wanted = "Set force_shutdown.max_mailbox_size in EMQX to 15 s of what a session receives (100000)."
    _judge_rate(check, text, rate, bears, wanted, "such a pause loses what they hold")


def _judge_rate(check: Verdict, text: str, rate: float | None, bears: float, advice: str, loss: str) -> None:
    """``text`` ends with ``bears``, the rate that EMQX's limit allows. Half of it is a warning, more is a ``loss``."""
    now = "nobody tells the present rate" if rate is None else f"the gateway receives {rate:,.0f}"
    if rate is not None and rate > bears:
        check.fail(f"{text}; {now}: {loss}.", advice)
    elif rate is None or rate > bears / 2:
        check.warn(f"{text}; {now}.", advice)
    else:
        check.ok(f"{text}; {now}.")


def _judge_strategy(findings: Findings, settings: Settings, zone: EmqxZone, workers: int) -> None:
    check = findings.of("strategy")
    sessions = max(plan.settings.mqtt.sessions for plan in group_plans(settings)) * workers
    name = zone.shared_subscription_strategy
    if settings.mqtt.distribution != "shared" or sessions == 1:
        check.ok("A device's messages come through one session, whatever EMQX's strategy is.")
    elif name.startswith("hash_"):
        check.ok(f"EMQX deals shared subscriptions by {name}: a device keeps its order.", strategy=name)
    else:
        check.warn(
            f"EMQX deals shared subscriptions by {name}: with {sessions} sessions a device's messages overtake each "
            "other.",
            "Set mqtt.shared_subscription_strategy = hash_clientid (or hash_topic) in EMQX, where order matters.",
            strategy=name,
        )


def _judge_sessions(
    findings: Findings, settings: Settings, clients: Mapping[str, EmqxClient], workers: int, *, runs: bool
) -> None:
    ours = expected_ids(settings, workers)
    present = [clients[name] for name in ours if name in clients]
    dropped = {one.client_id: one.mqueue_dropped for one in present if one.mqueue_dropped}
    if dropped:
        said = some(f"{name}: {count:,}" for name, count in dropped.items())
        findings.of("drops").warn(
            f"EMQX has dropped {sum(dropped.values()):,} messages for want of room in the queues of our sessions, "
            f"since these began: {said}. They are lost: no gateway gets them.",
            "Raise mqtt.max_mqueue_len and mqtt.max_inflight in EMQX, or use more sessions; gateway verify shows when.",
            dropped=dropped,
        )
    elif not present:
        findings.of("drops").skip("EMQX has no session of this instance, so nobody can tell what it dropped for one.")
    else:
        findings.of("drops").ok("EMQX has dropped nothing of our sessions' queues.")
    away = [name for name in ours if name not in clients or not clients[name].connected]
    queued = sum(one.mqueue_len for one in present)
    if runs and away:
        findings.of("sessions").fail(
            f"The gateway runs, and {len(away)} of {len(ours)} sessions are not connected: {some(away)}.",
            "See the group MQTT; the gateway's log says why each of them is not.",
        )
    elif runs:
        findings.of("sessions").ok(f"All {len(ours)} sessions are connected; {queued:,} messages wait in their queues.")
    elif present:
        findings.of("sessions").ok(f"{many(len(present), 'session')} wait for the gateway, with {queued:,} messages.")
    else:
        findings.of("sessions").ok("EMQX has no session of this instance yet.")
    pattern = session_pattern(settings)
    orphans = sorted(name for name in clients if pattern.fullmatch(name) and name not in ours)
    if orphans:
        waiting = sum(clients[name].mqueue_len for name in orphans)
        findings.of("orphans").warn(
            f"{many(len(orphans), 'session')} of this instance belong to no worker of these settings, and take their "
            f"share of what is published, {waiting:,} messages now: {some(orphans)}.",
            "A gateway that starts on the data_dir they came from empties and ends them (gateway retire does so before "
            "scaling in). Kick them in EMQX only when their messages may be lost.",
            orphans=orphans,
        )
    else:
        findings.of("orphans").ok("No session of this instance is without a worker.")


def _judge_bans(findings: Findings, settings: Settings, facts: EmqxFacts, workers: int) -> None:
    check = findings.of("bans")
    if facts.bans is None:
        check.skip(f"EMQX does not tell whom it bans: {facts.problems['bans']}")
        return
    names: dict[str, Sequence[str | None]] = {
        "clientid": expected_ids(settings, workers),
        "username": [settings.mqtt.username],
    }
    banned = [
        f"{one.kind} {one.who} until {one.until} ({one.reason or 'no reason given'})"
        for one in facts.bans
        if one.who in names.get(one.kind, ())
    ]
    if banned:
        check.fail(
            f"EMQX bans us: {some(banned)}.",
            "Lift the ban in EMQX (Access Control, Banned Clients); a crash loop is banned by flapping detection.",
        )
    else:
        check.ok("None of our client ids is banned, nor our user.")

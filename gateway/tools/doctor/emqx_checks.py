"""What EMQX itself says: its versions, its limits against our flow, what it dropped before we got it, whose sessions
it still keeps."""

from __future__ import annotations

__all__ = ["EmqxFacts", "client_ids", "gather", "judge_emqx", "session_pattern"]

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from config.errors import GatewayError
from gateway.base.group_plan import session_names
from gateway.health.emqx.api import EmqxApi
from gateway.tools.doctor.wording import many, some

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from typing import TypeVar

    from config.settings import Settings
    from gateway.health.emqx.model import Ban, EmqxClient, EmqxNode, EmqxZone
    from gateway.tools.doctor.model import Findings

    T = TypeVar("T")

_RESTART_S: Final = 5.0  # how long a session is away in a restart of a worker, with room
_PAUSE_S: Final = 15.0  # EMQX's send_timeout: after so long it ends a connection that takes nothing
_BEHIND_API: Final = ("nodes", "window", "queue", "mailbox", "strategy", "drops", "sessions", "orphans", "bans")


@dataclass(frozen=True, slots=True)
class EmqxFacts:
    """What is None was not told; ``problems`` says why, by the question's name."""

    nodes: list[EmqxNode] | None = None
    zone: EmqxZone | None = None
    clients: Mapping[str, EmqxClient] | None = None
    bans: list[Ban] | None = None
    problems: Mapping[str, GatewayError] = field(default_factory=dict)


def client_ids(settings: Settings, workers: int) -> list[str]:
    """The client ids of all sessions of the instance."""
    numbers = range(workers) if settings.workers != 0 else [settings.worker]
    return [
        settings.mqtt.client_id.replace("${instance}", settings.instance)
        .replace("${worker}", str(number))
        .replace("${session}", name)
        for number in numbers
        for name in session_names(settings)
    ]


def session_pattern(settings: Settings) -> re.Pattern[str]:
    """What client ids of this instance look like, of workers and sessions that are no more too."""
    groups = "|".join(re.escape(group.name) + "-" for group in settings.mqtt.groups)
    parts = {
        "${instance}": re.escape(settings.instance),
        "${worker}": r"\d+",
        "${session}": rf"(?:{groups})?\d+" if groups else r"\d+",
    }
    text = "".join(parts.get(part, re.escape(part)) for part in re.split(r"(\$\{\w+\})", settings.mqtt.client_id))
    return re.compile(text)


async def gather(settings: Settings, workers: int) -> EmqxFacts:
    """Ask its REST API; takes a few times ``emqx.timeout`` at most."""
    api, problems = EmqxApi(settings.emqx), dict[str, GatewayError]()
    try:
        nodes = await api.nodes()
    except GatewayError as error:
        return EmqxFacts(problems={"api": error})
    expected = client_ids(settings, workers)
    start = settings.mqtt.client_id.replace("${instance}", settings.instance).partition("${")[0]

    async def ask(name: str, question: Awaitable[T]) -> T | None:
        try:
            return await question
        except GatewayError as error:
            problems[name] = error
            return None

    zone, clients, bans = await asyncio.gather(
        ask("zone", api.zone()), ask("clients", _clients(api, start, expected)), ask("bans", api.bans())
    )
    return EmqxFacts(nodes, zone, clients, bans, problems)


async def _clients(api: EmqxApi, start: str, expected: list[str]) -> dict[str, EmqxClient]:
    """Ours and those that look like ours; ours alone where a client id does not begin with anything of its own."""
    found = await api.clients(expected)
    if start:
        found |= {one.client_id: one for one in await api.clients_like(start)}
    return found


def judge_emqx(
    findings: Findings, settings: Settings, facts: EmqxFacts, workers: int, *, runs: bool, rate: float | None
) -> None:
    """Every check of the group. ``runs``: does the gateway; ``rate`` is what it receives a second, if it says so."""
    if (problem := facts.problems.get("api")) is not None:
        findings.fail(
            "api", str(problem), "See emqx.url, emqx.api_key and emqx.api_secret.", status=problem.exit_status
        )
        for name in _BEHIND_API:
            findings.skip(name, "Not tried: EMQX's REST API cannot be asked (api).")
        return
    _judge_nodes(findings, facts)
    if facts.zone is None:
        for name in ("window", "queue", "mailbox", "strategy"):
            findings.skip(name, f"EMQX does not tell its settings: {facts.problems['zone']}")
    else:
        _judge_window(findings, settings, facts.zone)
        _judge_queue(findings, settings, facts.zone, workers, rate)
        _judge_mailbox(findings, settings, facts.zone, workers, rate)
        _judge_strategy(findings, settings, facts.zone, workers)
    if facts.clients is None:
        for name in ("drops", "sessions", "orphans"):
            findings.skip(name, f"EMQX does not tell of its clients: {facts.problems['clients']}")
    else:
        _judge_sessions(findings, settings, facts.clients, workers, runs=runs)
    _judge_bans(findings, settings, facts, workers)


def _judge_nodes(findings: Findings, facts: EmqxFacts) -> None:
    nodes = facts.nodes or []
    findings.ok("api", "EMQX's REST API answers.")
    away = [f"{node.name} ({node.status})" for node in nodes if node.status != "running"]
    versions = sorted({node.version for node in nodes} - {""})  # one that is stopped tells none
    text = f"EMQX {', '.join(versions) or 'of unknown version'} on {many(len(nodes), 'node')}"
    if away:
        findings.fail("nodes", f"{text}; not running: {some(away)}.", "Start them, or take them out of the cluster.")
    elif len(versions) > 1:
        findings.warn("nodes", f"{text}: of different versions.", "Finish the upgrade.", versions=versions)
    else:
        findings.ok("nodes", f"{text}, all running.", versions=versions)


def _judge_window(findings: Findings, settings: Settings, zone: EmqxZone) -> None:
    wanted = settings.mqtt.receive_maximum
    if zone.max_inflight is not None and zone.max_inflight < wanted:
        findings.warn(
            "window",
            f"mqtt.max_inflight of EMQX is {zone.max_inflight}: it sends a session no more unacknowledged messages, "
            f"though the gateway would take {wanted} (mqtt.receive_maximum).",
            f"Set mqtt.max_inflight = {wanted} in EMQX (Management, MQTT Settings, or the zone).",
            max_inflight=zone.max_inflight,
        )
    else:
        findings.ok("window", f"mqtt.max_inflight of EMQX is {zone.max_inflight or 'without limit'}.")


def _judge_queue(findings: Findings, settings: Settings, zone: EmqxZone, workers: int, rate: float | None) -> None:
    if zone.durable_sessions:
        if settings.mqtt.distribution == "shared":
            findings.warn(
                "queue",
                "EMQX keeps its sessions on disk (durable_sessions.enable). The open-source edition then refuses every "
                "shared subscription (0x9E), which mqtt.distribution = shared needs.",
                'Set mqtt.distribution = "partitioned", or durable_sessions.enable = false in EMQX.',
            )
        else:
            findings.ok("queue", "EMQX keeps what waits for an absent session on disk (durable_sessions.enable).")
        return
    if zone.max_mqueue_len is None:
        findings.ok("queue", "EMQX queues without limit while a session is away.")
        return
    sessions = settings.mqtt.sessions * workers
    bears = sessions * zone.max_mqueue_len / _RESTART_S
    text = (
        f"EMQX queues {zone.max_mqueue_len} messages for each of {sessions} sessions (mqtt.max_mqueue_len) and then "
        f"drops the oldest, though devices were acknowledged: enough for a restart of {_RESTART_S:g} s at "
        f"{bears:,.0f} messages a second"
    )
    if rate is not None and rate > bears:
        findings.fail(
            "queue",
            f"{text}; the gateway receives {rate:,.0f}: the next restart loses some.",
            "Raise mqtt.max_mqueue_len in EMQX (100000).",
            max_mqueue_len=zone.max_mqueue_len,
            bears_per_second=bears,
            rate=rate,
        )
    elif rate is None or rate > bears / 2:
        now = "nobody tells the present rate" if rate is None else f"the gateway receives {rate:,.0f}"
        findings.warn(
            "queue",
            f"{text}; {now}.",
            "Raise mqtt.max_mqueue_len in EMQX (100000) where more comes than that.",
            max_mqueue_len=zone.max_mqueue_len,
            bears_per_second=bears,
            rate=rate,
        )
    else:
        findings.ok(
            "queue",
            f"{text}; the gateway receives {rate:,.0f}.",
            max_mqueue_len=zone.max_mqueue_len,
            bears_per_second=bears,
            rate=rate,
        )


def _judge_mailbox(findings: Findings, settings: Settings, zone: EmqxZone, workers: int, rate: float | None) -> None:
    """What a session receives while its process in EMQX stands still must fit its mailbox, or all it holds is gone."""
    if zone.max_mailbox is None:
        findings.ok("mailbox", "EMQX kills no session for the length of its mailbox.")
        return
    sessions = settings.mqtt.sessions * workers
    bears = sessions * zone.max_mailbox / _PAUSE_S
    text = (
        f"EMQX kills a session with all it holds when more than {zone.max_mailbox} messages wait for its process "
        f"(force_shutdown.max_mailbox_size): enough for {_PAUSE_S:g} s in which it cannot write, at {bears:,.0f} "
        f"messages a second over {many(sessions, 'session')}"
    )
    now = "nobody tells the present rate" if rate is None else f"the gateway receives {rate:,.0f}"
    wanted = "Set force_shutdown.max_mailbox_size in EMQX to 15 s of what a session receives (100000)."
    facts: dict[str, Any] = {"max_mailbox_size": zone.max_mailbox, "bears_per_second": bears, "rate": rate}
    if rate is not None and rate > bears:
        findings.fail("mailbox", f"{text}; {now}.", wanted, **facts)
    elif rate is None or rate > bears / 2:
        findings.warn("mailbox", f"{text}; {now}.", wanted, **facts)
    else:
        findings.ok("mailbox", f"{text}; {now}.", **facts)


def _judge_strategy(findings: Findings, settings: Settings, zone: EmqxZone, workers: int) -> None:
    sessions = settings.mqtt.sessions * workers
    name = zone.shared_subscription_strategy
    if settings.mqtt.distribution != "shared" or sessions == 1:
        findings.ok("strategy", "A device's messages come through one session, whatever EMQX's strategy is.")
    elif name.startswith("hash_"):
        findings.ok("strategy", f"EMQX deals shared subscriptions by {name}: a device keeps its order.", strategy=name)
    else:
        findings.warn(
            "strategy",
            f"EMQX deals shared subscriptions by {name}: with {sessions} sessions a device's messages overtake each "
            "other.",
            "Set mqtt.shared_subscription_strategy = hash_clientid (or hash_topic) in EMQX, where order matters.",
            strategy=name,
        )


def _judge_sessions(
    findings: Findings, settings: Settings, clients: Mapping[str, EmqxClient], workers: int, *, runs: bool
) -> None:
    ours = client_ids(settings, workers)
    present = [clients[name] for name in ours if name in clients]
    dropped = {one.client_id: one.mqueue_dropped for one in present if one.mqueue_dropped}
    if dropped:
        said = some(f"{name}: {count:,}" for name, count in dropped.items())
        findings.warn(
            "drops",
            f"EMQX has dropped {sum(dropped.values()):,} messages for want of room in the queues of our sessions, "
            f"since these began: {said}. They are lost: no gateway gets them.",
            "Raise mqtt.max_mqueue_len and mqtt.max_inflight in EMQX, or use more sessions; gateway verify shows when.",
            dropped=dropped,
        )
    else:
        findings.ok("drops", "EMQX has dropped nothing of our sessions' queues.")
    away = [name for name in ours if name not in clients or not clients[name].connected]
    queued = sum(one.mqueue_len for one in present)
    if runs and away:
        findings.fail(
            "sessions",
            f"The gateway runs, and {len(away)} of {len(ours)} sessions are not connected: {some(away)}.",
            "See the group MQTT; the gateway's log says why each of them is not.",
        )
    elif runs:
        findings.ok("sessions", f"All {len(ours)} sessions are connected; {queued:,} messages wait in their queues.")
    elif present:
        findings.ok("sessions", f"{many(len(present), 'session')} wait for the gateway, with {queued:,} messages.")
    else:
        findings.ok("sessions", "EMQX has no session of this instance yet.")
    pattern = session_pattern(settings)
    orphans = sorted(name for name in clients if pattern.fullmatch(name) and name not in ours)
    if orphans:
        waiting = sum(clients[name].mqueue_len for name in orphans)
        findings.warn(
            "orphans",
            f"{many(len(orphans), 'session')} of this instance belong to no worker of these settings, and take their "
            f"share of what is published, {waiting:,} messages now: {some(orphans)}.",
            "A gateway that starts on the data_dir they came from empties and ends them (gateway retire does so before "
            "scaling in). Kick them in EMQX only when their messages may be lost.",
            orphans=orphans,
        )
    else:
        findings.ok("orphans", "No session of this instance is without a worker.")


def _judge_bans(findings: Findings, settings: Settings, facts: EmqxFacts, workers: int) -> None:
    if facts.bans is None:
        findings.skip("bans", f"EMQX does not tell whom it bans: {facts.problems['bans']}")
        return
    names: dict[str, Sequence[str | None]] = {
        "clientid": client_ids(settings, workers),
        "username": [settings.mqtt.username],
    }
    banned = [
        f"{one.kind} {one.who} until {one.until} ({one.reason or 'no reason given'})"
        for one in facts.bans
        if one.who in names.get(one.kind, ())
    ]
    if banned:
        findings.fail(
            "bans",
            f"EMQX bans us: {some(banned)}.",
            "Lift the ban in EMQX (Access Control, Banned Clients); a crash loop is banned by flapping detection.",
        )
    else:
        findings.ok("bans", "None of our client ids is banned, nor our user.")

"""Verdicts over the Kafka cluster as a whole: controller, quorum, disks, limits, clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from config.errors import ExitStatus, GatewayError
from config.numbers import bytes_text, many, some
from config.relations.kafka import largest_request
from gateway.admin.watch import unseen_problem
from gateway.tools.doctor.kafka_facts import BrokerFacts, Known

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.tools.doctor.admin_facts import AdminFacts
    from gateway.tools.doctor.model import Findings

_NAMES: Final = (
    "controller",
    "identity",
    "quorum",
    "clock",
    "reassignments",
    "request_size",
    "message_size",
    "auto_create",
    "log_dirs",
    "consumer_offsets",
    "groups",
)
_CONFIG: Final = "config of broker"  # the begin of the questions for these
_OFFSETS: Final = "__consumer_offsets"
_OFFSETS_BYTES: Final = 2 << 30  # a compacted partition has some MB; 50 partitions of two segments have at most 10 GiB
_BEHIND: Final = 1000  # records of the metadata log; an idle voter lags by a few
_ASLEEP_S: Final = 10.0
_CLOCK_WARN_S: Final = 5.0  # the controller's timestamp may be a second old, or two if it is busy
_CLOCK_FAIL_S: Final = 3600.0
_DISK_WARN, _DISK_FAIL = 0.15, 0.05


def judge_cluster(
    findings: Findings,
    settings: Settings,
    known: Known,
    admin: AdminFacts,
    brokers: Sequence[BrokerFacts],
    groups: Sequence[str],
    recorded: str | None,
) -> None:
    """All checks of the cluster. ``groups`` are the requested consumer groups, ``recorded`` is the cluster id of the
    data directory."""
    if known.layout is None:
        findings.skip(_NAMES, f"Not tried: {known.why}.")
        return
    _judge_controller(findings, admin, brokers)
    _judge_identity(findings, admin, recorded)
    _judge_quorum(findings, admin)
    _judge_clock(findings, admin)
    _judge_reassignments(findings, admin)
    if admin.brokers:
        for name in sorted(name for name in admin.problems if name.startswith(_CONFIG)):
            why = f"{name.removeprefix('config of ')} was asked and did not tell: {admin.problems[name]}"
            findings.skip(("request_size", "auto_create"), f"{why[0].upper()}{why[1:]}")
    _judge_request_size(findings, settings, admin)
    _judge_message_size(findings, settings, known, admin)
    _judge_auto_create(findings, settings, admin)
    _judge_log_dirs(findings, admin)
    _judge_offsets(findings, known, admin)
    _judge_groups(findings, known, admin, groups)


def _skip(findings: Findings, name: str, admin: AdminFacts, question: str) -> None:
    """Skip a check without an answer, with the reason."""
    problem = admin.problems.get(question)
    findings.of(name).skip(
        "Kafka does not tell." if problem is None else f"Kafka was asked and did not tell: {problem}"
    )


def _judge_controller(findings: Findings, admin: AdminFacts, brokers: Sequence[BrokerFacts]) -> None:
    check = findings.of("controller")
    cluster = admin.cluster
    if cluster is None:
        _skip(findings, "controller", admin, "cluster")
        return
    if cluster.controller is None:
        check.fail(
            f"There is no active controller that answers: {cluster.quorum_problem} New leaders cannot be elected.",
            "Look at the controllers' processes: a majority of the voters must be up.",
            status=ExitStatus.UNAVAILABLE,
        )
        return
    epoch = "" if cluster.quorum is None else f", epoch {cluster.quorum.epoch}"
    silent = [one for one in brokers if one.node == cluster.controller and not one.answers]
    if silent:
        check.fail(
            f"The active controller is node {cluster.controller}{epoch}, which does not answer ({silent[0].name}).",
            "Restart it: another one is elected, and failed leaders are replaced then.",
            status=ExitStatus.UNAVAILABLE,
            controller=cluster.controller,
        )
        return
    check.ok(
        f"The active controller is node {cluster.controller}{epoch}; the cluster {cluster.id} has "
        f"{many(len(cluster.brokers), 'broker')}.",
        controller=cluster.controller,
        epoch=None if cluster.quorum is None else cluster.quorum.epoch,
        cluster_id=cluster.id,
    )


def _judge_identity(findings: Findings, admin: AdminFacts, recorded: str | None) -> None:
    """``recorded``: the id of the Kafka cluster to which data_dir belongs; None if it has none yet."""
    check = findings.of("identity")
    found = admin.cluster.id if admin.cluster is not None else ""
    if not found:
        check.skip("Kafka does not tell its cluster id.")
    elif recorded is not None and recorded != found:
        check.fail(
            f"data_dir belongs to Kafka cluster {recorded}, and kafka.bootstrap_servers lead to {found}: the gateway "
            "will not start.",
            "Correct kafka.bootstrap_servers; if the cluster was replaced on purpose: gateway identity adopt.",
            status=ExitStatus.CONFIG,
        )
    else:
        known = "the one of data_dir" if recorded == found else "recorded in data_dir at the first start"
        check.ok(f"The cluster is {found}, {known}.", cluster_id=found)


def _judge_clock(findings: Findings, admin: AdminFacts) -> None:
    quorum = admin.cluster.quorum if admin.cluster is not None else None
    ahead_s = quorum.clock_ahead_seconds if quorum is not None else None
    check = findings.of("clock", ahead_seconds=ahead_s)
    if ahead_s is None:
        check.skip("The controller tells no time: it does so where other replicas follow it.")
    elif abs(ahead_s) > _CLOCK_WARN_S:
        which = "ahead of" if ahead_s > 0 else "behind"
        text = f"Kafka's clock is {abs(ahead_s):,.0f} s {which} this machine's"
        fix = "Let NTP set both (chronyc tracking)."
        if ahead_s < -_CLOCK_FAIL_S:
            check.fail(
                f"{text}: Kafka refuses records from more than an hour ahead (message.timestamp.after.max.ms).",
                fix,
            )
        else:
            check.warn(f"{text}: latencies and retention are off by as much.", fix)
    else:
        check.ok("Kafka's clock and this machine's agree, within seconds.")


def _judge_quorum(findings: Findings, admin: AdminFacts) -> None:
    check = findings.of("quorum")
    quorum = admin.cluster.quorum if admin.cluster is not None else None
    if quorum is None:
        why = admin.cluster.quorum_problem if admin.cluster is not None else ""
        check.skip(why or "Kafka does not tell of its metadata quorum.")
        return
    lags = {one.id: one.lag for one in quorum.voters}
    late = [
        one
        for one in quorum.voters
        if one.id != quorum.leader
        and (one.lag > _BEHIND or (one.last_fetch_age_seconds or 0) > _ASLEEP_S or one.log_end_offset < 0)
    ]
    if not late:
        said = ", ".join(f"{one.id}: {one.lag}" for one in quorum.voters)
        check.ok(f"{many(len(quorum.voters), 'voter')}; records behind: {said}.", lag=lags)
        return
    names = "; ".join(
        f"voter {one.id} is {one.lag} records behind"
        + ("" if one.last_fetch_age_seconds is None else f", last seen {one.last_fetch_age_seconds:.0f} s ago")
        for one in late
    )
    left = len(quorum.voters) - len(late)
    text = f"{names}. {left} of {len(quorum.voters)} voters keep up"
    if left <= len(quorum.voters) // 2 + 1:
        text += "; one more that fails, and no leader can be elected"
    check.warn(f"{text}.", "Look at that node's process and log; restart it if it is stuck.", lag=lags)


def _judge_reassignments(findings: Findings, admin: AdminFacts) -> None:
    check = findings.of("reassignments")
    if admin.reassignments is None:
        _skip(findings, "reassignments", admin, "reassignments")
    elif admin.reassignments:
        moving = [f"{one.topic}/{one.partition}" for one in admin.reassignments]
        check.warn(
            f"{many(len(moving), 'partition')} are on their way to other brokers: {some(moving)}. That costs disks and "
            "network, and replicas that are still added count as missing.",
            "Wait, or see its progress: gateway cluster describe",
            partitions=moving,
        )
    else:
        check.ok("No partition is being moved.")


def _judge_request_size(findings: Findings, settings: Settings, admin: AdminFacts) -> None:
    """A broker ends the connection on which a request above its limit comes."""
    check = findings.of("request_size")
    limits = _numbers(admin, "socket.request.max.bytes")
    if not limits:
        _skip(findings, "request_size", admin, _config_question(admin))
        return
    largest, least = largest_request(settings.kafka), min(limits.values())
    if low := [f"broker {node} takes {bytes_text(limit)}" for node, limit in limits.items() if limit < largest]:
        check.fail(
            f"A request of the gateway has up to {bytes_text(largest)}; {'; '.join(low)} (socket.request.max.bytes). "
            "Such a broker would end the connection, again and again.",
            "Raise socket.request.max.bytes; where kafka.batch_bytes or kafka.max_record_bytes is more than 1 MiB, "
            "lowering it helps, too.",
            status=ExitStatus.CONFIG,
        )
    else:
        check.ok(
            f"The largest request is {bytes_text(largest)}; brokers take {bytes_text(least)}.",
            largest=largest,
            limit=least,
        )


def _judge_message_size(findings: Findings, settings: Settings, known: Known, admin: AdminFacts) -> None:
    if not known.ours:
        findings.skip(("message_size",), "Not tried: none of the gateway's topics is there (topics).")
        return
    kafka = settings.kafka
    limits = {
        topic: int(config["max.message.bytes"])
        for topic, config in admin.topics.items()
        if config.get("max.message.bytes", "").isdigit()
    }
    check = findings.of("message_size", limits=limits)
    if not limits:
        _skip(findings, "message_size", admin, "config of topics")
        return
    small = [
        f"{topic}: {bytes_text(limit)}"
        for topic, limit in sorted(limits.items())
        if limit < max(kafka.batch_bytes, kafka.max_record_bytes)
    ]
    if small:
        check.warn(
            f"Topics that take smaller batches (max.message.bytes) than kafka.batch_bytes "
            f"({bytes_text(kafka.batch_bytes)}) or kafka.max_record_bytes ({bytes_text(kafka.max_record_bytes)}): "
            f"{some(small)}. Such batches are refused, split and sent again; larger records are dead-lettered.",
            "Raise max.message.bytes of these topics, or lower the two settings.",
        )
    else:
        check.ok(
            f"Topics take batches of {bytes_text(min(limits.values()))}; ours are {bytes_text(kafka.batch_bytes)}, a "
            f"record {bytes_text(kafka.max_record_bytes)}.",
        )


def _judge_auto_create(findings: Findings, settings: Settings, admin: AdminFacts) -> None:
    check = findings.of("auto_create")
    said = {node: config.get("auto.create.topics.enable") for node, config in admin.brokers.items()}
    on = sorted(node for node, value in said.items() if value == "true")
    if not said:
        _skip(findings, "auto_create", admin, _config_question(admin))
    elif on:
        also = "" if settings.kafka.topics.create else ", though kafka.topics.create is off"
        check.warn(
            f"Broker {some(on)} makes a topic of whatever name a client asks for{also}: a misspelt or deleted one "
            "comes to be with the brokers' default partitions, and nobody notices.",
            "Set auto.create.topics.enable = false on the brokers.",
        )
    else:
        check.ok("Brokers make no topics of their own accord (auto.create.topics.enable).")


def _judge_log_dirs(findings: Findings, admin: AdminFacts) -> None:
    check = findings.of("log_dirs")
    if admin.log_dirs is None:
        _skip(findings, "log_dirs", admin, "log dirs")
        return
    silent = [(one.id, one.why) for one in admin.log_dirs.unanswered]
    for node, why in silent:
        check.skip(f"Broker {node} was asked and did not tell: {why}")
    said, tight, broken, shares = [], [], [], []
    for node, folders in sorted(admin.log_dirs.by_broker.items()):
        for folder in folders:
            where = f"broker {node} {folder.path}"
            if folder.error:
                broken.append(f"{where} ({folder.error})")
                continue
            text = f"{where}: {bytes_text(folder.bytes)}"
            if folder.total_bytes and folder.usable_bytes is not None:
                share = folder.usable_bytes / folder.total_bytes
                shares.append(share)
                text += f", {bytes_text(folder.usable_bytes)} ({share:.0%}) free"
                if share < _DISK_WARN:
                    tight.append(f"{where}: {share:.0%} free")
            said.append(text)
    if broken or (shares and min(shares) < _DISK_FAIL):
        check.fail(
            f"Kafka's disks: {some(broken + tight)}.",
            "A broker whose disk is full or broken stops: make room (retention), or replace it; then restart it.",
        )
    elif tight:
        check.warn(f"Kafka's disks fill: {some(tight)}.", "Shorten retention, or add disks.")
    elif said:
        check.ok(f"{some(said)}.")
    elif not silent:
        check.skip("No broker told its disks.")


def _judge_offsets(findings: Findings, known: Known, admin: AdminFacts) -> None:
    """If ``__consumer_offsets`` only grows, it is not compacted: the log cleaner of a broker has died."""
    sizes: dict[int, int] = {}
    check = findings.of("consumer_offsets", bytes=sizes)
    assert known.layout is not None
    if _OFFSETS not in known.layout.topics:
        check.skip("There is no __consumer_offsets: no consumer group was here yet, or not ours to see.")
        return
    for node, folders in (admin.log_dirs.by_broker if admin.log_dirs is not None else {}).items():
        sizes[node] = sum(one.bytes for folder in folders for one in folder.replicas if one.topic == _OFFSETS)
    if not sizes:
        _skip(findings, "consumer_offsets", admin, "log dirs")
        return
    said = ", ".join(f"broker {node}: {bytes_text(size)}" for node, size in sorted(sizes.items()))
    large = sorted(node for node, size in sizes.items() if size > _OFFSETS_BYTES)
    if large:
        check.warn(
            f"__consumer_offsets has grown on broker {some(large)}, where compaction should keep it small ({said}): "
            "starting such a broker and taking over its groups takes long.",
            "Look for a dead log cleaner in its log (log-cleaner.log; metric uncleanable-partitions-count), and "
            "restart the broker.",
        )
    else:
        check.ok(f"__consumer_offsets is small: {said}.")


def _judge_groups(findings: Findings, known: Known, admin: AdminFacts, groups: Sequence[str]) -> None:
    """``groups`` are the names given by --group; those whose topics cannot be seen get the problem of that."""
    assert known.layout is not None
    if not groups:
        findings.of("groups").skip("No consumer group was asked for (--group NAME).")
        return
    for name in groups:
        group, problem = admin.groups.get(name), admin.problems.get(f"group {name}")
        if group is not None:
            text = (
                f"Group {name} is {group.state}, with {many(len(group.members), 'member')}; broker {group.coordinator} "
                f"coordinates it ({_OFFSETS}/{group.offsets_partition})"
            )
            facts: dict[str, Any] = {"coordinator": group.coordinator, "state": group.state}
            if name in admin.unseen:
                findings.of("groups", name).problem(unseen_problem(name, admin.unseen[name]), **facts)
            else:
                findings.of("groups", name).ok(f"{text}.", **facts)
        elif problem is not None:
            status = problem.exit_status if isinstance(problem, GatewayError) else ExitStatus.FAILED
            findings.of("groups", name).fail(
                f"The coordinator of group {name} cannot be asked: {problem}",
                "Its consumers cannot commit while its coordinator is away: look at that broker, not at the consumers.",
                status=status if status in {ExitStatus.UNAVAILABLE, ExitStatus.REFUSED} else ExitStatus.FAILED,
            )
        else:
            findings.of("groups", name).skip(f"Group {name}: there is no {_OFFSETS}, so no group yet.")


def _config_question(admin: AdminFacts) -> str:
    """The first failed question for a broker's configuration."""
    return next((name for name in sorted(admin.problems) if name.startswith(_CONFIG)), "")


def _numbers(admin: AdminFacts, name: str) -> dict[int, int]:
    return {node: int(config[name]) for node, config in admin.brokers.items() if config.get(name, "").isdigit()}

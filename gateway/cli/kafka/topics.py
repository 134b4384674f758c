"""``gateway topics``: Kafka's topics, and those of the settings."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from config.errors import ExitStatus
from config.numbers import many
from config.settings import Settings
from gateway.admin.deletion import deletion_forbidden, deletion_warnings, kafka_s_own
from gateway.admin.errors import AdminError, AdminRefusedError
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.model import ConfigEntry, Topic
from gateway.admin.topic_apply import apply, delete, needed_steps, refusals
from gateway.admin.topic_plan import Step, Wanted, templated, wanted_topics
from gateway.cli.arguments import duration, utf8
from gateway.cli.kafka.common import (
    CONFIG,
    add_change_options,
    answered_yes,
    audit_log,
    connected,
    mention_unanswered,
    require_topics,
)
from gateway.cli.parser import Commands, flag
from gateway.cli.table import mention, print_json, say, severity, table, tell

_TIMEOUT_S = 60.0


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "topics",
        "Kafka's topics, and the topics of this gateway's settings. list, describe and plan change nothing. apply and "
        "delete change Kafka after a question and write to admin.audit_file.",
        "examples:\n  gateway topics plan\n  gateway topics apply --yes\n  gateway topics describe telemetry\n"
        "  gateway topics delete old-topic",
        config=CONFIG,
    )
    listing = parsers.verb("list", _list, "every topic with its partitions and replicas")
    flag(listing, "--internal", "Kafka's own topics too (__consumer_offsets, …)")

    describe = parsers.verb("describe", _describe, "a topic's partitions, leaders and configuration")
    describe.add_argument("topics", nargs="+", type=utf8, metavar="TOPIC")

    planning = parsers.verb(
        "plan",
        _plan,
        "what apply would do",
        "kafka.topics.partitions and .replication are for new topics. An existing topic grows only when "
        "kafka.topics.declare names it with its partitions.",
    )
    flag(planning, "--check", "end with status 5 when something is to be done")

    applying = parsers.verb(
        "apply",
        _apply,
        "create and change Kafka's topics by the settings",
        "Partitions cannot be removed; replication is changed by kafka-reassign-partitions.sh or Cruise Control. "
        "Rights: Create and Alter on the topics, AlterConfigs for settings.",
    )
    deleting = parsers.verb("delete", _delete, "delete topics with all their records")
    deleting.add_argument("topics", nargs="+", type=utf8, metavar="TOPIC")
    for command in (applying, deleting):
        add_change_options(command)
        command.add_argument(
            "--timeout", type=duration, default=_TIMEOUT_S, metavar="LENGTH",
            help="longest time for retries and for the brokers to show it (default: 60s)",
        )  # fmt: skip


# --- looking ---


def _list(arguments: argparse.Namespace) -> int:
    """Every visible topic: partitions, replicas, and how many have no leader or lack replicas. Changes nothing."""
    with connected(arguments) as (_, admin):
        topics = [topic for topic in admin.topics() if arguments.internal or not topic.internal]
    if arguments.json:
        print_json({"topics": [_summary(topic) for topic in topics]})
        return ExitStatus.OK
    rows = [
        (row["name"], row["partitions"], row["replication"], row["leaderless"], row["under_replicated"],
         severity(_health(topic)))
        for topic, row in ((topic, _summary(topic)) for topic in topics)
    ]  # fmt: skip
    say(table(("TOPIC", "PARTITIONS", "REPLICATION", "NO LEADER", "UNDER-REPLICATED", "STATE"), rows)
        or "Kafka shows us no topic.")  # fmt: skip
    return ExitStatus.OK


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "leaderless": sum(one.leader is None for one in topic.partitions),
        "under_replicated": sum(one.under_replicated for one in topic.partitions),
    }


def _health(topic: Topic) -> Any:
    if any(one.leader is None for one in topic.partitions):
        return "FAIL"
    return "warn" if any(one.under_replicated for one in topic.partitions) else "ok"


def _describe(arguments: argparse.Namespace) -> int:
    """Each partition with its leader, replicas and in-sync replicas, and the topic's own settings. Changes nothing.
    Ends with status 4 when a topic does not exist."""
    with connected(arguments) as (_, admin):
        topics = admin.topics(arguments.topics)
        missing = sorted(set(arguments.topics) - {topic.name for topic in topics})
        configs, problem = _configs(admin, [topic.name for topic in topics])
    if arguments.json:
        print_json({"topics": [_summary(topic) | {"partitions": topic.partitions, "configs": configs.get(topic.name)}
                               for topic in topics], "missing": missing})  # fmt: skip
    else:
        for topic in topics:
            say(_described(topic, configs.get(topic.name, {})))
    if problem:
        mention(problem)
    require_topics(arguments.topics, topics)
    return ExitStatus.OK


def _configs(admin: KafkaAdmin, names: Sequence[str]) -> tuple[dict[str, dict[str, ConfigEntry]], str]:
    """The configurations, or why there are none (DescribeConfigs is a right of its own)."""
    try:
        return admin.configs("topic", names), ""
    except AdminRefusedError as error:
        return {}, str(error)


def _described(topic: Topic, configs: Mapping[str, ConfigEntry]) -> str:
    head = f"{topic.name}  ({many(len(topic.partitions), 'partition')}, replication {topic.replication}, id {topic.id})"
    told = any(one.elr is not None for one in topic.partitions)
    headers = ["PARTITION", "LEADER", "PREFERRED", "REPLICAS", "IN SYNC", *(["ELIGIBLE"] if told else []), "STATE"]
    rows = [
        [one.number, one.leader, one.preferred, _ids(one.replicas), _ids(one.isr),
         *([_ids(one.elr or ())] if told else []), _state(one)]
        for one in topic.partitions
    ]  # fmt: skip
    own = sorted((entry for entry in configs.values() if entry.source == "topic"), key=lambda entry: entry.name)
    lines = [head + "\n", table(headers, rows, indent="  ")]
    if own:
        lines.append("  set at the topic: " + ", ".join(f"{entry.name}={entry.value}" for entry in own) + "\n")
    for name in ("min.insync.replicas", "retention.ms", "cleanup.policy", "max.message.bytes"):
        entry = configs.get(name)
        if entry is not None and entry.source != "topic":
            lines.append(f"  {name}={entry.value} (from the {entry.source})\n")
    return "".join(lines)


def _state(one: Any) -> str:
    if one.leader is None:
        return f"{severity('FAIL')}: no leader; offline: {_ids(one.offline) or 'none'}"
    if one.under_replicated:
        return f"{severity('warn')}: replicas out of sync: {_ids(sorted(set(one.replicas) - set(one.isr)))}"
    return severity("ok")


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)


# --- planning and applying ---


def _plan(arguments: argparse.Namespace) -> int:
    """Compare the topics that the settings name (routes, dead letters, ledger, kafka.topics.declare) with Kafka, and
    say what apply would do. Kafka is asked whether the rights suffice; nothing is changed."""
    with connected(arguments) as (settings, admin):
        wanted = wanted_topics(settings)
        steps = needed_steps(admin, wanted)
        refused = refusals(admin, steps, wanted)
    _show(arguments, settings, steps, wanted, refused)
    return ExitStatus.INCOMPLETE if arguments.check and any(step.acts for step in steps) else ExitStatus.OK


def _show(
    arguments: argparse.Namespace,
    settings: Settings,
    steps: Sequence[Step],
    wanted: Sequence[Wanted],
    refused: Mapping[Step, str],
) -> None:
    used = {one.name: one.used_by for one in wanted}
    if arguments.json:
        data = [_step_data(step) | {"used_by": used[step.topic], "refused": refused.get(step)} for step in steps]
        print_json({"steps": data, "not_planned": dict(templated(settings))})
        return
    say(table(("TOPIC", "STEP", "WHAT", "USED BY"),
              [(step.topic, step.kind, step.text, ", ".join(used[step.topic])) for step in steps])
        or "The settings name no topic.")  # fmt: skip
    for step in steps:
        if step.warning:
            tell(f"\n{severity('warn')} {step.topic}: {step.warning}")
        if step in refused:
            tell(f"\n{severity('FAIL')} {step.topic}: Kafka would refuse it. {refused[step]}")
    for route, template in templated(settings):
        tell(f"\nNot planned: route {route} forms its topics from messages ({template}). Name them in "
            "kafka.topics.declare to create them.")  # fmt: skip
    actions = sum(step.acts for step in steps)
    if not actions:
        say("\nNothing to do.")
    elif arguments.run is _plan:
        say(f"\n{many(actions, 'step')} to take: gateway topics apply")
    else:
        say()


def _step_data(step: Step) -> dict[str, Any]:
    return {"topic": step.topic, "step": step.kind, "text": step.text, "warning": step.warning or None,
            "before": step.before or None, "after": step.after or None}  # fmt: skip


def _apply(arguments: argparse.Namespace) -> int:
    """Do the steps of plan, and return when every broker shows them. A repetition is harmless: after an interruption,
    or a controller's failure, it does the remaining steps. Ends with status 5 when a step is not done."""
    with connected(arguments) as (settings, admin):
        wanted = wanted_topics(settings)
        steps = needed_steps(admin, wanted)
        actions = [step for step in steps if step.acts]
        if arguments.dry_run or (actions and not arguments.yes and not arguments.json):
            _show(arguments, settings, steps, wanted, refusals(admin, steps, wanted))
        if arguments.dry_run:
            return ExitStatus.OK
        if actions and not answered_yes(arguments, f"Take {many(len(actions), 'step')}?"):
            say("Nothing was done.")
            return ExitStatus.OK
        audit = audit_log(settings, admin, "gateway topics apply")
        tell = mention if arguments.json else say
        result = apply(admin, wanted, audit, arguments.timeout, tell=tell)
    differs = [step for step in steps if step.kind == "differs"]
    if arguments.json:
        print_json({
            "done": [_step_data(step) for step in result.done],
            "differs": [_step_data(step) for step in differs],
            "left": [_step_data(step) | {"why": why} for step, why in result.left.items()],
            "behind": result.behind,
            "fenced": result.fenced,
        })  # fmt: skip
    else:
        for step in differs:
            tell(f"{severity('warn')} {step.topic}: {step.text}.")
        _say_applied(result, audit.path, matches=not differs)
    return ExitStatus.INCOMPLETE if result.left or result.behind else ExitStatus.OK


def _say_applied(result: Any, audit: Any, *, matches: bool) -> None:
    """``matches``: there is no difference that no step can correct."""
    for step, why in result.left.items():
        tell(f"{severity('FAIL')} {step.kind} {step.topic}: not done. {why}")
    for sentence in result.behind:
        tell(f"{severity('warn')} not everywhere yet: {sentence}")
    for number in result.fenced:
        tell(f"{severity('warn')} broker {number} is fenced: it reads the change before it serves clients again")
    if not result.left and not result.behind:
        nothing = "Nothing to do: Kafka matches the settings." if matches else "Nothing that apply can do."
        tell("Every broker shows it." if result.done else nothing)
    if result.done:
        tell(f"Written to {audit}.")


# --- deleting ---


def _delete(arguments: argparse.Namespace) -> int:
    """Delete topics, and return when no broker shows them any more. This cannot be undone. Ends with status 4 when a
    topic does not exist, 5 when a broker still shows one, or shows it again."""
    with connected(arguments) as (settings, admin):
        if (why := kafka_s_own(arguments.topics)) is not None:
            raise AdminError(why)
        found = {topic.name: topic for topic in admin.topics(arguments.topics)}
        require_topics(arguments.topics, found.values(), " Nothing was done.")
        brokers = admin.broker_configs(["delete.topic.enable", "auto.create.topics.enable"])
        if (why := deletion_forbidden(brokers.by_broker)) is not None:
            raise AdminError(why)
        mention_unanswered(brokers.unanswered)
        warnings = deletion_warnings(settings, list(found), brokers.by_broker)
        for warning in warnings:
            mention(f"{severity('warn', sys.stderr)}: {warning}")
        what = ", ".join(f"{name} ({many(len(topic.partitions), 'partition')})" for name, topic in found.items())
        if arguments.dry_run:
            say(f"Would delete {what}.")
            return ExitStatus.OK
        if not answered_yes(arguments, f"Delete {what} with every record in it?"):
            say("Nothing was done.")
            return ExitStatus.OK
        audit = audit_log(settings, admin, "gateway topics delete")
        left: dict[str, tuple[str, ...]] = {}
        for name, topic in found.items():
            try:
                left[name] = delete(admin, topic, audit, arguments.timeout, tell=mention)
            except AdminError as error:
                if not left:
                    raise  # nothing was done
                left[name] = (str(error),)
    if arguments.json:
        print_json({"deleted": [name for name in left if not left[name]],
                    "left": {name: why for name, why in left.items() if why}, "warnings": warnings})  # fmt: skip
    else:
        for name, sentences in left.items():
            tell(f"No broker shows {name} any more." if not sentences
                else "\n".join(f"{severity('FAIL')} {name}: {sentence}" for sentence in sentences))  # fmt: skip
        tell(f"Written to {audit.path}.")
    return ExitStatus.INCOMPLETE if any(left.values()) else ExitStatus.OK

"""``gateway groups``: consumer groups, their coordinators, members and lag."""

import argparse
import sys
import time
from typing import Any, Final

from config.errors import ExitStatus
from config.numbers import length_text, many
from gateway.admin.errors import AdminRetriableError
from gateway.admin.groups import offsets_partition
from gateway.admin.lag import GroupLag, Look, PartitionLag
from gateway.admin.looking import judged, look
from gateway.admin.model import Group
from gateway.cli.arguments import a_second_or_more, duration, utf8
from gateway.cli.kafka.common import CONFIG, connected, mention_unanswered
from gateway.cli.parser import Commands, repeated
from gateway.cli.table import as_data, mention, print_json, say, severity, table, tell

_SAMPLE_S: Final = 6.0  # consumers commit every five seconds unless told otherwise (auto.commit.interval.ms)
_WATCH_S: Final = 6.0
_STATES: Final = {
    "PreparingRebalance": "Preparing Rebalance", "CompletingRebalance": "Completing Rebalance"
}  # fmt: skip
_WIDE: Final = 12  # members whose partitions are shown in full


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "groups",
        "The readers of the gateway's records. Changes nothing. The Spark jobs show their offsets in groups without "
        "members, gateway-stream-JOB. They start from their checkpoints (gateway stream status).",
        "examples:\n  gateway groups list\n  gateway groups describe billing --watch",
        config=CONFIG,
    )
    listing = parsers.verb(
        "list",
        _list,
        "every group with its state and coordinator",
        "States: Preparing Rebalance, Completing Rebalance, Stable, Dead, Empty (the classic ones); Assigning, "
        "Reconciling and NotReady besides, in groups of Kafka 4's own protocol.",
    )
    repeated(listing, "--state", "STATE", "groups in this state; may be repeated")
    rights = "Rights: Describe on the group and its topics; Read on the topics for the lag in seconds."
    describe = parsers.verb("describe", _describe, "a group's members, offsets, lag, and whether it moves", rights)
    describe.add_argument("group", type=utf8, metavar="GROUP")
    describe.add_argument(
        "--sample", type=duration, default=_SAMPLE_S, metavar="LENGTH",
        help="time between the two looks; a consumer that commits less often seems stopped (default: 6s; 0s: look "
        "once)",
    )  # fmt: skip
    describe.add_argument(
        "--watch", type=a_second_or_more, nargs="?", const=_WATCH_S, metavar="LENGTH",
        help="look repeatedly with this pause (default: 6s; at least 1s), until Ctrl-C",
    )  # fmt: skip


def _list(arguments: argparse.Namespace) -> int:
    """Every visible group: state, kind, the broker that coordinates it and the partition of __consumer_offsets with its
    offsets."""
    with connected(arguments) as (_, admin):
        answers = admin.groups()
        partitions = admin.offsets_partitions() if any(answers.by_broker.values()) else 1
    groups = sorted((one for found in answers.by_broker.values() for one in found), key=lambda one: one.id)
    if arguments.state:
        wanted = {_plain(state) for state in arguments.state}
        groups = [one for one in groups if _plain(one.state) in wanted]
    place = {one.id: offsets_partition(one.id, partitions) for one in groups}
    if arguments.json:
        print_json({"groups": [as_data(one) | {"offsets_partition": place[one.id]} for one in groups],
                    "unanswered": answers.unanswered})  # fmt: skip
    else:
        rows = [(one.id, one.type or one.protocol_type, state(one.state), one.coordinator,
                 f"__consumer_offsets/{place[one.id]}") for one in groups]  # fmt: skip
        say(table(("GROUP", "TYPE", "STATE", "COORDINATOR", "OFFSETS IN"), rows)
            or ("No group is in such a state." if arguments.state else "Kafka shows us no group."))  # fmt: skip
    mention_unanswered(answers.unanswered)
    return ExitStatus.INCOMPLETE if answers.unanswered else ExitStatus.OK


def state(name: str) -> str:
    """A state as Kafka's documentation writes it."""
    return _STATES.get(name, name)


def _plain(name: str) -> str:
    return name.replace(" ", "").replace("_", "").lower()


def _describe(arguments: argparse.Namespace) -> int:
    """A group's coordinator, members and, for each partition, how far it is behind: in records, and in seconds as the
    age of the oldest unfinished record. A group that lags is looked at twice, to see whether a consumer has stopped or
    is slow. Ends with status 4 when there is no such group, 5 when something has stopped or is unknown."""
    with connected(arguments) as (_, admin):
        if arguments.watch is None:
            return _describe_once(arguments, admin)
        before: Look | None = None
        while True:
            before = _look_again(arguments, admin, before)
            time.sleep(arguments.watch)


def _describe_once(arguments: argparse.Namespace, admin: Any) -> int:
    """Look at the group, and if it lags once more, to see whether it moves; returns the exit status."""
    first = look(admin, arguments.group)
    second: Look | None = None
    lags = any(
        end > max(first.committed.get(place, 0), first.starts.get(place, 0)) for place, end in first.ends.items()
    )
    if lags and first.group.members and arguments.sample:
        if sys.stderr.isatty():
            mention(f"the group lags; the next look is in {arguments.sample:g} s (--sample)")
        time.sleep(arguments.sample)
        second = look(admin, arguments.group)
    last = second or first
    found = judged(admin, last, first if second else None)
    _print(arguments, found)
    _mention_unseen(last)
    unknown = [one for one in found.partitions if one.state == "unknown"]
    return ExitStatus.INCOMPLETE if found.bad or unknown or last.unseen else ExitStatus.OK


def _mention_unseen(seen: Look) -> None:
    if seen.unseen:
        mention(f"group {seen.group.id} cannot be judged: {seen.unseen}.")


def _look_again(arguments: argparse.Namespace, admin: Any, before: Look | None) -> Look | None:
    """Look at the group, print it beside the look ``before``, and return this look, for the next call."""
    try:
        now = look(admin, arguments.group)
        found = judged(admin, now, before)
    except AdminRetriableError as error:
        mention(str(error))
        return before
    if arguments.json:
        print_json(_data(found), indent=None)
    else:
        if sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")
        say(time.strftime("%H:%M:%SZ", time.gmtime()))
        _print(arguments, found)
        sys.stdout.flush()
    _mention_unseen(now)
    return now


# --- output ---


def _print(arguments: argparse.Namespace, found: GroupLag) -> None:
    if arguments.json:
        print_json(_data(found))
        return
    group = found.group
    place = f"__consumer_offsets/{group.offsets_partition} (of {group.offsets_partitions})"
    say(f"group {group.id}: {state(group.state)}, {group.type}, {many(len(group.members), 'member')}, "
        f"coordinator broker {group.coordinator}, offsets in {place}\n")  # fmt: skip
    say(_members(group))
    rows = [
        (one.place, one.committed, one.end, one.lag, None if one.age_seconds is None else length_text(one.age_seconds),
         one.member.client_id if one.member else None, _words(one))
        for one in found.partitions
    ]  # fmt: skip
    say(table(("PARTITION", "COMMITTED", "LOG END", "LAG", "BEHIND", "MEMBER", "STATE"), rows)
        or "The group shows no topic.")  # fmt: skip
    if found.partitions:
        behind = f", {length_text(found.age_seconds)} behind" if found.age_seconds is not None else ""
        say(f"\ntotal lag {found.lag} records{behind}")
    tell(_verdict(found))


def _members(group: Group) -> str:
    rows = []
    for one in group.members:
        by_topic: dict[str, list[int]] = {}
        for place in one.assignment:
            by_topic.setdefault(place.topic, []).append(place.partition)
        shown = "; ".join(f"{topic}: {_numbers(numbers)}" for topic, numbers in by_topic.items())
        moving = one.target is not None and one.target != one.assignment
        rows.append((one.client_id, one.host.removeprefix("/"), one.instance_id, one.id, shown or "nothing",
                     "gets another assignment" if moving else ""))  # fmt: skip
    text = table(("CLIENT", "HOST", "INSTANCE", "MEMBER", "HAS", ""), rows)
    return text + "\n" if text else ""


def _numbers(numbers: list[int]) -> str:
    if len(numbers) <= _WIDE:
        return ",".join(map(str, numbers))
    return ",".join(map(str, numbers[:_WIDE])) + f",… ({len(numbers)})"


def _words(one: PartitionLag) -> str:
    match one.state:
        case "caught up":
            return severity("ok")
        case "catching up" | "moving":
            soon = f", done in {length_text(one.seconds_to_catch_up)}" if one.seconds_to_catch_up is not None else ""
            return f"{severity('ok')}: {one.state}, {one.read_rate:.0f}/s{soon}"
        case "slow":
            return f"{severity('warn')}: slow, reads {one.read_rate:.0f}/s of {one.write_rate:.0f}/s"
        case "behind" | "rebalancing":
            return f"{severity('warn')}: {one.state}"
        case "unknown":
            return f"{severity('warn')}: {one.problem or 'Kafka does not report its offsets'}"
        case "lost records":
            return f"{severity('FAIL')}: {one.lost} records were deleted unread (retention)"
        case "stopped":
            return f"{severity('FAIL')}: stopped, commits nothing"
        case "nobody reads it":
            return f"{severity('FAIL')}: nobody reads it"


def _verdict(found: GroupLag) -> str:
    group = found.group
    if not found.bad:
        return ""
    stopped = [one for one in found.bad if one.state == "stopped"]
    if group.members and stopped:
        clients = sorted({one.member.client_id for one in stopped if one.member})
        return (
            f"{severity('FAIL')} {', '.join(clients)} is in the group and commits nothing for "
            f"{many(len(stopped), 'partition')}: it hangs, fails on a record, or commits less often than --sample. "
            "Check its log. A restart of the gateway or Kafka does not help."
        )
    if not group.members:
        return (
            f"{severity('FAIL')} the group has no member: its consumer does not run. Start it; Kafka keeps its offsets."
        )
    return f"{severity('FAIL')} see the partitions with this mark."


def _data(found: GroupLag) -> dict[str, Any]:
    return {
        "group": as_data(found.group),
        "lag": found.lag,
        "age_seconds": found.age_seconds,
        "partitions": [
            {
                "topic": one.place.topic,
                "partition": one.place.partition,
                "committed": one.committed,
                "log_start": one.start,
                "log_end": one.end,
                "lag": one.lag,
                "lost": one.lost,
                "age_seconds": one.age_seconds,
                "member": one.member.id if one.member else None,
                "read_per_second": one.read_rate,
                "written_per_second": one.write_rate,
                "state": one.state,
                "problem": one.problem or None,
            }
            for one in found.partitions
        ],
    }

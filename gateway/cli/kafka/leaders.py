"""``gateway leaders``: the partitions that each broker leads, and the election of preferred leaders."""

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

from config.errors import ExitStatus
from config.numbers import many
from config.settings import Settings
from gateway.admin.changes import Election
from gateway.admin.errors import AdminError, AdminRetriableError
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.leadership import BrokerLeadership, leadership, not_preferred
from gateway.admin.model import Partition, Topic, TopicPartition
from gateway.cli.arguments import utf8
from gateway.cli.kafka.common import (
    CONFIG,
    add_change_options,
    answered_yes,
    audit_log,
    connected,
    require_topics,
)
from gateway.cli.parser import Commands, repeated
from gateway.cli.table import mention, print_json, say, severity, table, tell

_SHOWN: Final = 20
_LIMIT: Final = 0.10  # leader.imbalance.per.broker.percentage by default
_SETTLE_S: Final = 10.0  # until metadata shows an election
_POLL_S: Final = 0.2


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "leaders",
        "After a stop of a broker, others lead its partitions: it idles, and they have its load. Kafka gives them back "
        "within five minutes (auto.leader.rebalance.enable), or at once with elect.",
        "examples:\n  gateway leaders show\n  gateway leaders elect --topic telemetry --yes",
        config=CONFIG,
    )
    show = parsers.verb("show", _show, "partitions led by each broker, and the imbalance")
    right = "Right: Alter on the cluster."
    elect = parsers.verb("elect", _elect, "give partitions back to their preferred leaders", right)
    add_change_options(elect)
    for command in (show, elect):
        repeated(command, "--topic", "NAME", "this topic alone; may be repeated (default: all)", type=utf8)


def _topics(admin: KafkaAdmin, arguments: argparse.Namespace) -> tuple[Topic, ...]:
    topics = admin.topics(arguments.topic or None)
    require_topics(arguments.topic, topics)
    return topics


def _show(arguments: argparse.Namespace) -> int:
    """For each broker: the partitions that it leads, those that it should lead (first replicas), and the share that
    others lead, as Kafka's controller computes it. Changes nothing."""
    with connected(arguments) as (_, admin):
        topics = _topics(admin, arguments)
        brokers = leadership(topics, admin.brokers())
    elsewhere = not_preferred(topics)
    if arguments.json:
        print_json(_data(brokers, elsewhere))
        return ExitStatus.OK
    say(_table(brokers))
    say(_not_preferred_text(elsewhere) if topics else "Kafka shows us no topic.")
    return ExitStatus.OK


def _data(brokers: Sequence[BrokerLeadership], elsewhere: Sequence[tuple[TopicPartition, Partition]]) -> dict[str, Any]:
    return {
        "brokers": [
            {"broker": one.broker, "leads": one.leads, "preferred": one.preferred, "elsewhere": one.elsewhere,
             "replicas": one.replicas, "imbalance": round(one.imbalance, 4)}
            for one in brokers
        ],
        "not_preferred": [
            {"topic": place.topic, "partition": place.partition, "leader": one.leader, "preferred": one.preferred,
             "in_sync": one.preferred in one.isr}
            for place, one in elsewhere
        ],
    }  # fmt: skip


def _table(brokers: Sequence[BrokerLeadership]) -> str:
    rows = [
        (one.broker, one.leads, one.preferred, one.elsewhere, one.replicas, f"{one.imbalance:.1%}",
         severity("warn" if one.imbalance > _LIMIT else "ok"))
        for one in brokers
    ]  # fmt: skip
    return table(("BROKER", "LEADS", "PREFERRED", "LED ELSEWHERE", "REPLICAS", "IMBALANCE", "STATE"), rows)


def _not_preferred_text(elsewhere: Sequence[tuple[TopicPartition, Partition]]) -> str:
    if not elsewhere:
        return "Every partition is led by its preferred leader."
    rows = [
        (place, one.leader, one.preferred, "yes" if one.preferred in one.isr else "no: it must catch up first")
        for place, one in elsewhere[:_SHOWN]
    ]
    more = len(elsewhere) - _SHOWN
    text = f"\n{many(len(elsewhere), 'partition')} not led by the preferred leader:\n"
    text += table(("PARTITION", "LEADER", "PREFERRED", "PREFERRED IS IN SYNC"), rows, indent="  ")
    return text + (f"  … and {more} more\n" if more > 0 else "")


def _elect(arguments: argparse.Namespace) -> int:
    """Elect the preferred replica of each partition where it is in sync and does not lead. It is never an unclean
    election, so nothing is lost. Producers and consumers of those partitions pause for some milliseconds. Ends with
    status 5 when some could not be elected."""
    with connected(arguments) as (settings, admin):
        topics = _topics(admin, arguments)
        before = leadership(topics, admin.brokers())
        wanted = not_preferred(topics)
        if not arguments.json:
            say(_table(before))
            say(_not_preferred_text(wanted))
        ready = [place for place, one in wanted if one.preferred in one.isr]
        if not ready or arguments.dry_run:
            return _report_without_election(arguments, before, wanted, ready)
        if not answered_yes(arguments, f"Give {many(len(ready), 'partition')} to the preferred leader?"):
            say("Nothing was done.")
            return ExitStatus.OK
        election = _elect_audited(settings, admin, {place: one for place, one in wanted if place in ready})
        left = _wait_shown(admin, arguments, set(election.elected))
        after = leadership(_topics(admin, arguments), admin.brokers())
    if arguments.json:
        print_json({"before": _data(before, wanted)["brokers"], "after": _data(after, ())["brokers"],
                    "elected": election.elected, "not_needed": election.not_needed,
                    "failed": {str(place): why for place, why in election.failed.items()},
                    "not_seen_yet": [str(place) for place in sorted(left)]})  # fmt: skip
    else:
        say(f"\n{many(len(election.elected), 'leader')} elected. After it:")
        say(_table(after))
        for place, why in election.failed.items():
            tell(f"{severity('FAIL')} {place}: {why}")
        if left:
            tell(f"{severity('warn')} not seen in the metadata yet: {', '.join(str(place) for place in sorted(left))}")
    return ExitStatus.INCOMPLETE if election.failed or left or len(ready) < len(wanted) else ExitStatus.OK


def _report_without_election(
    arguments: argparse.Namespace,
    before: Sequence[BrokerLeadership],
    wanted: Sequence[tuple[TopicPartition, Partition]],
    ready: Sequence[TopicPartition],
) -> int:
    """For --dry-run, or if none of the ``wanted`` partitions is ``ready``: its preferred leader is in sync."""
    if arguments.json:
        print_json(_data(before, wanted) | {"elected": [], "would_elect": [str(place) for place in ready]})
    elif ready:
        say(f"Would give {many(len(ready), 'partition')} to the preferred leader.")
    elif wanted:
        mention("Nothing can be elected: the preferred leaders are not in sync.")
    return ExitStatus.INCOMPLETE if wanted and not ready else ExitStatus.OK


def _elect_audited(settings: Settings, admin: KafkaAdmin, wanted: dict[TopicPartition, Partition]) -> Election:
    audit = audit_log(settings, admin, "gateway leaders elect")
    before = {str(place): one.leader for place, one in wanted.items()}
    after = {str(place): one.preferred for place, one in wanted.items()}
    entry = audit.begin("leaders.elect", many(len(wanted), "partition"), before, after)
    try:
        election = admin.elect(wanted)
    except AdminError as error:
        entry.failed(error, unknown=isinstance(error, AdminRetriableError))
        raise
    entry.done(
        {"elected": [str(place) for place in election.elected],
         "failed": {str(place): why for place, why in election.failed.items()}}
    )  # fmt: skip
    mention(f"written to {audit.path}")
    return election


def _wait_shown(admin: KafkaAdmin, arguments: argparse.Namespace, elected: set[TopicPartition]) -> set[TopicPartition]:
    """Wait until the metadata show the new leaders. Returns the partitions that they do not show in time."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        left = elected & {place for place, _ in not_preferred(_topics(admin, arguments))}
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_S)

"""Changes Kafka's topics to match the settings: looks, acts, looks again.

Steps that an interrupted attempt has taken are not planned again. So after a failure of the controller or of this
process, a repetition is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.admin.changes import NewTopic
from gateway.admin.errors import AdminError, AdminMissingError, AdminRetriableError
from gateway.admin.everywhere import wait_everywhere
from gateway.admin.topic_plan import Step, Wanted, plan

if TYPE_CHECKING:
    from gateway.admin.audit import AuditLog
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import Topic

_BACKOFF_S: Final = 0.5
_SETTLE_S: Final = 3.0  # a broker may show the former state for a moment; a step is repeated only after this
_NOT_SHOWN: Final = "Kafka accepted it, but a broker still shows the former state."
_MADE_ANEW: Final = (
    "the topic was deleted, and was created again with another id: by a broker when a client used it "
    "(auto.create.topics.enable), or by a running gateway with kafka.topics.create"
)


@dataclass
class Applied:
    """The result. ``left``: steps that were not taken, each with its reason. ``behind``: sentences about brokers that
    do not show the final state yet. Both are empty after a success."""

    done: list[Step] = field(default_factory=list)
    left: dict[Step, str] = field(default_factory=dict)
    behind: tuple[str, ...] = ()
    fenced: tuple[int, ...] = ()


def needed_steps(admin: KafkaAdmin, wanted: Iterable[Wanted]) -> tuple[Step, ...]:
    """The plan for these topics as Kafka has them now. Raises AdminError."""
    wanted = tuple(wanted)
    there = {topic.name: topic for topic in admin.topics(topic.name for topic in wanted)}
    asked = [topic.name for topic in wanted if topic.name in there and topic.configs]
    try:
        configs = admin.configs("topic", asked)
    except AdminMissingError as error:  # deleted meanwhile
        raise AdminRetriableError(str(error)) from error
    return plan(wanted, there, configs)


def act(admin: KafkaAdmin, step: Step, wanted: Mapping[str, Wanted], *, validate_only: bool = False) -> None:
    """Take one step, or with ``validate_only`` let Kafka check it. Raises AdminError."""
    match step.kind:
        case "create":
            one = wanted[step.topic]
            new = NewTopic(one.name, int(str(step.after["partitions"])), one.replication, one.configs)
            if not admin.create_topic(new, validate_only=validate_only):
                raise AdminRetriableError(
                    f"Topic {step.topic} exists, but Kafka does not show it: not yet, or because the right to Describe "
                    "it is missing."
                )
        case "grow":
            admin.add_partitions(step.topic, wanted[step.topic].partitions, validate_only=validate_only)
        case "configure":
            changes = {key: str(value) for key, value in step.after.items()}
            admin.alter_topic(step.topic, changes, validate_only=validate_only)
        case "differs" | "nothing":
            pass


def refusals(admin: KafkaAdmin, steps: Iterable[Step], wanted: Iterable[Wanted]) -> dict[Step, str]:
    """Steps that Kafka would refuse, with its reasons. Uses ``validate_only``, so nothing is changed."""
    by_name = {topic.name: topic for topic in wanted}
    refused = {}
    for step in steps:
        if step.acts:
            try:
                act(admin, step, by_name, validate_only=True)
            except AdminError as error:
                refused[step] = str(error)
    return refused


def apply(
    admin: KafkaAdmin,
    wanted: Iterable[Wanted],
    audit: AuditLog,
    timeout_s: float,
    *,
    tell: Callable[[str], None] = lambda _text: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Applied:
    """Take all planned steps until none is left, and wait until every broker shows the final state. ``tell`` receives a
    line about each step. Raises AuditError; Kafka's refusals are in the result."""
    wanted = tuple(wanted)
    by_name = {topic.name: topic for topic in wanted}
    deadline = monotonic() + timeout_s
    result = Applied()
    refused: dict[Step, str] = {}
    taken: dict[Step, float] = {}
    unsure: dict[Step, None] = {}  # Kafka gave no answer
    while True:
        again = ""
        try:
            steps = [step for step in needed_steps(admin, wanted) if step.acts]
        except AdminRetriableError as error:
            steps, again = [], str(error)
        else:
            for step in [one for one in unsure if one not in steps]:
                _note(step, result, tell)
                taken[step] = monotonic()
                del unsure[step]
        for step in steps:
            if step in refused:
                continue
            if step in taken and monotonic() - taken[step] < _SETTLE_S:
                again = again or _NOT_SHOWN
                continue
            again = _take(admin, step, by_name, audit, result, refused, tell) or again
            if step in result.done:
                taken[step] = monotonic()
                unsure.pop(step, None)
            elif step not in refused:
                unsure[step] = None
        if not again:
            until = deadline if result.done else monotonic()  # without a change there is nothing to wait for
            everywhere = wait_everywhere(
                admin, by_name, _end_state(admin, by_name, result.done), until, monotonic=monotonic, sleep=sleep
            )
            result.behind, result.fenced = everywhere.behind, everywhere.fenced
            still = _steps_still_needed(admin, wanted)
            if everywhere.behind or (
                still is not None and not [step for step in still if step.acts and step not in refused]
            ):
                break
        if monotonic() >= deadline:
            result.left |= dict.fromkeys((step for step in steps if step not in refused), again)
            result.behind = result.behind or ((again,) if not steps else ())
            break
        if again:
            if again is not _NOT_SHOWN:
                tell(f"not yet: {again} Trying again")
            sleep(_BACKOFF_S)
    still = _steps_still_needed(admin, wanted) if refused else ()
    result.left |= {step: why for step, why in refused.items() if still is None or step in still}
    return result


def _steps_still_needed(admin: KafkaAdmin, wanted: tuple[Wanted, ...]) -> tuple[Step, ...] | None:
    """The present steps; None while Kafka does not answer."""
    try:
        return needed_steps(admin, wanted)
    except AdminRetriableError:
        return None


def _take(
    admin: KafkaAdmin,
    step: Step,
    wanted: Mapping[str, Wanted],
    audit: AuditLog,
    result: Applied,
    refused: dict[Step, str],
    tell: Callable[[str], None],
) -> str:
    """Take a step with its audit. Returns why it must be checked again, or an empty text."""
    entry = audit.begin(f"topic.{step.kind}", step.topic, step.before, step.after)
    try:
        act(admin, step, wanted)
    except AdminRetriableError as error:
        entry.failed(error, unknown=True)
        return str(error)
    except AdminError as error:
        entry.failed(error)
        refused[step] = str(error)
        return ""
    entry.done(step.after)
    _note(step, result, tell)
    return ""


def _note(step: Step, result: Applied, tell: Callable[[str], None]) -> None:
    result.done.append(step)
    tell(f"{step.kind} {step.topic}: {step.text}")


def _end_state(admin: KafkaAdmin, names: Iterable[str], steps: Iterable[Step]) -> Callable[[Mapping[str, Topic]], bool]:
    """A test whether a broker's metadata have these topics with as many partitions; changed ones with a leader for
    each partition."""
    fresh = {step.topic: step.after["partitions"] for step in steps if "partitions" in step.after}
    try:
        counts = {topic.name: len(topic.partitions) for topic in admin.topics(names)}
    except AdminRetriableError:
        counts = {}
    for name, count in fresh.items():
        counts[name] = max(counts.get(name, 0), int(str(count)))

    def shows(found: Mapping[str, Topic]) -> bool:
        """Whether a broker's metadata have the topics and their partitions, and leaders of changed topics."""
        return all(
            name in found
            and len(found[name].partitions) >= count
            and not (name in fresh and any(one.leader is None for one in found[name].partitions))
            for name, count in counts.items()
        )

    return shows


def delete(
    admin: KafkaAdmin,
    topic: Topic,
    audit: AuditLog,
    timeout_s: float,
    *,
    tell: Callable[[str], None] = lambda _text: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Delete a topic and wait until no broker shows it. Returns sentences about what failed; none after a success.
    Raises AdminError if Kafka refuses, and AuditError."""
    deadline = monotonic() + timeout_s
    before = {"id": topic.id, "partitions": len(topic.partitions), "replication": topic.replication}
    while True:
        entry = audit.begin("topic.delete", topic.name, before, None)
        try:
            admin.delete_topic(topic.name)
        except AdminMissingError:
            entry.done({"note": "it was gone already"})
        except AdminRetriableError as error:
            entry.failed(error, unknown=True)
            if monotonic() >= deadline:
                raise
            tell(f"not yet: {error} Trying again")
            sleep(_BACKOFF_S)
            if _gone(admin, topic):
                break
            continue
        except AdminError as error:
            entry.failed(error)
            raise
        else:
            entry.done()
        break
    everywhere = wait_everywhere(
        admin, [topic.name], lambda found: topic.name not in found or found[topic.name].id != topic.id, deadline,
        monotonic=monotonic, sleep=sleep,
    )  # fmt: skip
    if everywhere.behind:
        return everywhere.behind
    if admin.topics([topic.name]):
        return (_MADE_ANEW,)
    return ()


def _gone(admin: KafkaAdmin, topic: Topic) -> bool:
    """Whether this topic is deleted, also if a new one has its name; False while Kafka does not answer."""
    try:
        found = admin.topics([topic.name])
    except AdminRetriableError:
        return False
    return not found or found[0].id != topic.id

"""The watch of the consumer groups in ``admin.watch_groups``: a stopped reader is a problem of the gateway.

Worker 0 looks every ``admin.watch_interval``, in a thread, since Kafka's administration blocks. The first look imports
kafka-python.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.waiting import end_tasks
from config.errors import GatewayError, forget_frames
from gateway.base.problem import Problem

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.lag import GroupLag, Look, State
    from gateway.base.metrics import Metrics

log = structlog.get_logger("consumers")

_FIRST_LOOK_S: Final = 5.0  # the start does not wait for the client's import
_FAILED_LOOKS: Final = 3
_GRAVEST: Final[tuple[State, ...]] = (
    "lost records", "nobody reads it", "stopped", "slow", "behind", "rebalancing", "moving", "catching up", "unknown",
    "caught up",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A group's lag in one topic. ``seconds`` is the age of the oldest unfinished record, or if unknown how long the
    group has lagged. ``client`` is a member with a partition in the worst state."""

    group: str
    topic: str
    records: int
    lost: int
    seconds: float
    state: State
    members: int
    client: str = ""


class GroupWatch:
    """A component of the service; belongs to the event loop's thread. A failure is logged and becomes a problem; it
    never affects messages."""

    name: Final = "consumer watch"

    def __init__(
        self, settings: Settings, metrics: Metrics, *, connect: Callable[[Settings], KafkaAdmin] | None = None
    ) -> None:
        self._settings = settings
        self._groups = settings.admin.watch_groups
        self._limit_s = settings.admin.watch_lag.total_seconds()
        self._metrics = metrics
        self._connect = connect or _connected
        self._admin: KafkaAdmin | None = None  # used by the looking thread; also closed by the event loop
        self._looks: dict[str, Look] = {}  # only the looking thread uses it
        self._behind_since: dict[tuple[str, str], float] = {}  # by group and topic, on the monotonic clock
        self._lags: dict[str, GroupLag] = {}
        self._topics: tuple[TopicLag, ...] = ()
        self._unseen: dict[str, tuple[int, str]] = {}  # failed looks in a row, and why; the looking thread writes it
        self._failed = 0  # looks in a row
        self._failure = ""
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        metrics.consumer_lag_records.watch_rows(self._rows)
        metrics.consumer_lag_seconds.watch_rows(
            lambda: {(one.group, one.topic): one.seconds for one in self._topics if one.state != "unknown"}
        )

    async def start(self) -> None:
        """Returns at once."""
        self._task = asyncio.create_task(self._run(), name="consumer watch")

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - closing ends a look that waits
        self._stopped = True
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
        await end_tasks(self._task)
        self._lags, self._topics = {}, ()  # removes the metrics' series

    async def _run(self) -> None:
        interval_s = self._settings.admin.watch_interval.total_seconds()
        await asyncio.sleep(min(_FIRST_LOOK_S, interval_s))
        while True:
            began_s = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def look(self) -> None:
        """Ask Kafka once and note the answer. Never raises."""
        try:
            found = await asyncio.to_thread(self._read_lags)
        except GatewayError as error:
            self._failed_to_look(error)
            return
        except Exception as error:  # a defect here must not end the worker
            log.exception("consumer_look_broken", repeat_key="consumer_look_broken")
            self._failed_to_look(error)
            return
        if self._failed:
            log.info("consumers_watched", groups=list(self._groups))
        self._failed, self._failure = 0, ""
        self._lags = found
        self._topics = tuple(lag_by_topic(found.values(), self._behind_since, time.monotonic()))

    def _read_lags(self) -> dict[str, GroupLag]:
        """The lag of every watched group that Kafka knows. Runs in a thread."""
        from gateway.admin.errors import AdminError, AdminMissingError
        from gateway.admin.looking import judged, look

        admin = self._admin = self._admin or self._connect(self._settings)
        try:
            found: dict[str, GroupLag] = {}
            for group in self._groups:
                try:
                    now = look(admin, group)
                except AdminMissingError as error:  # perhaps misspelt, or its offsets have expired
                    self._looks.pop(group, None)
                    why = str(error)
                else:
                    found[group] = lag = judged(admin, now, self._looks.get(group))
                    self._looks[group] = now
                    why = now.unseen or lag.unknown
                if why:
                    self._unseen[group] = self._unseen.get(group, (0, ""))[0] + 1, why
                else:
                    self._unseen.pop(group, None)
            if self._unseen:  # a leader may be a broker that joined, or moved, since the connection was made
                self._admin = None
                admin.close()
        except AdminError:
            self._admin = None  # the next look connects again
            admin.close()
            raise
        if self._stopped:  # meanwhile
            admin.close()
        return found

    def _failed_to_look(self, error: Exception) -> None:
        """Count a failed look; the first of a row, and each new reason, is logged."""
        forget_frames(error)
        self._metrics.consumer_look_failures.child().value += 1
        if not self._failed or self._failure != str(error):
            log.warning(
                "consumers_not_watched",
                error=str(error),
                consequence="the lag of consumers is unknown; messages flow",
            )
        self._failed += 1
        self._failure = str(error)
        if self._failed >= _FAILED_LOOKS:
            self._lags, self._topics = {}, ()  # what was measured before is not the present lag

    def _rows(self) -> dict[tuple[str, ...], float]:
        """The lag of each partition, if known, by the labels of its metric: watched group, topic, partition."""
        return {
            (name, one.place.topic, str(one.place.partition)): float(one.lag)
            for name, found in self._lags.items()
            for one in found.partitions
            if one.lag is not None
        }

    def problems(self) -> Iterator[Problem]:
        yield from lag_problems(self._topics, self._limit_s)
        if self._failed >= _FAILED_LOOKS:
            yield Problem(
                "consumer-unwatched",
                "warning",
                f"The lag of consumers is unknown: {self._failure}",
                "check admin.security with its tables, and the right Describe on the groups and their topics.",
            )
        for group, (looks, why) in list(self._unseen.items()):
            if looks >= _FAILED_LOOKS:
                yield unseen_problem(group, why)

    def facts(self) -> dict[str, object]:
        """The part of /status about the groups."""
        return {
            "groups": [
                {
                    "group": one.group,
                    "topic": one.topic,
                    "lag_records": one.records,
                    "lag_seconds": round(one.seconds, 1),
                    "lost_records": one.lost,
                    "state": one.state,
                    "members": one.members,
                }
                for one in self._topics
            ],
            "failure": self._failure or None,
        }


def _connected(settings: Settings) -> KafkaAdmin:
    from gateway.admin.kafka import KafkaAdmin

    return KafkaAdmin(settings)


def lag_by_topic(
    groups: Iterable[GroupLag], behind_since: dict[tuple[str, str], float], now_s: float
) -> Iterator[TopicLag]:
    """The lag of each group by topic. ``behind_since`` keeps the start of each lag between calls."""
    for found in groups:
        for topic in dict.fromkeys(one.place.topic for one in found.partitions):
            parts = [one for one in found.partitions if one.place.topic == topic]
            worst = min(parts, key=lambda one: _GRAVEST.index(one.state))
            records = sum(one.lag or 0 for one in parts)
            place = (found.group.id, topic)
            if not records:
                behind_since.pop(place, None)
            ages = [one.age_seconds for one in parts if one.age_seconds is not None]
            seconds = max(ages) if ages else now_s - behind_since.setdefault(place, now_s) if records else 0.0
            yield TopicLag(
                found.group.id, topic, records, sum(one.lost for one in parts), seconds, worst.state,
                len(found.group.members), worst.member.client_id if worst.member is not None else "",
            )  # fmt: skip


def unseen_problem(group: str, why: str) -> Problem:
    """The problem of a group that cannot be judged, mostly because the gateway's user may not see its topics."""
    return Problem(
        "consumer-unwatched",
        "warning",
        f"The lag of group {group} is unknown: {why.removesuffix('.')}.",
        f"gateway groups describe {group}. The user of admin.*, or the gateway's own, needs Describe on its topics.",
        group,
    )


def lag_problems(topics: Iterable[TopicLag], limit_s: float) -> Iterator[Problem]:
    """A problem for each group and topic that lost records, or lags more than ``limit_s``."""
    for one in topics:
        late = one.records > 0 and one.seconds > limit_s
        if not one.lost and not late:
            continue
        yield Problem(
            "consumer-lag",
            "warning",
            _sentence(one),
            f"gateway groups describe {one.group}, then that consumer's own log; the gateway has delivered, so "
            "a restart of it or of Kafka does not help.",
            f"{one.group} {one.topic}",
        )


_WHY: Final[Mapping[State, str]] = {
    "nobody reads it": "nobody is in the group",
    "stopped": "commits nothing",
    "slow": "reads more slowly than is written",
    "catching up": "is catching up",
}


def _sentence(one: TopicLag) -> str:
    lost = f"{one.lost} records of topic {one.topic} were deleted before group {one.group} read them (retention)"
    waits = f"{one.records} records of topic {one.topic} wait for group {one.group}, for {one.seconds:.0f} s"
    said = lost if one.lost else waits
    why = _WHY.get(one.state)
    if why is None:
        return f"{said}."
    who = f"member {one.client} " if one.client and one.state != "nobody reads it" else ""
    return f"{said}: {who}{why}."

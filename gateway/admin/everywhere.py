"""Waits until every broker shows a change, which each reads from the metadata log at its own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.admin.errors import AdminRetriableError

if TYPE_CHECKING:
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import Topic

_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Everywhere:
    """``behind``: a sentence for each broker that does not show the change yet. ``fenced``: brokers that are fenced
    now; they read the metadata before they return."""

    behind: tuple[str, ...] = ()
    fenced: tuple[int, ...] = ()


def wait_everywhere(
    admin: KafkaAdmin,
    names: Iterable[str],
    shows: Callable[[Mapping[str, Topic]], bool],
    deadline: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Everywhere:
    """Wait until ``shows`` is true of these topics in each active broker's metadata, at most until ``deadline`` (of
    ``monotonic``)."""
    wanted = sorted(set(names))
    behind: tuple[str, ...] = ("no broker answered in time",)
    fenced: tuple[int, ...] = ()
    while True:
        try:
            brokers = admin.cluster().brokers
            views = admin.topics_by_broker(wanted)
        except AdminRetriableError as error:
            behind = (str(error),)
        else:
            fenced = tuple(broker.id for broker in brokers if broker.fenced)
            late = [
                f"broker {number} does not show it yet"
                for number, topics in views.by_broker.items()
                if number not in fenced and not shows({topic.name: topic for topic in topics})
            ]
            late += [one.why for one in views.unanswered if one.id not in fenced]
            if not late:
                return Everywhere(behind=(), fenced=fenced)
            behind = tuple(late)
        if monotonic() >= deadline:
            return Everywhere(behind=behind, fenced=fenced)
        sleep(_POLL_S)

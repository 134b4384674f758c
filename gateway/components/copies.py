"""Messages that the sessions of two groups receive, because filters of both match. The group of the message's route
takes them, the other drops its copies.

A copy is dropped only if the route's group receives the message too for certain: one of its sessions is connected, and
the filter is *established*. What the broker had queued before the group's SUBSCRIBE came to the other groups alone. So
a filter is established once the queue of each of their sessions was empty after the SUBACK. The records of the sessions
keep this over restarts.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bridge.routing.filters import matches, split_share
from bridge.waiting import end_tasks, report_failure
from config.error_words import words
from gateway.components.session_group import SessionGroup
from gateway.mqtt.session import Session

log = structlog.get_logger("mqtt")

SPREAD_S: Final = 2.0  # from SUBACK until every node of a cluster knows the subscription; EMQX takes milliseconds
AGAIN_S: Final = 60.0  # after the disk failed


class Copies:
    """For the groups of the settings, in the event loop's thread."""

    def __init__(self, groups: Sequence[SessionGroup], failed: Callable[[BaseException], None]) -> None:
        self._groups = {group.plan.name: group for group in groups}
        self._failed = failed
        self._established: dict[Session, list[str]] = {}  # without ``$share``
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for group in groups:
            group.dispatcher.receives = self._receives
            for session in group.sessions:
                session.absent = self._absent

    def _receives(self, group: str, topic: str) -> bool:
        """Whether a group receives the messages of a topic for certain."""
        return any(
            session.receives and any(matches(text, topic) for text in self._established.get(session, ()))
            for session in self._groups[group].sessions
        )

    def look(self) -> None:
        """Read from the records which filters are established. Call it before other filters are subscribed; then call
        ``establish``."""
        for task in self._tasks.values():
            task.cancel()
        for group in self._groups.values():
            self._look(group)

    def _look(self, group: SessionGroup) -> None:
        for session in group.sessions:
            self._established[session] = [split_share(text)[1] for text in session.established]

    def establish(self) -> None:
        """Begin to wait until all filters are established."""
        for group in self._groups.values():
            if any(len(session.established) < len(session.plan.subscriptions) for session in group.sessions):
                self._begin(group)

    def _absent(self, session: Session) -> None:
        """The broker does not have a session: none of its filters is established."""
        for group in self._groups.values():
            if session in group.sessions and self._established.get(session):
                self._established[session] = []
                try:
                    session.establish(())
                except OSError as error:
                    _warn(session, error)
                self._begin(group)

    def _begin(self, group: SessionGroup) -> None:
        name = group.plan.name
        if name in self._tasks:
            self._tasks[name].cancel()
        self._tasks[name] = asyncio.create_task(self._establish(group))
        self._tasks[name].add_done_callback(report_failure(self._failed))

    async def _establish(self, group: SessionGroup) -> None:
        others = [session for other in self._groups.values() if other is not group for session in other.sessions]
        await asyncio.gather(*(session.standing.wait() for session in group.sessions))
        if others:
            await asyncio.sleep(SPREAD_S)
            await asyncio.gather(*(session.emptied() for session in others))
        for session in group.sessions:
            while True:
                try:
                    session.establish(session.record.filters)
                    break
                except OSError as error:
                    _warn(session, error)
                    await asyncio.sleep(AGAIN_S)
        self._look(group)
        if others:
            filters = {one.filter for session in group.sessions for one in session.plan.subscriptions}
            log.info("filters_established", group=group.plan.name, filters=sorted(filters))

    async def close(self) -> None:
        """End the waits."""
        await end_tasks(*self._tasks.values())


def _warn(session: Session, error: OSError) -> None:
    log.warning("session_record_kept", client_id=session.plan.client_id, error=words(error))

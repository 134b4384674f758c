"""What is said about one ``[[commands]]``: the line of each that is finished, metrics, problems, and /status."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import structlog

from bridge.commands.command import State
from config.values.grammar import format_duration
from gateway.base.log_limits import FLOOD_INTERVAL_NS, FLOOD_LINES, RepeatLimiter
from gateway.base.problem import Problem

if TYPE_CHECKING:
    from bridge.commands.dispatcher import Dispatcher
    from bridge.commands.model import StatusRecord
    from config.tables.commands import CommandSettings
    from gateway.base.metrics import Metrics

log = structlog.get_logger("commands")

_REFUSED_NS: Final = 300_000_000_000  # a refusal of the right to publish is a problem for so long
_DELETED_NS: Final = 900_000_000_000  # and so long one is that Kafka deleted commands


class CommandView:
    """Looks at a dispatcher. Its runner notes here what else is wrong: ``errors``, by part, why it does not work at
    present; ``deleted_ns``, when Kafka last deleted commands unread (monotonic).
    """

    def __init__(self, commands: CommandSettings, client_id: str, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._name = commands.name
        self._commands = commands
        self._client_id = client_id
        self._dispatcher = dispatcher
        self.errors: dict[str, str] = {}
        self.deleted_ns = 0  # when Kafka last deleted commands unread
        self._seconds = metrics.commands_seconds.child(commands.name)
        self._lines = RepeatLimiter(FLOOD_INTERVAL_NS, lines=FLOOD_LINES)  # of the log
        account, name = dispatcher.account, commands.name
        metrics.commands_consumed.watch(lambda: account.consumed, name)
        metrics.commands_given_up.watch(lambda: account.given_up, name)
        metrics.commands_waiting.watch(lambda: account.waiting, name)
        metrics.commands_under_way.watch(lambda: account.under_way, name)
        metrics.commands_imbalance.watch(lambda: account.imbalance, name)
        metrics.commands_sent_again.watch(lambda: account.sent_again, name)
        metrics.commands_deleted_unread.watch(lambda: account.deleted_unread, name)
        metrics.commands_oldest_seconds.watch(lambda: self._oldest_s() or 0, name)
        metrics.commands_paused.watch(lambda: len(dispatcher.full()), name)
        metrics.commands_finished.watch_rows(
            lambda: {(name, str(status)): count for status, count in account.finished.items()}
        )
        metrics.commands_unmatched.watch_rows(
            lambda: {(name, reason): count for reason, count in account.unmatched.items()}
        )

    def finished(self, status: StatusRecord, taken_ns: int) -> None:
        """Note a command whose last status is in Kafka, also of a record that is a dead letter."""
        now_ns = time.monotonic_ns()
        self._seconds.observe(now_ns - taken_ns)
        # The log takes so many lines of an event in a minute. To make the others would be a fifth of a command's cost.
        left_out = self._lines.admit((), now_ns)
        if left_out is None:
            return
        log.info(
            "command_finished",
            commands=self._name,
            id=status.id,
            place=str(status.place),
            device=status.device,
            status=status.status,
            reason=status.reason,
            attempt=status.attempt,
            late=status.late or None,
            left_out=left_out or None,
        )

    def _oldest_s(self) -> float | None:
        oldest_ns = self._dispatcher.oldest_ns()
        return None if oldest_ns is None else (time.monotonic_ns() - oldest_ns) / 1e9

    def problems(self) -> Iterable[Problem]:
        for part, error in self.errors.items():
            verb = "written" if part in {"statuses", "status topic", "dead letters"} else "read"
            yield Problem(
                "commands-unreadable",
                "critical",
                f"Commands {self._name!r}: {part} cannot be {verb}. {error}",
                "Check the topic, the consumer group and the rights of this Kafka user.",
                f"{self._name} {part}",
            )
        if paused := self._dispatcher.full():
            busiest = ", ".join(f"{device} ({count})" for device, count in self._dispatcher.busiest(3))
            yield Problem(
                "commands-paused",
                "warning",
                f"Commands {self._name!r}: too many are held, so {len(paused)} of {len(self._dispatcher.partitions)} "
                f"partitions are not read. Most wait for: {busiest or 'answers'}.",
                "Look whether these devices are connected; see max_waiting and in_flight.",
                self._name,
            )
        if self._dispatcher.refused_ns and time.monotonic_ns() - self._dispatcher.refused_ns < _REFUSED_NS:
            yield Problem(
                "commands-not-allowed",
                "critical",
                f"Commands {self._name!r}: the broker does not allow {self._client_id} to publish (0x87).",
                f"Allow its user to publish to {self._commands.mqtt_topic}.",
                self._name,
            )
        if self.deleted_ns and time.monotonic_ns() - self.deleted_ns < _DELETED_NS:
            yield Problem(
                "commands-deleted-unread",
                "critical",
                f"Commands {self._name!r}: Kafka deleted commands before they were finished, "
                f"{self._dispatcher.account.deleted_unread:,} since the start.",
                "Raise the topic's retention above the longest expiry; the log names the offsets.",
                self._name,
            )
        if self._dispatcher.account.imbalance:
            yield Problem(
                "commands-imbalance",
                "critical",
                f"Commands {self._name!r}: the account does not balance ({self._dispatcher.account.imbalance:+}).",
                "This is a defect of the gateway. Keep its log, and report it.",
                self._name,
            )

    def facts(self) -> dict[str, object]:
        """For /status. Does not block."""
        account = self._dispatcher.account
        return {
            "open": self._dispatcher.is_open,
            "partitions": sorted(f"{topic}/{number}" for topic, number in self._dispatcher.partitions),
            "consumed": account.consumed,
            "finished": {str(status): count for status, count in sorted(account.finished.items())},
            "waiting": account.waiting,
            "under_way": account.under_way,
            "given_up": account.given_up,
            "imbalance": account.imbalance,
            "states": {str(state): account.states[state] for state in State if account.states[state]},
            "unmatched": dict(account.unmatched),
            "oldest_seconds": self._oldest_s(),
            "busiest": dict(self._dispatcher.busiest()),
            "settle": format_duration(self._commands.settle),
            "errors": dict(self.errors),
        }

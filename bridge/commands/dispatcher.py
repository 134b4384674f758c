"""Decides about the commands of one entry: what each event means, what is sent, and which statuses are written.

No I/O: it calls its ports and is called with events, all in the event loop's thread. Times are monotonic ns; those of
records and statuses are ms since 1970, and ``Clock`` relates them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from bridge.commands.account import Account
from bridge.commands.command import AWAITING, IN_QUEUE, TRANSITIONS, Command, State
from bridge.commands.model import DUPLICATE, Answer, Receiver, Status, StatusRecord
from bridge.commands.offset_map import Mark, OffsetMap
from bridge.commands.partition import SENT, SKEW_MS, Known, OwnedPartition
from bridge.commands.ports import CUT, DENIED, Clock, CommandLink, Committed, Graveyard, Outgoing, Partition, StatusSink
from bridge.commands.queues import Queues
from bridge.commands.reading import COMMAND_ID, EXPIRES_AT, BadCommandError, Delivery, Presence, read_request
from bridge.commands.timers import Timers

if TYPE_CHECKING:
    from bridge.commands.plan import CommandPlan
    from bridge.dead_letters.reading import LoggedRecord

log = structlog.get_logger("commands")

NOBODY: Final = 0x10
NOT_ALLOWED: Final = 0x87
_WHY_WAITING: Final = {
    NOBODY: "nobody subscribes to its topic",
    CUT: "the connection ended before the broker's answer: it may be too large for the broker",
}
_FINAL: Final = frozenset({NOT_ALLOWED, 0x90, 0x95, 0x99})  # the same message is refused again
_RETRY_FIRST_NS: Final = 1_000_000_000
_RETRY_LONGEST_NS: Final = 30_000_000_000
_MOST_UNWRITTEN: Final = 1_000  # statuses, beyond which neither ``accepted`` nor a further 1xx is shown
_MOST_PRESENT: Final = 100_000  # devices whose presence is remembered


class Dispatcher:
    """Belongs to the event loop's thread. ``pump`` sends what may be sent; every event calls it.

    ``is_open`` is whether anything may be sent at all: the answers' subscription stands, and devices have had time to
    connect. ``finished`` is called once a terminal status is in Kafka: with it, and the monotonic moment in nanoseconds
    at which its record was taken.
    """

    def __init__(
        self,
        plan: CommandPlan,
        link: CommandLink,
        sink: StatusSink,
        graveyard: Graveyard,
        clock: Clock,
        finished: Callable[[StatusRecord, int], None] = lambda _status, _taken_ns: None,
    ) -> None:
        self.plan = plan
        self._link = link
        self._sink = sink
        self._graveyard = graveyard
        self._clock = clock
        self._finished = finished  # called when Kafka has a command's last status
        self.is_open = False  # commands may be sent; the owner sets it
        self.account = Account()
        self._timers = Timers()
        self._queues = Queues(plan, self._timers)
        self._partitions: dict[Partition, OwnedPartition] = {}  # this member's
        self._ids: dict[str, Command] = {}  # unfinished commands with an id of their own
        self._entered: deque[Command] = deque()  # new ones, whose first status may still have to be written
        self._last_answers: dict[Partition, int] = {}  # the offset of the last answer read, by partition of the answers
        self._rewind_ms: int | None = None  # from when on the feed must read answers again
        self._is_online: OrderedDict[str, bool] = OrderedDict()  # by device; the latest news last
        self._held_bytes = 0  # of commands, and of records on their way to the dead letters
        self.refused_ns = 0  # when the broker last refused the right to publish

    # --- partitions ----------------------------------------------------------------------------------

    @property
    def partitions(self) -> Collection[Partition]:
        return self._partitions.keys()

    def assign(self, partition: Partition, committed: Committed | None, earlier: Iterable[tuple[int, Known]]) -> None:
        """Own a partition. ``earlier`` is what its statuses since the commit say (``Earlier.of``)."""
        self._partitions[partition] = OwnedPartition(partition, committed, earlier)

    def status_offset(self, committed: Committed | None) -> int:
        """From which offset of the status partition on statuses are not in the commit."""
        return 0 if committed is None else OffsetMap.parse(committed.offset, committed.metadata).status_offset

    def close(self, partitions: Collection[Partition]) -> None:
        """Send nothing more of these partitions: they are about to be another member's."""
        for partition in partitions:
            if (owned := self._partitions.get(partition)) is not None:
                owned.is_closing = True
                for command in [one for one in owned.commands.values() if one.state in IN_QUEUE]:
                    self._drop(owned, command)

    def is_settled(self, partitions: Collection[Partition]) -> bool:
        """Whether nothing of these closed partitions waits for the broker or for Kafka."""
        return all(self._partitions[one].is_settled for one in partitions if one in self._partitions)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Let partitions go. Answers of the broker for their commands write no status any more."""
        for partition in partitions:
            if (owned := self._partitions.pop(partition, None)) is not None:
                for command in list(owned.commands.values()):
                    self._drop(owned, command)
                self.account.states[State.FINISHING] -= len(owned.burying)
                self.account.given_up += len(owned.burying)
                self._held_bytes -= sum(owned.burying.values())
        self.pump()

    def deleted(self, partition: Partition, first: int) -> int:
        """Kafka has deleted records below ``first`` unread. Returns how many unfinished ones are gone."""
        owned = self._partitions.get(partition)
        count = 0 if owned is None else owned.deleted(first)
        self.account.deleted_unread += count
        return count

    def _drop(self, owned: OwnedPartition, command: Command) -> None:
        """Forget a command that is another member's now."""
        self._queues.remove(command)
        del owned.commands[command.offset]
        self.account.states[command.state] -= 1
        self.account.given_up += 1
        self._timers.set(command, 0)
        self._forget(command)

    # --- records -------------------------------------------------------------------------------------

    def take(self, records: Sequence[LoggedRecord]) -> None:
        """Take records, in order within each partition. Those of other partitions, and finished ones, are skipped."""
        now_ns, now_ms = self._clock.now_ns(), self._clock.now_ms()
        for record in records:
            owned, offset = self._partitions.get(record.place[:2]), record.place.offset
            # One that is held was read again, after a rebalance that left the partition here.
            if owned and not (owned.is_closing or offset in owned.commands or offset in owned.burying):
                self._take_command(owned, record, now_ns, now_ms)
        self.pump()

    def _take_command(self, owned: OwnedPartition, record: LoggedRecord, now_ns: int, now_ms: int) -> None:
        """Enter a record's command, as far as an earlier owner left it; a record that is none is a dead letter."""
        known = owned.take(record)
        if known is not None and known.mark is Mark.FINISHED:
            return
        self.account.consumed += 1
        try:
            request = read_request(record, self.plan, now_ms)
        except BadCommandError as error:
            self._send_to_dead_letters(owned, record, error, now_ns)
            return
        # ``| 0`` copies a sum without its spare digit: 16 bytes less for each command that waits.
        deadline_ns = (now_ns + (request.deadline_ms - now_ms) * 1_000_000) | 0
        command = Command(
            owned.key, record.place.offset, self._queues.device(request.device), request, record.value or b"", now_ns,
            deadline_ns, attempt=0 if known is None else known.attempt,
            shown=None if known is None else Status.ACCEPTED,
        )  # fmt: skip
        owned.commands[command.offset] = command
        self.account.states[command.state] += 1
        self._held_bytes += command.bytes
        if known is not None and known.mark is Mark.AWAITING:
            moment_ms = max(0, min(record.timestamp_ms, now_ms) - SKEW_MS)
            self._rewind_ms = moment_ms if self._rewind_ms is None else min(moment_ms, self._rewind_ms)
            self._take_awaiting(command, is_in_progress=known.is_in_progress)
        else:
            self._enter(command, is_new=known is None)

    def _take_awaiting(self, command: Command, *, is_in_progress: bool) -> None:
        """A command that an earlier owner has sent: it is timed, not sent again."""
        if (own_id := command.request.own_id) is not None:
            self._ids.setdefault(own_id, command)
        self._move(command, State.SENDING)
        if self.plan.settings.release != "sent":
            self._queues.occupy(command)
        if not (command.request.is_answer_asked or self.plan.is_delivery_asked):
            # The settings have changed: nothing is asked of it any more.
            self._finish(command, Status.SENT)
            return
        self._move(command, State.SENT)
        # An earlier owner may have written ``delivered`` or ``in_progress`` already, and a status never goes back.
        if is_in_progress:
            self._move(command, State.IN_PROGRESS)
        elif command.request.is_answer_asked:
            self._move(command, State.DELIVERED)
        self._timers.set(command, self._clock.now_ns() + self.plan.answer_timeout_ns)

    def _enter(self, command: Command, *, is_new: bool) -> None:
        """Queue a command that was never sent, as far as is known, or end it. ``is_new``: no owner took it before."""
        device, own_id = command.device, command.request.own_id
        if own_id is not None:
            if (other := self._ids.get(own_id)) is not None and other is not command:
                self._refuse(command, DUPLICATE)
                return
            self._ids[own_id] = command
        if self._clock.now_ns() >= command.deadline_ns:
            self._finish(command, Status.EXPIRED)
        elif is_new and len(device.queue) >= self.plan.settings.waiting_per_device:
            self._refuse(command, "too many wait for this device")
        else:
            self._queues.append(command)
            if is_new:
                self._entered.append(command)

    def _refuse(self, command: Command, reason: str) -> None:
        self._queues.refuse(command)
        self._finish(command, Status.REFUSED, reason)

    def _send_to_dead_letters(
        self, owned: OwnedPartition, record: LoggedRecord, error: BadCommandError, now_ns: int
    ) -> None:
        """Bury a record that is no command, then write the status ``refused``, then finish its offset."""
        place = record.place
        parts = (record.key, record.value, *(value for _, value in record.headers))
        size = owned.burying[place.offset] = sum(len(part or b"") for part in parts)
        self._held_bytes += size
        self.account.states[State.FINISHING] += 1

        def stored() -> None:
            if self._partitions.get(owned.key) is owned:
                now_ms, reason = self._clock.now_ms(), f"{error.reason}: {error}"
                status = StatusRecord(
                    id=str(place), place=place, route=self.plan.settings.name, device=None, status=Status.REFUSED,
                    terminal=True, at_ms=now_ms, deadline_ms=None, reason=reason,
                )  # fmt: skip
                self._sink.write(place.partition, status, partial(written, status))

        def written(status: StatusRecord, offset: int) -> None:
            if self._partitions.get(owned.key) is owned:
                owned.stored(offset)
                owned.finish(place.offset)
                self._held_bytes -= owned.burying.pop(place.offset)
                self.account.states[State.FINISHING] -= 1
                self.account.finished[Status.REFUSED] += 1
                self._finished(status, now_ns)

        self._graveyard.bury(record, error, stored)

    # --- sending -------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what may be sent now."""
        now_ns = self._clock.now_ns()
        for command in self._queues.leaving(now_ns, lambda: self.is_open and self._link.room > 0):
            self._send_command(command, now_ns)
        self._show_queued()

    def _send_command(self, command: Command, now_ns: int) -> None:
        """Publish a command that has left its queue; one whose deadline is over expires."""
        if now_ns >= command.deadline_ns:
            self._finish(command, Status.EXPIRED)
            return
        self._queues.count(command.device, now_ns)
        # For a broker that never answers on a connection that holds. It may answer a little after the deadline.
        self._timers.set(command, command.deadline_ns + self.plan.answer_timeout_ns)
        self._move(command, State.SENDING)
        self._queues.occupy(command)
        try:
            self._link.publish(self._outgoing(command, now_ns), partial(self._published, command))
        except ValueError as error:
            self._finish(command, Status.UNDELIVERABLE, str(error))
            return
        command.attempt += 1
        self.account.sent_again += command.attempt > 1

    def _outgoing(self, command: Command, now_ns: int) -> Outgoing:
        """The PUBLISH of a command, with the rest of its time as the expiry."""
        request, settings = command.request, self.plan.settings
        command_id = command.id
        token = self.plan.signer.sign(command.place, command_id)
        left_s = -(-(command.deadline_ns - now_ns) // 1_000_000_000)
        return Outgoing(
            topic=self.plan.topic(request.device, request.subject, token),
            payload=command.payload,
            qos=settings.qos,
            expiry_s=max(1, left_s),
            content_type=request.content_type,
            response_topic=self.plan.response_topic(request.device) if request.is_answer_asked else None,
            correlation_data=token.encode(),
            user=(*request.user, (COMMAND_ID, command_id), (EXPIRES_AT, str(request.deadline_ms))),
        )

    def _published(self, command: Command, code: int | None) -> None:
        """The broker's answer, or None when the connection ended before."""
        if not self._is_ours(command) or command.state is not State.SENDING:
            return  # another member's by now, or the device has answered before the broker
        before, command.code = command.code, NOT_ALLOWED if code == DENIED else code
        # Refused is what is denied twice. What was cut twice waits, or each connection would end with it at once.
        if code is None or (code == DENIED and before != NOT_ALLOWED) or (code == CUT and before != CUT):
            self._return(command, State.QUEUED)
        elif code == CUT:
            self._return(command, State.WAITING)
        elif code == NOBODY:
            self._nobody_subscribes(command)
        elif command.code in _FINAL:
            if command.code == NOT_ALLOWED:
                self.refused_ns = self._clock.now_ns()
            self._finish(command, Status.UNDELIVERABLE, f"the broker refuses it (0x{command.code:02X})")
        elif code >= 0x80:
            self._return(command, State.WAITING)
        else:
            self._note_sent(command)
        self.pump()

    def _nobody_subscribes(self, command: Command) -> None:
        """Let the command wait, or end it, as ``when_offline`` says: the broker found no subscriber."""
        how = self.plan.settings.when_offline
        if how == "wait":
            self._return(command, State.WAITING)
        else:
            reason = "nobody subscribes to its topic" if how == "fail" else "the device has no session at the broker"
            self._finish(command, Status.UNDELIVERABLE, reason)

    def _return(self, command: Command, state: State) -> None:
        """Back to its place in the device's queue: sent again at once, or after a pause."""
        self._queues.release(command)
        now_ns, owned = self._clock.now_ns(), self._partitions[command.partition]
        if owned.is_closing:
            self._drop(owned, command)
            return
        if now_ns >= command.deadline_ns:
            self._finish(command, Status.EXPIRED)
            return
        self._move(command, state)
        self._queues.put_back(command)
        if state is State.QUEUED:
            self._timers.set(command, command.deadline_ns)
            return
        if (why := _WHY_WAITING.get(command.code or 0)) and command.shown is not Status.WAITING:
            self._write_status(command, Status.WAITING, reason=why)
        pause_ns = min(_RETRY_FIRST_NS << min(command.pauses, 10), _RETRY_LONGEST_NS)
        command.pauses += 1
        self._timers.set(command, min(now_ns + pause_ns, command.deadline_ns))

    def _note_sent(self, command: Command) -> None:
        """Finish a command that the broker has taken, or wait for what is still to be reported of it."""
        is_more_asked = command.request.is_answer_asked or self.plan.is_delivery_asked
        if self.plan.settings.qos == 0:
            command.code = None  # the broker answers nothing
        if self.plan.settings.qos == 0 or not is_more_asked:
            self._finish(command, Status.SENT)
            return
        self._move(command, State.SENT)
        if self.plan.settings.release == "sent":
            self._queues.release(command)
        self._timers.set(command, self._clock.now_ns() + self.plan.answer_timeout_ns)
        self._write_status(command, Status.SENT)

    def _show_queued(self) -> None:
        """Commands that could not leave at once are accepted.

        A few at a time: of a backlog most have left before, and a status that is not written yet takes more memory
        than its command.
        """
        while self._entered and self._sink.waiting < _MOST_UNWRITTEN:
            command = self._entered.popleft()
            if self._is_ours(command) and command.state is State.QUEUED and command.shown is None:
                self._write_status(command, Status.ACCEPTED)

    # --- answers -------------------------------------------------------------------------------------

    def begin_answers(self, ends: Mapping[Partition, int]) -> None:
        """Answers before these offsets are old: where they belong to no command they were counted before."""
        for at, end in ends.items():
            self._last_answers[at] = max(end - 1, self._last_answers.get(at, -1))

    def answered(self, answer: Answer) -> None:
        """Take a device's answer. Answers for commands of other members are theirs."""
        at = answer.place[:2]
        is_again = answer.place.offset <= self._last_answers.get(at, -1)  # after a rewind
        self._last_answers[at] = max(answer.place.offset, self._last_answers.get(at, -1))
        found = self._find(answer.token, answer.device)
        if not answer.code:
            if found == "no token of ours":  # no answer at all: a route may bring other messages as well
                return
            found = "unreadable" if isinstance(found, tuple) else found
        if isinstance(found, str):
            self.account.unmatched[found] += not is_again
            return
        if found is None:
            return
        command, is_late = found
        status = _outcome(answer.code)
        if not command.request.is_answer_asked:
            self.account.unmatched["not asked for"] += not is_again
        elif is_late:
            if status is not None:
                self._write_late(command, status, answer)
        elif status is not None:
            self._queues.remove(command)  # if the connection ended before the broker's answer: the device has it
            self._finish(command, status, answer=answer)
        elif command.state not in IN_QUEUE:
            if self.plan.settings.release != "answered":  # the device has it, whatever else reports that, and when
                self._queues.release(command)
            if command.state is not State.IN_PROGRESS:
                self._move(command, State.IN_PROGRESS)
            self._timers.set(command, self._clock.now_ns() + self.plan.answer_timeout_ns)
            if command.shown is not Status.IN_PROGRESS or self._sink.waiting < _MOST_UNWRITTEN:
                self._write_status(command, Status.IN_PROGRESS, answer=answer)
        self.pump()

    def delivered(self, delivery: Delivery) -> None:
        """Note that the device acknowledged a command, as EMQX reports."""
        found = self._find(delivery.token, delivery.device)
        if found is None or isinstance(found, str):
            return
        command, is_late = found
        is_last = not command.request.is_answer_asked and self.plan.is_delivery_asked
        if is_late:
            if is_last:
                self._write_late(command, Status.DELIVERED)
        elif is_last:
            self._queues.remove(command)  # if the connection ended before the broker's answer
            self._finish(command, Status.DELIVERED)
        elif command.state not in IN_QUEUE:
            if self.plan.settings.release == "delivered":
                self._queues.release(command)
            if command.state is State.SENT:
                self._move(command, State.DELIVERED)
                self._write_status(command, Status.DELIVERED)
        self.pump()

    def _write_late(self, command: Command, status: Status, answer: Answer | None = None) -> None:
        """Write the outcome of a command that has timed out."""
        del self._partitions[command.partition].late[command.offset]
        self._write_status(command, status, terminal=True, late=True, answer=answer)

    def _find(self, token: str, device: str) -> tuple[Command, bool] | str | None:
        """The command of a token, and whether it has timed out; or why there is none. None for those of others."""
        read = self.plan.signer.read(token)
        if read is None:
            # Every worker reads it, and one counts it.
            return "no token of ours" if (self.plan.settings.topics[0], 0) in self._partitions else None
        place, command_id = read
        owned = self._partitions.get(place[:2])
        if owned is None:
            return None  # another member's, which reads it too
        late = owned.late.get(place.offset)
        found = late or owned.commands.get(place.offset)
        if found is None:
            # One that is not finished has not been read again yet, after an assignment: the feed is rewound then.
            return "already finished" if owned.map.mark(place.offset) is Mark.FINISHED else None
        if found.state is State.FINISHING and late is None:
            return "already finished"
        if found.id != command_id:
            return "already finished"  # with its topic, which was made anew: offsets began again
        return "another device" if found.device.name != device else (found, late is not None)

    def rewind_ms(self) -> int | None:
        """From when on answers have to be read again, since commands were taken over that were sent before; once."""
        found, self._rewind_ms = self._rewind_ms, None
        return found

    def heard(self, presence: Presence) -> None:
        """Note that a device came, subscribed or left. Unless it left, its waiting command is tried again."""
        name = presence.device
        if presence.is_online is not None:
            self._is_online[name] = presence.is_online
            self._is_online.move_to_end(name)
            if len(self._is_online) > _MOST_PRESENT:
                self._is_online.popitem(last=False)
        head = None if presence.is_online is False else self._queues.head(name)
        if head is not None and head.state is State.WAITING:
            head.pauses = 1  # its status says already that it waits
            self._wake(head)
            self.pump()

    def receiver(self, device: str) -> Receiver:
        """Whether a device is connected, by the last presence message about it; "unknown" without one."""
        present = self._is_online.get(device)
        return "unknown" if present is None else "online" if present else "away"

    # --- time ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """End the commands whose time is over, try waiting ones again, and send."""
        now_ns = self._clock.now_ns()
        for command in self._timers.due(now_ns):
            if not self._is_ours(command) or command.state is State.FINISHING:
                continue
            if command.state in AWAITING:
                self._time_out(command)
            elif now_ns >= command.deadline_ns:
                self._queues.remove(command)
                self._finish(command, Status.EXPIRED)
            elif command.state is State.WAITING:
                self._wake(command)
        self.pump()

    def _wake(self, command: Command) -> None:
        """Try a waiting command again."""
        self._move(command, State.QUEUED)  # it stays the first of its queue
        self._timers.set(command, command.deadline_ns)
        self._queues.make_ready(command.device)

    def _time_out(self, command: Command) -> None:
        self._finish(command, Status.TIMED_OUT)
        self._partitions[command.partition].time_out(command)

    def due_ns(self) -> int | None:
        """When ``tick`` has something to do; None: only after another event."""
        times = [time_ns for time_ns in (self._timers.next_ns(), self._queues.wake_ns) if time_ns is not None]
        return min(times, default=None)

    # --- statuses ------------------------------------------------------------------------------------

    def _finish(
        self, command: Command, status: Status, reason: str | None = None, answer: Answer | None = None
    ) -> None:
        """Write the terminal status. The command is finished once Kafka has it.

        Only then is there room for the device's next command: after a crash in between the next owner decides anew, and
        may send this one.
        """
        self._move(command, State.FINISHING)
        self._timers.set(command, 0)
        if status is Status.EXPIRED and command.code == CUT:
            reason = _WHY_WAITING[CUT]

        def stored() -> None:
            self._partitions[command.partition].finish(command.offset)
            self.account.states[State.FINISHING] -= 1
            self.account.finished[status] += 1
            self._forget(command)
            command.payload = b""  # a timed-out command is remembered for its late answer
            self.pump()

        self._write_status(command, status, terminal=True, reason=reason, answer=answer, stored=stored)

    def _write_status(
        self,
        command: Command,
        status: Status,
        *,
        terminal: bool = False,
        reason: str | None = None,
        late: bool = False,
        answer: Answer | None = None,
        stored: Callable[[], None] | None = None,
    ) -> None:
        command.shown = status
        record = StatusRecord(
            command.id,
            command.place,
            self.plan.settings.name,
            command.device.name,
            status,
            terminal,
            self._clock.now_ms(),
            command.request.deadline_ms,
            attempt=command.attempt,
            code=None if command.code == CUT else command.code,
            reason=reason,
            late=late,
            receiver=self.receiver(command.device.name) if command.attempt else None,
            is_ordered=command.request.is_ordered,
            answer=answer,
        )
        owned = self._partitions[command.partition]
        owned.unwritten += 1

        def written(offset: int) -> None:
            owned.unwritten -= 1
            if self._partitions.get(owned.key) is not owned:
                return
            owned.stored(offset)
            self._show_queued()
            if status in SENT:
                owned.map.await_(command.offset)
            if stored is not None:
                stored()
            if terminal:
                self._finished(record, command.taken_ns)

        self._sink.write(command.partition[1], record, written)

    # --- commits -------------------------------------------------------------------------------------

    def commits(self, partitions: Collection[Partition] | None = None) -> dict[Partition, Committed]:
        """The offsets that changed since the last commits, of all partitions or of the given ones."""
        owned = (one for key, one in self._partitions.items() if partitions is None or key in partitions)
        found = {one.key: one.commit() for one in owned}
        return {partition: commit for partition, commit in found.items() if commit is not None}

    def passed(self, positions: Mapping[Partition, int]) -> None:
        """Reading goes on at these offsets. Those before that were not taken need no commit of their own: ends of
        transactions, and what was taken back. Once Kafka has deleted them, a commit before them looks like one of
        records deleted unread."""
        for partition, position in positions.items():
            if (owned := self._partitions.get(partition)) is not None:
                owned.passed(position)

    def committed(self, offsets: Mapping[Partition, Committed], too_large: Collection[Partition] = ()) -> None:
        """Kafka has these commits, without those whose metadata it found too large."""
        for partition, commit in offsets.items():
            if (owned := self._partitions.get(partition)) is not None:
                owned.committed(commit, is_too_large=partition in too_large)

    def full(self) -> set[Partition]:
        """Partitions that are not to be read now: their map at the last ``commits``, or the memory of all, is at its
        limit."""
        settings = self.plan.settings
        held = sum(self.account.states.values())
        if held >= settings.max_waiting or self._held_bytes >= settings.max_waiting_bytes:
            return set(self._partitions)
        return {partition for partition, owned in self._partitions.items() if owned.is_full}

    # --- facts ---------------------------------------------------------------------------------------

    def oldest_ms(self) -> int | None:
        """About when the oldest unfinished command was taken, ms since 1970; None without one."""
        oldest_ns = self.oldest_ns()
        return None if oldest_ns is None else self._clock.now_ms() - (self._clock.now_ns() - oldest_ns) // 1_000_000

    def busiest(self, count: int = 5) -> list[tuple[str, int]]:
        """The devices with the most waiting commands."""
        return self._queues.busiest(count)

    def oldest_ns(self) -> int | None:
        """Monotonic time at which the oldest unfinished command was taken; None without one."""
        first = (next(iter(owned.commands.values())) for owned in self._partitions.values() if owned.commands)
        return min((command.taken_ns for command in first), default=None)

    # --- small parts ---------------------------------------------------------------------------------

    def _is_ours(self, command: Command) -> bool:
        """Whether a command is not finished, and its partition is still ours."""
        owned = self._partitions.get(command.partition)
        return owned is not None and owned.commands.get(command.offset) is command

    def _move(self, command: Command, state: State) -> None:
        assert state in TRANSITIONS[command.state], f"{command.place}: {command.state} to {state}"
        self.account.states[command.state] -= 1
        self.account.states[state] += 1
        command.state = state

    def _forget(self, command: Command) -> None:
        """Free the room, id and bytes of a command that is finished, or not ours any more."""
        if (own_id := command.request.own_id) is not None and self._ids.get(own_id) is command:
            del self._ids[own_id]
        self._held_bytes -= command.bytes
        self._queues.release(command)
        self._queues.forget(command.device)


def _outcome(code: int) -> Status | None:
    """The terminal status of an answer; None for 1xx."""
    return {2: Status.SUCCEEDED, 4: Status.REJECTED, 5: Status.FAILED}.get(code // 100)

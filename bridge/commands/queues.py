"""The queues of all devices: which command may leave next, and when the rates allow it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from bridge.commands.command import IN_QUEUE, Command, Device, State

if TYPE_CHECKING:
    from bridge.commands.plan import CommandPlan
    from bridge.commands.timers import Timers


class Queues:
    """Devices take turns. A device has at most ``in_flight`` commands under way; the next waits for ``release``.

    ``wake_ns`` is when a rate allows what it has held back (monotonic), None if it holds nothing back.
    """

    def __init__(self, plan: CommandPlan, timers: Timers) -> None:
        self._in_flight = plan.settings.in_flight
        self._timers = timers
        self._devices: dict[str, Device] = {}  # by name
        self._ready: deque[Device] = deque()  # may have a command to send, in turn
        self._refused: dict[str, deque[Command]] = {}  # by device: those whose refusal is not in Kafka yet
        rate, device_rate = plan.settings.rate, plan.settings.rate_per_device
        self._rate_ns = 0 if rate is None else round(1e9 / rate)
        self._device_rate_ns = 0 if device_rate is None else round(1e9 / device_rate)
        self._next_ns = 0  # when the rate of all allows the next command
        self._paced: dict[str, int] = {}  # when the rate allows a device's next command
        self.wake_ns: int | None = None  # when a rate allows the next command; None: no rate holds one back

    # --- devices -------------------------------------------------------------------------------------

    def device(self, name: str) -> Device:
        """The device of that name, made if it has no commands."""
        device = self._devices.get(name)
        if device is None:
            device = self._devices[name] = Device(name, next_ns=self._paced.get(name, 0))
        return device

    def head(self, name: str) -> Command | None:
        """The first command that waits for a device."""
        device = self._devices.get(name)
        return device.queue[0] if device is not None and device.queue else None

    def forget(self, device: Device) -> None:
        """Forget a device without commands. One that was forgotten before may have a successor of the same name."""
        is_idle = not (device.queue or device.under_way or device.is_ready)
        if is_idle and self._devices.get(device.name) is device:
            del self._devices[device.name]

    def busiest(self, count: int) -> list[tuple[str, int]]:
        """The devices with the most waiting commands."""
        waiting = ((device.name, len(device.queue)) for device in self._devices.values() if device.queue)
        return heapq.nlargest(count, waiting, key=itemgetter(1))

    # --- into the queue and out of it ----------------------------------------------------------------

    def append(self, command: Command) -> None:
        """Queue a command that was taken. One that expires no earlier than the one before it needs no timer yet."""
        queue = command.device.queue
        if not (queue and queue[-1].deadline_ns <= command.deadline_ns):
            self._timers.set(command, command.deadline_ns)
        queue.append(command)
        self.make_ready(command.device)

    def put_back(self, command: Command) -> None:
        """Put a command back into its place, which most often is the first."""
        queue, place = command.device.queue, command.place
        behind = (at for at, other in enumerate(queue) if other.place > place)
        queue.insert(next(behind, len(queue)), command)
        self.make_ready(command.device)

    def remove(self, command: Command) -> None:
        """Take a command out, if it is in a queue."""
        if command.state in IN_QUEUE:
            self._take_out(command.device, command.device.queue.index(command))
            self.make_ready(command.device)

    def _take_out(self, device: Device, at: int) -> Command:
        """Take the command at index ``at`` out of a queue. The one behind it gets its timer."""
        queue = device.queue
        command = queue.pop(at)
        if at < len(queue) and not queue[at].due_ns:
            self._timers.set(queue[at], queue[at].deadline_ns)
        return command

    # --- whose turn it is ----------------------------------------------------------------------------

    def leaving(self, now_ns: int, has_room: Callable[[], bool]) -> Iterator[Command]:
        """The commands whose turn it is, out of their queues. The caller occupies a slot for each before the next."""
        self.wake_ns = None
        later: list[Device] = []  # devices that their own rate holds back
        while self._ready and has_room():
            if self._next_ns > now_ns:
                self.wake_ns = self._next_ns
                break
            device = self._ready.popleft()
            device.is_ready = False
            if not self._may_send(device):
                self.forget(device)
            elif device.next_ns > now_ns:
                later.append(device)
            else:
                yield self._take_out(device, 0)
                self.make_ready(device)
        for device in later:
            device.is_ready = True
            self._ready.append(device)
            self.wake_ns = device.next_ns if self.wake_ns is None else min(self.wake_ns, device.next_ns)

    def _may_send(self, device: Device) -> bool:
        if not device.queue or device.under_way >= self._in_flight:
            return False
        head, refused = device.queue[0], self._refused.get(device.name)
        return head.state is State.QUEUED and (refused is None or head.place < refused[0].place)

    def make_ready(self, device: Device) -> None:
        """Queue a device for its turn to send, unless it waits for one already or may not send."""
        if not device.is_ready and self._may_send(device):
            device.is_ready = True
            self._ready.append(device)

    def occupy(self, command: Command) -> None:
        """A command is under way."""
        command.has_slot = True
        command.device.under_way += 1

    def refuse(self, command: Command) -> None:
        """Hold the device's later commands back until ``release``: Kafka does not have the refusal yet.

        Without it, a worker sends the next command and dies; the next owner finds no refusal, and sends this one.
        """
        self._refused.setdefault(command.device.name, deque()).append(command)

    def release(self, command: Command) -> None:
        """Make room for the next command of the device."""
        device = command.device
        if command.has_slot:
            command.has_slot = False
            device.under_way -= 1
            self.make_ready(device)
        elif (refused := self._refused.get(device.name)) is not None and command in refused:
            refused.remove(command)  # most often the first
            if not refused:
                del self._refused[device.name]
            if (present := self._devices.get(device.name)) is not None:
                self.make_ready(present)

    def count(self, device: Device, now_ns: int) -> None:
        """Note for the rates that a command leaves."""
        # A rate counts from the time at which a command might have left, so that a pause of the loop is made up for.
        if self._rate_ns:
            self._next_ns = max(self._next_ns + self._rate_ns, now_ns - 1_000_000_000)
        if self._device_rate_ns:
            device.next_ns = now_ns + self._device_rate_ns
            # It is noted also for after the device was forgotten, in the order of the times.
            self._paced.pop(device.name, None)
            self._paced[device.name] = device.next_ns
            while self._paced and (first := next(iter(self._paced.items())))[1] <= now_ns:
                del self._paced[first[0]]

"""A run of simulated devices at an MQTT broker, and the counts of their messages."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bridge.waiting import end_tasks, until_set
from gateway.devices.commands import AnswerShares
from gateway.devices.device import DeviceConnectError, DeviceRefusedError, Way
from gateway.devices.fleet import Fleet, FleetCounts, FleetSettings, allow_a_socket_per_device
from gateway.devices.mischief import CORRUPT, FaultShares, Mischief
from gateway.devices.outbox import DeviceLedger

_FIRST_CONNECT_S = 15.0
_LOOK_S = 0.2
_DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class SimulationAccount:
    """The counts. A *reading* is a measurement, named by ``device`` and ``seq``; a *message* is a publication of it, of
    which a reading has none, one or two. Every acknowledged reading must be found downstream."""

    seconds: float
    devices: int
    readings: int
    messages: int
    acknowledged_messages: int
    acknowledged_readings: int
    duplicates: int
    reordered: int
    corrupt: int
    wrong_clocks: int
    disconnects: int
    reconnects: int
    unheard: int
    unsent: int
    """Messages that were never sent."""
    commands: int
    """Different commands that the devices received."""
    command_copies: int
    answers: int
    """Answers to commands that the broker acknowledged."""
    never_connected: int
    """Devices without a single connection; they have no readings."""

    @property
    def unacknowledged_messages(self) -> int:
        return self.messages - self.acknowledged_messages


def account_of(
    ledgers: Mapping[str, DeviceLedger],
    mischief: Mapping[str, Mischief],
    counts: FleetCounts,
    *,
    cuts: int,
    seconds: float,
) -> SimulationAccount:
    """The sum over all devices. Needs the ``mischief`` of each, also with all shares 0."""
    readings = messages = acknowledged = distinct = unsent = 0
    for device, ledger in ledgers.items():
        numbers = mischief[device].numbers
        readings += len({number for number in numbers[: ledger.published] if number != CORRUPT})
        messages += ledger.published
        acknowledged += ledger.acknowledged
        distinct += len(
            {
                number
                for ordinal, number in enumerate(numbers[: ledger.published])
                if number != CORRUPT and ordinal not in ledger.unacknowledged
            }
        )
        unsent += len(numbers) - ledger.published
    faults = mischief.values()
    return SimulationAccount(
        seconds=round(seconds, 3),
        devices=len(ledgers),
        readings=readings,
        messages=messages,
        acknowledged_messages=acknowledged,
        acknowledged_readings=distinct,
        duplicates=sum(one.duplicates for one in faults),
        reordered=sum(one.reordered for one in faults),
        corrupt=sum(one.corrupt for one in faults),
        wrong_clocks=sum(one.clock_offset_ms != 0 for one in faults),
        disconnects=cuts,
        reconnects=counts.reconnects,
        unheard=counts.unheard,
        unsent=unsent,
        commands=counts.commands,
        command_copies=counts.command_copies,
        answers=counts.answers,
        never_connected=counts.never_connected,
    )


async def simulate(
    settings: FleetSettings,
    way: Way,
    faults: FaultShares,
    duration_s: float,
    progress: Callable[[FleetCounts], None],
    answers: AnswerShares | None = None,
) -> SimulationAccount:
    """Let the devices publish for the given time, or until SIGINT or SIGTERM, and return the counts; ``progress``
    gets those so far. A second signal ends at once, without acknowledgements.

    Raises DeviceConnectError if no device can connect at the beginning."""
    allow_a_socket_per_device()
    loop = asyncio.get_running_loop()
    asked, forced = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (forced if asked.is_set() else asked).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    fleet = Fleet(settings, way=way, faults=faults, answers=answers or AnswerShares())
    fleet.start()
    try:
        await _first_connection(fleet, asked)
        flowing_s = loop.time()
        while not asked.is_set() and (left_s := flowing_s + duration_s - loop.time()) > 0:
            await until_set(asked, min(left_s, _LOOK_S))
            if (failure := fleet.failure()) is not None:
                raise failure
            progress(fleet.counts())
        seconds = loop.time() - flowing_s
    finally:
        await _stop(fleet, forced)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return account_of(fleet.ledger(), fleet.mischief(), fleet.counts(), cuts=fleet.cuts, seconds=seconds)


async def _first_connection(fleet: Fleet, asked: asyncio.Event) -> None:
    """Wait until a device is connected, or a stop is asked for. Raises DeviceConnectError."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _FIRST_CONNECT_S
    while not fleet.counts().connected and not asked.is_set():
        error = fleet.refusal()
        if isinstance(error, DeviceRefusedError) or (error is not None and loop.time() > deadline_s):
            raise error
        if loop.time() > deadline_s:
            raise DeviceConnectError(
                f"No device could connect within {_FIRST_CONNECT_S:g} s. Is the MQTT broker there?"
            )
        await asyncio.sleep(_LOOK_S)


async def _stop(fleet: Fleet, forced: asyncio.Event) -> None:
    """Stop the fleet within _DRAIN_S, or at once when ``forced`` is set."""
    stopping = asyncio.create_task(fleet.stop(_DRAIN_S))
    forcing = asyncio.create_task(forced.wait())
    await asyncio.wait({stopping, forcing}, return_when=asyncio.FIRST_COMPLETED)
    forcing.cancel()
    if not stopping.done():
        await end_tasks(stopping)
        await fleet.stop(0.0)

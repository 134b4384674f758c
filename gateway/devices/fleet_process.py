"""The fleet as a process of its own (``python -m gateway.devices.fleet_process``), so that the view does not delay it.

Its only argument is a JSON object with its settings. It writes JSON lines: ``progress`` twice a second, one ``ledger``
at the end, ``failed`` after an error. A line ``stop <seconds>`` on standard input ends it in order within that time.
The end of standard input, when the parent ends, ends it at once.
"""

import asyncio
import sys
import time
from dataclasses import asdict
from typing import Any

from gateway.base.process.child import run, say, words_of_parent
from gateway.devices.fleet import Fleet, FleetSettings, allow_a_socket_per_device
from gateway.devices.outbox import ledger_as_json

_PROGRESS_S = 0.5


async def _report(fleet: Fleet) -> None:
    """Report the counts to the parent until cancelled. Raises the defect that ended a task of the fleet."""
    while True:
        say("progress", at_s=time.monotonic(), **asdict(fleet.counts()), last_error=fleet.last_error())
        if (failure := fleet.failure()) is not None:
            raise failure
        await asyncio.sleep(_PROGRESS_S)


async def _run(arguments: dict[str, Any]) -> int:
    """Run the fleet until the parent says ``stop SECONDS``. Returns the exit status."""
    fleet = Fleet(FleetSettings(**arguments))
    commands = await words_of_parent()
    fleet.start()
    started = time.monotonic()
    reporting = asyncio.create_task(_report(fleet))
    waiting = asyncio.create_task(commands.readline())
    await asyncio.wait({reporting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if reporting.done():
        say("failed", message=f"the simulated devices broke: {reporting.exception()!r}")
        return 1
    words = (await waiting).split()
    if words[:1] != [b"stop"]:
        return 1  # the parent has ended, so nobody reads the ledger
    flow_s = time.monotonic() - started
    await fleet.stop(float(words[1]))
    reporting.cancel()
    counts = fleet.counts()
    say("progress", at_s=time.monotonic(), **asdict(counts), last_error="")
    say("ledger", seconds=round(flow_s, 3), unheard=counts.unheard, devices=ledger_as_json(fleet.ledger()))
    return 0


if __name__ == "__main__":
    allow_a_socket_per_device()
    sys.exit(run(_run))

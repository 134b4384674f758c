"""What a whole run of the demo comes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.devices.commanded import CommandAccount
    from gateway.local.demo.access import AccessCounts
    from gateway.local.demo.account import Account
    from gateway.local.demo.alerts import Loop
    from gateway.local.demo.chaos import ChaosResult
    from gateway.local.demo.show.watchdog import Standstill


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The account of a run, and how fast it was."""

    account: Account
    seconds: float
    """How long messages flowed."""
    latency_p50_ms: int | None
    latency_p99_ms: int | None
    chaos: ChaosResult | None = None
    """With faults: what was done, and how the plain bridge fared. The account is the gateway's alone."""
    access: AccessCounts | None = None
    """With an access service: what it answered."""

    commands: CommandAccount | None = None
    """What became of the commands to devices."""

    loop: Loop | None = None
    """With Spark: what its alerts led to."""

    report: Path | None = None
    """The page with plots, if one was made."""

    late: str = ""
    """A sentence when messages came through late."""
    standstills: tuple[Standstill, ...] = ()
    """Parts that took nothing for a while although there was something for them."""
    logs: Path | None = None
    """Where the logs were put, when something was found."""

    def findings(self) -> list[str]:
        """What people should read beside the account, in sentences."""
        found = [f"STOOD STILL: {one}" for one in self.standstills]
        if self.late:
            found.append(self.late)
        if self.logs is not None:
            found.append(f"The logs of all parts: {self.logs}")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            **self.account.as_json(),
            "seconds": round(self.seconds, 3),
            "latency_p50_ms": self.latency_p50_ms,
            "latency_p99_ms": self.latency_p99_ms,
            "late": bool(self.late),
            "standstills": [one.as_json() for one in self.standstills],
            **({} if self.chaos is None else {"chaos": self.chaos.as_json()}),
            **({} if self.commands is None else {"commands": self.commands.as_json()}),
            **({} if self.loop is None else {"loop": self.loop.as_json()}),
            **({} if self.access is None else {"access": self.access.as_json()}),
        }

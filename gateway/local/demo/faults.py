"""Does what the plan of ``--chaos`` says, at its times, to the running demo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from gateway.local.demo.account import examine
from gateway.local.demo.background import Background
from gateway.local.demo.chaos import ChaosResult, ChaosState, Fault, FaultKind, PlainCounts
from gateway.local.demo.plain import PLAIN_TOPIC, PlainBridge
from gateway.local.demo.records import count_kafka
from gateway.local.demo.services import DemoError, Services
from gateway.local.demo.show.state import DemoState, StepState

if TYPE_CHECKING:
    from gateway.devices.outbox import DeviceLedger
    from gateway.local.demo.show.view import View

_BACK_S = 60.0
_LOOK_S = 0.1


class Faults(Background):
    """The faults of one run, and the plain bridge that meets them too. It begins with the first message."""

    def __init__(
        self,
        services: Services,
        state: DemoState,
        view: View,
        before_kill: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``before_kill`` is awaited just before the gateway is killed."""
        assert state.chaos is not None
        self._before_kill = before_kill
        self._services = services
        self._state = state
        self._chaos: ChaosState = state.chaos
        self._view = view
        self._plain: PlainBridge | None = None
        self._calm = asyncio.Event()  # set: no more faults

    async def start_plain(self) -> None:
        """Starts the plain bridge; returns when it is subscribed."""
        step = self._state.steps["plain"]
        step.now(StepState.WORKING, "starting")
        services = self._services
        log = services.root / "plain-bridge.log"
        self._plain = PlainBridge(services.bootstrap, services.mqtt_port, log, self._on_plain)
        await self._plain.start()
        step.state = StepState.READY
        self._view.note("plain bridge: the same messages go through paho → aiokafka beside the gateway, to compare")

    async def calm(self) -> None:
        """No more faults, and an end of the present one; returns when both bridges are back."""
        self._calm.set()
        if self._task is not None:
            await self._task

    def check(self) -> None:
        """Raises what made a fault fail."""
        if self._plain is not None:
            self._plain.check()
        super().check()

    async def finish_plain(self) -> None:
        """Lets the plain bridge deliver what it has, and ends it. The MQTT broker must still be there."""
        assert self._plain is not None
        problem = await self._plain.finish()
        if problem is not None:
            self._view.warn(problem)
        flushed = "flushed" if problem is None else "not flushed"
        self._view.note(self._state.steps["plain"].now(StepState.STOPPED, flushed))

    async def examine(self, ledger: Mapping[str, DeviceLedger]) -> ChaosResult:
        """Reads the plain bridge's topic back and measures it as the gateway's is measured."""
        tally, _ = await count_kafka(self._services.bootstrap, PLAIN_TOPIC)
        return ChaosResult(self._chaos, examine("plain_bridge", tally, ledger, ordered=True))

    async def abandon(self) -> None:
        """Ends at once what this started; Kafka goes on. Safe to call at any time."""
        await self.end()
        if self._plain is not None:
            await self._plain.abandon()

    # ── the faults ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """The planned faults; those that :meth:`calm` forestalls are left out."""
        plan = self._chaos.plan
        if await self._wait_until(plan.kill_s):
            await self._kill()
        if await self._wait_until(plan.freeze_s) and await self._wait_for_spark():
            await self._freeze()

    async def _kill(self, *, while_frozen: bool = False) -> None:
        """Kills the gateway's worker and the plain bridge; returns when the gateway is back."""
        assert self._plain is not None
        if self._before_kill is not None and not while_frozen:  # frozen, Kafka would take nothing
            await self._before_kill()
        pid = await self._services.kill_worker()
        fault = Fault(FaultKind.KILLED, self._now_s(), while_frozen=while_frozen)
        self._chaos.faults.append(fault)
        await self._plain.kill()
        self._tell(fault)
        await self._await_back(fault, pid)
        self._tell(fault)

    async def _await_back(self, fault: Fault, pid: int) -> None:
        """Until the gateway's supervisor has started another worker, and that has its MQTT sessions."""
        while not await self._services.worker_serves(other_than=pid):
            if self._now_s() - fault.at_s > _BACK_S:
                raise DemoError(f"The gateway was killed and did not come back within {_BACK_S:g} s.")
            await asyncio.sleep(_LOOK_S)
        fault.over_s = self._now_s() - fault.at_s

    async def _freeze(self) -> None:
        """Freezes Kafka, kills the gateway meanwhile, and lets Kafka go on; :meth:`calm` shortens it."""
        plan = self._chaos.plan
        async with asyncio.TaskGroup() as group:
            fault = Fault(FaultKind.FROZEN, self._now_s())
            try:
                await self._services.freeze_kafka()
                self._chaos.faults.append(fault)
                self._tell(fault)
                if await self._wait_until(fault.at_s + plan.kill_frozen_s - plan.freeze_s):
                    group.create_task(self._kill(while_frozen=True))
                await self._wait_until(fault.at_s + plan.frozen_for_s)
            finally:
                await self._services.thaw_kafka()
                fault.over_s = self._now_s() - fault.at_s
            self._tell(fault)

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_until(self, at_s: float) -> bool:
        """Waits until that second of the run; False if :meth:`calm` comes first."""
        try:
            async with asyncio.timeout(max(0.0, at_s - self._now_s())):
                await self._calm.wait()
        except TimeoutError:
            return not self._calm.is_set()
        return False

    async def _wait_for_spark(self) -> bool:
        """Waits until Spark's jobs run: they would end if Kafka were frozen at their start. False if :meth:`calm` comes
        first."""
        spark = self._state.steps.get("spark")
        while spark is not None and spark.state is not StepState.READY:
            if not await self._wait_until(self._now_s() + _LOOK_S):
                return False
        return True

    def _now_s(self) -> float:
        return self._state.flow_seconds(time.monotonic())

    def _tell(self, fault: Fault) -> None:
        self._view.note(f"fault: {fault}")

    def _on_plain(self, counts: PlainCounts) -> None:
        self._chaos.plain = counts
        step = self._state.steps["plain"]
        step.detail = f"to compare: {counts.received:,} acknowledged, {counts.in_memory:,} of them in its memory alone"
        step.trouble = "" if counts.running or step.state is not StepState.READY else "killed (kill -9); starting again"

"""What looks from a worker's places changes with the settings, also while the worker stops."""

import asyncio
from typing import Any

from gateway.health.lookouts import _Seat


class Lookout:
    def __init__(self, said: list[str], name: str, let_go: asyncio.Event) -> None:
        self._said, self._name, self._let_go = said, name, let_go

    async def start(self) -> None:
        self._said.append(f"{self._name} starts")

    async def stop(self, _deadline_ns: int) -> None:
        await self._let_go.wait()
        self._said.append(f"{self._name} stops")

    def facts(self) -> dict[str, object]:
        return {}

    def problems(self) -> tuple[Any, ...]:
        return ()


async def test_a_stop_while_another_takes_over_leaves_nobody_behind() -> None:
    """The old one takes its time to end: by then the worker has stopped, and nobody would end the new one."""
    said: list[str] = []
    names = iter(("first", "second"))
    let_go = asyncio.Event()
    seat: _Seat[Any] = _Seat("place", lambda: Lookout(said, next(names), let_go))
    await seat.start()
    renewal = asyncio.create_task(seat.renew())
    await asyncio.sleep(0)
    stop = asyncio.create_task(seat.stop(0))
    await asyncio.sleep(0)
    let_go.set()
    await asyncio.gather(renewal, stop)
    assert "second starts" not in said
    assert "first stops" in said


async def test_another_takes_over_in_its_turn() -> None:
    said: list[str] = []
    names = iter(("first", "second"))
    let_go = asyncio.Event()
    let_go.set()
    seat: _Seat[Any] = _Seat("place", lambda: Lookout(said, next(names), let_go))
    await seat.renew()
    assert not said, "nothing before the start"
    await seat.start()
    await seat.renew()
    await seat.stop(0)
    assert said == ["first starts", "first stops", "second starts", "second stops"]

"""What looks from a worker's places changes with the settings, also while the worker stops."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from config.settings import Settings
from gateway.base.lifecycle import Lifecycle
from gateway.base.metrics import Metrics
from gateway.health.lookouts import Lookouts, _Seat


class Lookout:
    def __init__(self, said: list[str], name: str, let_go: asyncio.Event) -> None:
        self._said, self._name, self._let_go = said, name, let_go

    async def start(self) -> None:
        self._said.append(f"{self._name} starts")

    async def stop(self, _deadline_ns: int) -> None:
        await self._let_go.wait()
        self._said.append(f"{self._name} stops")


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


async def test_consumers_are_watched_with_the_password_of_a_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without [admin], their login is Kafka's: with the former password each look would fail for ever."""

    def settings(password: str) -> Settings:
        sasl = {"username": "gateway", "password": password}
        return Settings(kafka={"security": "SASL_SSL", "sasl": sasl}, admin={"watch_groups": ["readers"]})

    shown: asyncio.Queue[str] = asyncio.Queue()

    async def look(watch: Any) -> None:
        shown.put_nowait(watch._settings.kafka.sasl.password.get_secret_value())

    monkeypatch.setattr("gateway.admin.watch.GroupWatch.look", look)
    monkeypatch.setattr("gateway.admin.watch._FIRST_LOOK_S", 0)
    before = settings("former")
    worker: Any = SimpleNamespace(settings=before, metrics=Metrics(before), mqtt=SimpleNamespace(sessions=()))
    lookouts = Lookouts(worker, Lifecycle())
    for one in lookouts.core:
        await one.start()
    assert await shown.get() == "former"
    worker.settings = settings("present")
    await lookouts.adopt(before)
    assert await shown.get() == "present"
    for one in lookouts.core:
        await one.stop(0)

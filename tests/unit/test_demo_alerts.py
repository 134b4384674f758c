"""The demo's loop: an alert of the job anomalies becomes one command, and the account tells what became of it."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.loading.load import load
from gateway.devices.commands import AnswerShares, Obedience
from gateway.devices.fleet import Fleet, FleetSettings
from gateway.devices.physics import build_fleet
from gateway.local.demo import alerts, run
from gateway.local.demo.alerts import SUBJECT, Alerts, Loop, render_loop
from gateway.local.demo.options import FAULTY_FROM, DemoOptions, gateway_toml
from gateway.local.demo.run import _Demo
from gateway.local.demo.show.state import DemoState, SparkCounts
from gateway.local.demo.show.view import View
from streaming.anomalies.detectors import SignalModel
from streaming.anomalies.job import limits_of

T0 = 1_795_600_000_000


def record(alert_id: str = "a1", kind: str = "outlier", **more: Any) -> bytes:
    said = {
        "alert_id": alert_id, "device": "pump-7", "signal": "voltage", "kind": kind,
        "event_time": datetime.fromtimestamp(T0 / 1000, UTC).isoformat(), "value": 4.5, "median": 3.0, **more,
    }  # fmt: skip
    return json.dumps(said).encode()


def status(name: str, at_ms: int, *, terminal: bool = True) -> bytes:
    return json.dumps({"id": "a1", "status": name, "terminal": terminal, "at_ms": at_ms}).encode()


class Rig:
    def __init__(self) -> None:
        self.commands: list[tuple[str, str, str]] = []
        self.said: list[str] = []
        self.alerts = Alerts("unused", self._command, self.said.append)

    async def _command(self, *words: str) -> int:
        self.commands.append(words)  # type: ignore[arg-type]
        return T0 + 8_100


async def test_an_alert_becomes_one_command_and_its_answer_is_told() -> None:
    rig = Rig()
    for value in (record("s", "score"), record("q", "silence", signal=None), record(), record()):
        await rig.alerts.take_alert(value, T0 + 8_000)
    assert rig.commands == [("pump-7", SUBJECT, "a1")], "copies, scores and silences lead to none"
    for value in (status("sent", T0 + 8_150, terminal=False), status("succeeded", T0 + 8_200), status("late", T0)):
        rig.alerts.take_status(value)
    [alert] = rig.alerts.found
    assert (alert.status, alert.finished_ms) == ("succeeded", T0 + 8_200)
    assert rig.said[-1] == "pump-7: succeeded, 8.20 s after the reading."
    text = render_loop(Loop("pump-7", (alert,)))
    assert "pump-7: voltage 4.50, where 3.00 was usual" in text
    assert "8.00 s after the reading" in text
    assert "0.10 s after the alert" in text
    assert "succeeded           0.10 s after the command" in text
    assert max(map(len, [*text.splitlines(), *rig.said])) <= 80


async def test_what_has_not_come_is_said_and_nothing_more() -> None:
    assert "Spark's alert had not come" in render_loop(Loop("pump-7"))
    assert "too short" in render_loop(Loop(None))
    rig = Rig()
    await rig.alerts.take_alert(record(), T0 + 8_000)
    text = render_loop(Loop("pump-1", rig.alerts.found))
    assert "not finished      without a status" in text
    assert "pump-1 measured wrong, and Spark's alert about it had not come" in text


async def test_the_loop_is_closed_once_the_command_of_the_devices_alert_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerts, "_AFTER_S", 0.0)
    rig = Rig()
    mine, other = (asyncio.create_task(rig.alerts.wait_closed(device)) for device in ("pump-7", "pump-1"))
    await rig.alerts.take_alert(record(), T0 + 8_000)
    rig.alerts.take_status(status("sent", T0 + 8_150, terminal=False))
    await asyncio.sleep(0)
    assert not mine.done(), "the command is under way"
    rig.alerts.take_status(status("succeeded", T0 + 8_200))
    await asyncio.wait_for(mine, 30)
    assert not other.done(), "it is another device's"
    assert [rig.alerts.is_closed(device) for device in ("pump-7", "pump-1")] == [True, False]
    other.cancel()


@pytest.mark.parametrize("devices", [1, 200])
def test_the_job_finds_the_fault_and_nothing_else(tmp_path: Path, devices: int) -> None:
    """With the settings that the demo gives it, on what the devices measure in a minute."""
    file = tmp_path / "gateway.toml"
    file.write_text(gateway_toml(tmp_path, mqtt_port=1, bootstrap="127.0.0.1:2", http_port=3))
    settings = load(file, environ={}).settings.stream.anomalies
    assert "voltage" not in settings.skip
    found = []
    for number, device in enumerate(build_fleet(devices, 1)):
        model = SignalModel(limits_of(settings), settings.min_scale.get("voltage", 0.0))
        for second in range(60):
            wrong = 1.5 if number == 0 and FAULTY_FROM <= second < 35 else 1.0
            verdict = model.judge(1_000_000 * second, wrong * device.read(21_600 + 360 * second)["voltage"])
            if verdict is not None and verdict.kind != "score":
                found.append((number, second, verdict.kind))
    assert found == [(0, FAULTY_FROM, "outlier")]


def test_a_command_ends_the_fault_of_the_sensor() -> None:
    device = Obedience(AnswerShares(), 1, "pump-7")
    device.obey("a", b'{"every": 1, "recalibrate": 1}')
    assert not device.recalibrated
    assert device.obey("b", json.dumps({SUBJECT: True}).encode()).status == 200
    assert device.recalibrated


async def test_only_the_first_device_measures_wrong_and_only_until_it_is_told_to_recalibrate() -> None:
    fleet = Fleet(FleetSettings("127.0.0.1", 1, devices=2, rate=1.0, seed=1, faulty_from=2))
    seen: list[list[float]] = []
    for device in fleet._devices:
        device.connects = 1
        for moment in range(6):
            if moment == 4:
                device.obedience.obey("a", json.dumps({SUBJECT: True}).encode())
            device.take_reading(21_600 + 60.0 * moment)
        volts = []
        while (message := device.outbox.head()) is not None:
            volts.append(json.loads(message.payload)["voltage"])
            device.outbox.sent(len(volts))
        seen.append(volts)
    first, second = seen
    right = [device.read(21_600)["voltage"] for device in build_fleet(2, 1)]
    assert [round(volts / right[0], 1) for volts in first] == [1.0, 1.0, 1.5, 1.5, 1.0, 1.0]
    assert {round(volts / right[1], 1) for volts in second} == {1.0}


async def test_that_messages_flow_on_is_told_once() -> None:
    told: list[str] = []
    state = DemoState(devices=1, with_spark=True, duration_s=60.0, spark=SparkCounts(started=True, rows=1))
    stopping = asyncio.create_task(asyncio.Event().wait())

    class Notes(View):
        def note(self, text: str) -> None:
            told.append(text)
            if len(told) == 2:
                stopping.cancel()

    demo = _Demo(DemoOptions(devices=1), state, Notes())
    demo._alerts = Rig().alerts
    async with asyncio.timeout(60):
        await demo._await_alert(stopping)
    await demo._services.abandon()
    assert [text.startswith("messages flow on") for text in told] == [False, True]


async def test_a_device_that_publishes_seldom_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, now_s = DemoState(devices=1, with_spark=False, duration_s=60.0), 0.0

    class Devices:
        def __init__(self, *_: object) -> None: ...

        async def start(self, *_: object) -> None: ...

        def check(self) -> None:
            nonlocal now_s
            now_s += 10
            state.flow_started_s = now_s if now_s > 90 else None  # of a message in 100 s

    demo: Any = _Demo(DemoOptions(devices=1, rate=0.01, spark=False), state, View())
    await demo._services.abandon()
    demo._services = SimpleNamespace(root=tmp_path, mqtt_port=1, check=lambda: None)
    monkeypatch.setattr(run, "Child", Devices)
    monkeypatch.setattr(run, "_REFRESH_S", 0)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now_s))
    await demo._start_fleet()
    assert now_s == 100

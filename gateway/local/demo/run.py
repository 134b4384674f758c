"""The demo from its first line to its account: start, flow, stop in an order that loses nothing, read back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import ConfigError
from gateway.base.process.child import Child
from gateway.devices.outbox import DeviceLedger, ledger_from_json
from gateway.devices.physics import build_fleet
from gateway.local.demo.access import DemoAccess
from gateway.local.demo.account import Account, Stage, examine
from gateway.local.demo.alerts import Alerts, Loop
from gateway.local.demo.background import in_thread
from gateway.local.demo.commander import Commander
from gateway.local.demo.faults import Faults
from gateway.local.demo.options import (
    ALERTS_TOPIC,
    COMMANDS_TOPIC,
    FAULTY_FROM,
    LAKE,
    PARTITIONS,
    TOPIC,
    DemoOptions,
)
from gateway.local.demo.records import count_kafka, count_silver, make_topics, read_signal, read_windows
from gateway.local.demo.result import DemoResult
from gateway.local.demo.services import DemoError, Services
from gateway.local.demo.show.state import DemoState, GatewayCounts, StepState, Window, WitnessCounts
from gateway.local.demo.show.watchdog import Watchdog, lateness

if TYPE_CHECKING:
    from gateway.devices.commanded import CommandAccount
    from gateway.local.demo.show.view import View

_REFRESH_S = 0.25
_SCRAPE_S = 0.5
_CONNECT_S = 60.0
_DRAIN_DEVICES_S = 20.0
_DRAIN_GATEWAY_S = 30.0
_SPARK_START_S = 180.0  # 15 s on two idle cores, over a minute on busy ones
_ALERT_S = 60.0  # how long an alert may come after Spark's first rows, for which the demo waits in any case
_SPARK_STALL_S = 120.0  # how long Spark may be behind Kafka without a single new row; the first batch is the slowest


async def run_demo(options: DemoOptions, state: DemoState, view: View) -> DemoResult:
    """Runs the whole demo and returns its account; the view must be started.

    The first SIGINT or SIGTERM ends the flow early, in order and with the account. One before messages flow, a second
    one, and SIGHUP (the terminal is gone, nobody would read the account) end everything at once (CancelledError).
    Raises GatewayError when a part fails. Nothing is left running in any case.
    """
    return await _Demo(options, state, view).run()


class _Demo:
    def __init__(self, options: DemoOptions, state: DemoState, view: View) -> None:
        self._options = options
        self._state = state
        self._view = view
        self._root: Path | None = None
        self._access = DemoAccess(state, view, lambda: self._services.root) if options.auth else None
        self._services = Services(state, view, self._make_root, keep=options.keep is not None, access=self._access)
        self._fleet: Child | None = None
        self._witness: Child | None = None
        self._commander: Commander | None = None
        self._alerts: Alerts | None = None
        self._devices = [model.device for model in build_fleet(options.devices, options.seed)]
        self._faults = None if state.chaos is None else Faults(self._services, state, view, self._before_kill)
        self._ledger: Mapping[str, DeviceLedger] | None = None
        self._unheard = 0  # acknowledged to devices while no gateway was subscribed
        self._watchdog = Watchdog(options.devices * options.rate)
        self._asked_s = 0.0  # when the gateway's present counts were asked for
        self._stop = asyncio.Event()
        self._signals = 0
        self._background: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None

    async def run(self) -> DemoResult:
        if self._options.keep is not None:
            _require_empty(self._options.keep)
        self._watching = watching = asyncio.create_task(self._watch())
        task = asyncio.current_task()
        assert task is not None
        with _signal_handlers(lambda number: self._on_signal(number, task)):
            try:
                await self._start()
                await self._flow()
                return await self._finish()
            except ExceptionGroup as group:
                raise _first(group) from None
            finally:
                await end_tasks(watching)
                await self._clean_up()

    # ── the four acts ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _start(self) -> None:
        self._say("starting a real Kafka and a real MQTT broker")
        await in_thread(self._services.announce_downloads)
        if self._access is not None:
            await self._access.start(self._options)
        await self._services.start_brokers()
        await make_topics(self._services.bootstrap, {COMMANDS_TOPIC: PARTITIONS, ALERTS_TOPIC: 1})
        self._say("starting the gateway")
        await self._services.start_gateway()
        if self._faults is not None:
            self._say("starting the plain bridge beside it")
            await self._faults.start_plain()
        self._say("connecting the devices")
        await self._start_witness()
        await self._start_fleet()

    async def _flow(self) -> None:
        """Lets messages flow for the wanted time (with Spark until its alert is answered), or until a signal."""
        self._say("messages flow; Ctrl-C ends")
        bootstrap = self._services.bootstrap
        self._commander = commander = Commander(bootstrap, self._devices)
        await commander.start()
        if self._options.spark:
            self._background.append(asyncio.create_task(self._services.start_spark()))
            self._alerts = Alerts(bootstrap, commander.tell, self._view.warn)
            self._alerts.begin()
        if self._faults is not None:
            self._faults.begin()
        assert self._state.flow_started_s is not None
        left_s = self._state.flow_started_s + self._options.duration_s - time.monotonic()
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await self._wait_checking(stopping, left_s)
            if self._faults is not None:
                await self._faults.calm()
            await self._await_alert(stopping)
        finally:
            stopping.cancel()
        self._state.flow_ended_s = time.monotonic()

    async def _finish(self) -> DemoResult:
        """Stops in the order that loses nothing: devices, gateway, then Spark when it has read what Kafka has."""
        state, services, alerts = self._state, self._services, self._alerts
        commands = await self._finish_commands()
        ledger = await self._stop_fleet()
        commands = commands.with_devices(
            received=state.commands, copies=state.command_copies, answers=state.command_answers
        )
        await self._drain()
        self._say("reading every message back from Kafka")
        kafka, ends = await count_kafka(services.bootstrap, TOPIC)
        state.witness = replace(state.witness, ends=ends)
        stages = [examine("kafka", kafka, ledger, ordered=True)]
        chaos = None if self._faults is None else await self._faults.examine(ledger)
        if alerts is not None:
            stages.append(await self._finish_spark(ends, ledger))
        loop = None if alerts is None else await self._close_loop(alerts, ledger)
        report = None if alerts is None else self._report_page()
        access = None if self._access is None else await self._access.counts()
        await services.stop_kafka()
        await asyncio.gather(*self._background)
        account = self._account(ledger, stages)
        self._say("done")
        late = "" if self._faults is not None else lateness(state.witness.p50_ms, state.witness.p99_ms)
        findings = (late, *map(str, self._watchdog.found), account.missing or account.pending)
        return DemoResult(
            account,
            seconds=state.flow_seconds(time.monotonic()),
            latency_p50_ms=state.witness.p50_ms,
            latency_p99_ms=state.witness.p99_ms,
            chaos=chaos,
            access=access,
            commands=commands,
            loop=loop,
            report=report,
            late=late,
            standstills=tuple(self._watchdog.found),
            logs=services.save_logs() if any(findings) and self._options.keep is None else None,
        )

    async def _finish_commands(self) -> CommandAccount:
        assert self._commander is not None
        self._say("the last commands are answered")
        if self._alerts is not None:
            await self._alerts.end()
        await self._commander.end()
        return await self._commander.finished()

    async def _drain(self) -> None:
        """Stops the gateway, the plain bridge, the MQTT broker and the witness, once each has what there is for it."""
        self._say("the gateway takes in what is left, and drains")
        await self._await_received()
        self._state.drained = True
        await self._services.stop_gateway()
        if self._faults is not None:
            self._say("the plain bridge takes in what is left, and flushes")
            await self._faults.finish_plain()
        self._background.append(asyncio.create_task(self._services.stop_mqtt()))
        await self._stop_witness()

    async def _finish_spark(self, ends: Mapping[int, int], ledger: Mapping[str, DeviceLedger]) -> Stage:
        """Stops Spark once it has read up to ``ends``, and reads its table silver back."""
        state = self._state
        self._say("Spark catches up with Kafka")
        state.catching_up = True
        await self._await_spark(ends)
        state.catching_up = False
        self._say("drawing the report")
        await self._services.stop_spark()
        self._background.append(asyncio.create_task(self._services.stop_kafka()))
        self._say("reading every message back from silver")
        tally = await in_thread(lambda: count_silver(self._services.root / LAKE))
        if state.spark.quarantined:
            self._view.warn(f"Spark put {state.spark.quarantined:,} records into quarantine as unreadable.")
        return replace(examine("silver", tally, ledger, ordered=False), unread=state.spark.lag(ends))

    def _report_page(self) -> Path | None:
        """The page that Spark has written, if it has: the account matters more."""
        if self._services.report.is_file():
            return self._services.report
        self._view.warn("There is no report: Spark's log says why.")
        return None

    def _account(self, ledger: Mapping[str, DeviceLedger], stages: list[Stage]) -> Account:
        return Account(
            devices=sum(entry.published > 0 for entry in ledger.values()),
            wanted=self._options.devices,
            published=sum(entry.published for entry in ledger.values()),
            acknowledged=sum(entry.acknowledged for entry in ledger.values()),
            received=self._state.gateway.received,
            unheard=self._unheard,
            stages=tuple(stages),
            killed=self._state.chaos is not None and self._state.chaos.killed,
        )

    async def _clean_up(self) -> None:
        await end_tasks(*self._background)
        if self._faults is not None:
            await self._faults.abandon()
        if self._alerts is not None:
            await self._alerts.end()
        if self._commander is not None:
            await self._commander.abandon()
        for child in (self._fleet, self._witness):
            if child is not None:
                await child.kill()
        await self._services.abandon()
        if self._access is not None:
            await self._access.stop()
        if self._root is not None and self._options.keep is None:
            shutil.rmtree(self._root, ignore_errors=True)

    # ── devices and witness ────────────────────────────────────────────────────────────────────────────────────────

    async def _start_fleet(self) -> None:
        options, step = self._options, self._state.steps["devices"]
        step.now(StepState.WORKING, "connecting")
        self._fleet = Child(
            "gateway.devices.fleet_process", "The process of the devices", self._services.root / "devices.log"
        )
        arguments = {
            "host": "127.0.0.1",
            "port": self._services.mqtt_port,
            "devices": options.devices,
            "rate": options.rate,
            "seed": options.seed,
            "secrets_file": "" if self._access is None else str(self._access.process.devices_file),
            "commands": True,
            "faulty_from": FAULTY_FROM if options.spark else 0,
        }
        await self._fleet.start(arguments, self._on_fleet)
        patience_s = _CONNECT_S + 1 / options.rate
        deadline_s = time.monotonic() + patience_s
        while self._state.flow_started_s is None:
            self._check_parts()
            if time.monotonic() > deadline_s:
                raise DemoError(f"No device has published anything in {patience_s:.0f} s. {self._state.device_error}")
            await asyncio.sleep(_REFRESH_S)
        step.state = StepState.READY
        self._view.note(f"devices: messages flow from {self._state.connected} of {options.devices}")

    def _on_fleet(self, line: dict[str, Any]) -> None:
        """Takes a line of the devices' process."""
        state = self._state
        match line["event"]:
            case "progress":
                state.connected, state.published = line["connected"], line["published"]
                state.acknowledged, state.device_error = line["acknowledged"], line["last_error"]
                state.commands, state.command_copies = line["commands"], line["command_copies"]
                state.command_answers = line["answers"]
                state.fleet_moments.note((state.published, state.acknowledged), line["at_s"], line["at_s"])
                if state.published and state.flow_started_s is None:
                    state.flow_started_s = time.monotonic()
                state.steps["devices"].detail = _devices_detail(line, self._options)
            case "ledger":
                self._ledger, self._unheard = ledger_from_json(line["devices"]), line["unheard"]
            case "failed":
                state.device_error = line["message"]

    async def _stop_fleet(self) -> Mapping[str, DeviceLedger]:
        assert self._fleet is not None
        self._say("the devices stop, and wait for their last acknowledgements")
        await self._fleet.tell(f"stop {_DRAIN_DEVICES_S}")
        await self._fleet.finished(_DRAIN_DEVICES_S + 10.0)
        self._fleet = None
        if self._ledger is None:
            raise DemoError(f"The devices ended without their account. {self._state.device_error}")
        self._state.steps["devices"].now(StepState.STOPPED, "all said goodbye")
        self._view.note(f"devices: stopped after {self._state.published:,} messages")
        return self._ledger

    async def _start_witness(self) -> None:
        """Starts the process that reads Kafka along and reports latencies and counts."""
        self._witness = Child("gateway.local.demo.witness", "The latency witness", self._services.root / "witness.log")
        arguments = {
            "bootstrap": self._services.bootstrap,
            "topic": TOPIC,
            "partitions": PARTITIONS,
            "distinct": self._faults is not None,  # a killed gateway's messages come twice
        }
        await self._witness.start(arguments, self._on_witness)

    def _on_witness(self, line: dict[str, Any]) -> None:
        del line["event"]
        at_s, ends = line.pop("at_s"), {int(partition): end for partition, end in line.pop("ends").items()}
        self._state.witness = WitnessCounts(ends=ends, **line)
        self._state.witness_moments.note(self._state.witness, at_s, at_s)

    async def _stop_witness(self) -> None:
        """Stops the witness. Call it after the gateway's drain, for the slowest messages to be in its percentiles."""
        assert self._witness is not None
        await self._witness.tell("stop")
        await self._witness.finished(10.0)
        self._witness = None

    # ── waiting ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_checking(self, waited: asyncio.Task[Any], timeout_s: float) -> None:
        """Waits for a task or the time, whichever is first, and fails as soon as a part of the demo does."""
        deadline_s = time.monotonic() + timeout_s
        while not waited.done() and (left_s := deadline_s - time.monotonic()) > 0:
            self._check_parts()
            await asyncio.wait({waited}, timeout=min(left_s, _SCRAPE_S))

    async def _await_alert(self, stopping: asyncio.Task[Any]) -> None:
        """Until the device that measures wrong has been told to recalibrate, for some time beyond the run's own."""
        options, device = self._options, self._devices[0]
        if self._alerts is None or stopping.done() or options.duration_s * options.rate <= FAULTY_FROM:
            return
        if self._alerts.is_closed(device):
            return
        self._say("the time is over: Spark's alert and its answer are awaited; Ctrl-C ends")
        closed = asyncio.create_task(self._alerts.wait_closed(device))
        stopping.add_done_callback(lambda _: closed.cancel())
        deadline_s, has_rows = time.monotonic() + _SPARK_START_S, False
        while not closed.done() and time.monotonic() < deadline_s:
            if not has_rows and self._state.spark.rows:
                deadline_s, has_rows = time.monotonic() + _ALERT_S, True
                self._say(f"messages flow on for at most {_ALERT_S:g} s, until Spark's alert is answered; Ctrl-C ends")
            await self._wait_checking(closed, _REFRESH_S)
        closed.cancel()

    async def _await_received(self) -> None:
        """Until the gateway has received all that was acknowledged to the devices and settled it, or gets no more."""
        state = self._state
        deadline_s, last = time.monotonic() + _DRAIN_GATEWAY_S, -1
        while time.monotonic() < deadline_s:
            self._check_parts()
            asked_s = time.monotonic()
            counts = await self._services.read_gateway()
            if counts is not None:
                self._take_counts(counts, asked_s)
                # A killed gateway's counts have a hole; then Kafka is asked whether everything is there.
                taken = counts.received if state.witness.distinct is None else state.witness.distinct
                if taken >= state.acknowledged and counts.unacked == 0 and counts.in_flight == 0:
                    return
                if taken > last:
                    deadline_s, last = time.monotonic() + _DRAIN_GATEWAY_S, taken
            await asyncio.sleep(_REFRESH_S)
        self._view.warn(
            f"The gateway has taken in {last:,} of {state.acknowledged:,} acknowledged messages,"
            f" and nothing more for {_DRAIN_GATEWAY_S:g} s."
        )

    async def _await_spark(self, ends: Mapping[int, int]) -> None:
        """Until silver has what Kafka has, or Spark makes no progress for too long."""
        deadline_s, rows = time.monotonic() + _SPARK_START_S, -1
        while self._state.spark.lag(ends) > 0:
            self._check_parts()
            if self._state.spark.rows > rows and self._state.spark.started:
                deadline_s, rows = time.monotonic() + _SPARK_STALL_S, self._state.spark.rows
            if time.monotonic() > deadline_s:
                self._view.warn(
                    f"Spark is {self._state.spark.lag(ends):,} records behind Kafka and stands still; not waiting on."
                )
                return
            await asyncio.sleep(_REFRESH_S)

    async def _close_loop(self, alerts: Alerts, ledger: Mapping[str, DeviceLedger]) -> Loop:
        """What the alerts led to, by the records of Kafka and of silver."""
        assert self._commander is not None
        for _, value in self._commander.statuses:
            alerts.take_status(value)
        found = []
        for one in alerts.found:
            if one.finished_ms is not None:
                lake = self._services.root / LAKE
                readings = partial(read_signal, lake, one.device, one.signal, one.finished_ms)
                one = replace(one, after=await in_thread(readings))
            found.append(one)
        device = self._devices[0]
        return Loop(device if ledger[device].published > FAULTY_FROM else None, tuple(found))

    async def _watch(self) -> None:
        """Keeps the state fresh and the view drawn."""
        scrape_due_s = 0.0
        scraping: asyncio.Task[None] | None = None  # one that does not answer must not hold up the view
        reading: asyncio.Task[tuple[Window, ...]] | None = None
        gold_batches = 0
        while True:
            now_s = time.monotonic()
            if scraping is not None and scraping.done():
                scraping = scraping.result()
            if scraping is None and now_s >= scrape_due_s and self._state.steps["gateway"].state is StepState.READY:
                scrape_due_s = now_s + _SCRAPE_S
                scraping = asyncio.create_task(self._scrape(now_s))
            self._services.read_spark()
            if reading is not None and reading.done():
                if reading.exception() is None:  # of what is only looked at, the next batch brings the next chance
                    self._state.windows = reading.result()
                reading = None
            if reading is None and self._state.spark.gold_batches > gold_batches:
                gold_batches = self._state.spark.gold_batches
                reading = asyncio.create_task(in_thread(lambda: read_windows(self._services.root / LAKE)))
            self._state.update_rates(now_s)
            self._look_for_standstills()
            self._view.refresh()
            await asyncio.sleep(_REFRESH_S)

    async def _scrape(self, asked_s: float) -> None:
        """Reads the gateway's counts into the state."""
        counts = await self._services.read_gateway()
        self._state.gateway_answers = counts is not None
        if counts is not None and not self._state.steps["gateway"].trouble:
            # One that is coming back knows its spool, and its counts, only when it is there.
            self._take_counts(counts, asked_s)

    def _look_for_standstills(self) -> None:
        """Warn of a part that stands still while messages flow or drain. With planned faults nothing is reported."""
        if self._state.flow_started_s is None or self._state.drained or self._faults is not None:
            return
        changed = self._watchdog.look(self._state, time.monotonic())
        if changed is not None:
            self._view.warn(changed.text if changed.seconds is None else f"It goes on, after {changed.seconds:.0f} s.")

    def _take_counts(self, counts: GatewayCounts, asked_s: float) -> None:
        """Takes the gateway's counts in, which were asked for at ``asked_s``."""
        state = self._state
        if asked_s < self._asked_s:
            return  # an answer that was slow: a newer one has come before it
        self._asked_s = asked_s
        state.gateway = counts
        state.gateway_moments.note(counts, asked_s, time.monotonic())
        if state.chaos is not None:
            at_s = state.flow_seconds(time.monotonic())
            state.chaos.spool.add(at_s, counts.spool_messages, counts.spool_bytes)

    async def _before_kill(self) -> None:
        if self._commander is not None:
            await self._commander.burst()

    def _check_parts(self) -> None:
        """Raises the error of a part or task that has failed."""
        for part in (
            self._services, self._commander, self._alerts, self._access, self._faults, self._fleet, self._witness
        ):  # fmt: skip
            if part is not None:
                part.check()
        for task in (*self._background, self._watching):
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_root(self) -> Path:
        if self._options.keep is not None:
            self._root = self._options.keep.resolve()
        else:
            self._root = Path(tempfile.mkdtemp(prefix="gateway-demo-"))
        return self._root

    def _say(self, headline: str) -> None:
        self._state.headline = headline
        self._view.note(headline)

    def _on_signal(self, number: signal.Signals, task: asyncio.Task[Any]) -> None:
        self._signals += 1
        if self._signals > 2:
            os._exit(128 + signal.SIGINT)  # cleaning up hangs; the guards end what we started
        if number is not signal.SIGHUP and self._signals == 1 and self._state.flow_started_s is not None:
            self._view.warn("Ending in order, with the account. Once more ends at once, without it.")
            self._stop.set()
        else:
            task.cancel()


def _devices_detail(line: Mapping[str, Any], options: DemoOptions) -> str:
    text = f"{line['connected']} of {options.devices} connected, {options.rate:g} msg/s each"
    if line["reconnects"]:
        text += f", {line['reconnects']} reconnects"
    if line["refused"]:
        text += f", {line['refused']} messages refused by the MQTT broker and sent again"
    return text


def _require_empty(folder: Path) -> None:
    """Makes the folder if it is missing. Raises ConfigError for one that is not empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"--keep {folder}: it exists and is not an empty folder. Give one that is, or a new name."
            )
    except OSError as error:
        raise ConfigError(f"--keep {folder}: it cannot be made a folder for the data: {words(error)}.") from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The first error of a group: one cause is what people can act on."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


@contextlib.contextmanager
def _signal_handlers(handler: Callable[[signal.Signals], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

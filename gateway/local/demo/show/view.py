"""What people see while the demo runs: a table that is redrawn on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from gateway.local.demo.show.state import DemoState, Shown, Step, StepState, Window
from gateway.local.runtime.cache import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

    from gateway.local.demo.chaos import ChaosState

_STATUS_LINE_S = 5.0
_STATUS_LINE_SPOOLING_S = 1.0  # its rise and drain take seconds
_BAR_CELLS = 24
_MARKS = {
    StepState.WAITING: "[dim]·[/]",
    StepState.WORKING: "[yellow]…[/]",
    StepState.READY: "[green]✓[/]",
    StepState.STOPPED: "[dim]■[/]",
    StepState.FAILED: "[red]✗[/]",
}
_SHOWN_MEASUREMENTS = ("temperature", "humidity", "voltage", "rssi")


class View:
    """How the demo tells what is going on, on standard error: standard output belongs to the account. This one is
    silent.

    A closed terminal or pipe does not end the demo: the messages still have to be accounted for.
    """

    def start(self) -> None: ...

    def note(self, text: str) -> None:
        """Something happened that the state shows too."""

    def warn(self, text: str) -> None:
        """Something happened that people should read."""

    def refresh(self) -> None:
        """The state has changed. Called several times a second."""

    def stop(self) -> None: ...


class PlainView(View):
    """A line when something happens, and one with the numbers every few seconds while messages flow."""

    def __init__(self, state: DemoState, stream: TextIO = sys.stderr) -> None:
        self._state = state
        self._stream = stream
        self._started_s = time.monotonic()
        self._status_due_s = 0.0

    def start(self) -> None:
        self._started_s = time.monotonic()

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            for line in text.splitlines():
                print(f"[{time.monotonic() - self._started_s:6.1f} s] {line}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        self.note(text)

    def refresh(self) -> None:
        """Prints a status line if the next one is due."""
        now_s, state = time.monotonic(), self._state
        if now_s < self._status_due_s:
            return
        flowing = state.published and state.flow_ended_s is None
        if flowing or state.catching_up:
            spooling = state.chaos is not None and state.chaos.spool.last.messages
            self._status_due_s = now_s + (_STATUS_LINE_SPOOLING_S if spooling else _STATUS_LINE_S)
            self.note(status_line(state) if flowing else _spark_line(state.shown()))


class LiveView(View):
    """The state as tables, redrawn in place, which show what is noted. Needs a terminal."""

    def __init__(self, state: DemoState) -> None:
        from rich.console import Console

        self._state = state
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def start(self) -> None:
        from rich.live import Live

        self._live = Live(
            console=self._console,
            get_renderable=lambda: draw(self._state, time.monotonic()),
            auto_refresh=False,  # drawn from the demo's own loop: no second thread reads the state
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def warn(self, text: str) -> None:
        from rich.text import Text

        with contextlib.suppress(OSError):
            self._console.print(Text(text, style="yellow"))  # markup=False would be for the picture below it too

    def refresh(self) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.refresh()

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.refresh()
                live.stop()


def status_line(state: DemoState) -> str:
    """The numbers in one line, or in two where there are faults."""
    shown = state.shown()
    witness, gateway = shown.witness, shown.gateway
    parts = [
        f"published {shown.published:,} ({state.published_rate.per_second():,.0f}/s)",
        f"acknowledged {shown.acknowledged:,}",
        f"in flight {gateway.in_flight:,}",
        f"in Kafka {witness.in_kafka:,}",
        f"latency p50 {_ms(witness.recent_p50_ms)} p99 {_ms(witness.recent_p99_ms)}",
    ]
    if state.with_spark:
        parts.append(_spark_line(shown))
    line = ", ".join(parts)
    return line if state.chaos is None else f"{line}\n{_chaos_line(state.chaos)}"


def _chaos_line(chaos: ChaosState) -> str:
    spool, plain = chaos.spool.last, chaos.plain
    spooled = f"{spool.messages:,} messages, {format_bytes(spool.size_bytes)}" if spool.messages else "empty"
    return f"  gateway's spool: {spooled}; plain bridge: {plain.in_memory:,} of {plain.received:,} in its memory alone"


def _spark_line(shown: Shown) -> str:
    if not shown.spark.started:
        return "Spark is starting"
    return f"Spark wrote {shown.spark.rows:,} rows, {shown.spark.lag(shown.witness.ends):,} behind"


def draw(state: DemoState, now_s: float) -> RenderableType:
    """The whole picture, for a terminal of 80 columns and 24 lines or more."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_headline(state, now_s), Text(""), _steps(state)]
    if state.flow_started_s is not None:
        parts += [Text(""), _numbers(state)]
    if state.chaos is not None:
        if state.chaos.faults:
            parts += [Text(""), _faults(state.chaos)]
    elif state.windows:  # with faults there is no room for them in a small terminal
        parts += [Text(""), _windows(state.windows)]
    return Group(*parts)


def _headline(state: DemoState, now_s: float) -> RenderableType:
    from rich.text import Text

    text = Text.from_markup("[bold]MQTT → gateway → Kafka" + (" → Spark[/]" if state.with_spark else "[/]"))
    if state.flow_started_s is not None:
        text.append(f"   {state.flow_seconds(now_s):.0f} s of {state.duration_s:g} s")
    text.append(f"\n{state.headline}", style="cyan")
    return text


def _steps(state: DemoState) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for step in state.steps.values():
        mark = _MARKS[StepState.FAILED if step.trouble else step.state]
        table.add_row(Text.from_markup(mark), step.label, Text(_detail(step), overflow="ellipsis", no_wrap=True))
    return table


def _detail(step: Step) -> str:
    if step.trouble:
        return step.trouble
    if step.share is None:  # nothing is being downloaded
        return step.detail
    bar = "█" * round(step.share * _BAR_CELLS)
    return f"{bar:░<{_BAR_CELLS}} {step.share:4.0%} {step.detail}"


def _numbers(state: DemoState) -> RenderableType:
    from rich.table import Table

    shown = state.shown()
    gateway, witness, spark = shown.gateway, shown.witness, shown.spark
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_row("[dim]messages[/]", "[dim]so far[/]", "[dim]per second[/]", "")

    def row(label: str, total: int, rate: float, note: str) -> None:
        table.add_row(label, f"{total:,}", f"{rate:,.0f}", note)

    row("published", shown.published, state.published_rate.per_second(), f"by {state.connected} connected devices")
    row("acknowledged", shown.acknowledged, state.acknowledged_rate.per_second(), "by the MQTT broker")
    row(
        "received",
        gateway.received,
        state.received_rate.per_second(),
        f"{gateway.in_flight:,} in flight, {gateway.unacked:,} unacknowledged",
    )
    if state.chaos is not None:
        _add_spool(table, state.chaos)
    row(
        "in Kafka",
        witness.in_kafka,
        state.kafka_rate.per_second(),
        f"from device: p50 {_ms(witness.recent_p50_ms)}, p99 {_ms(witness.recent_p99_ms)}",
    )
    if state.with_spark:
        behind = f"{spark.lag(witness.ends):,} behind"
        last = f", batch {spark.batches} took {spark.batch_ms / 1000:.1f} s" if spark.batch_ms is not None else ""
        row("in silver", spark.rows, state.spark_rate.per_second(), behind + last)
    return table


def _add_spool(table: Table, chaos: ChaosState) -> None:
    spool = chaos.spool
    note = ""
    if spool.last.messages:
        note = f"{format_bytes(spool.last.size_bytes)} on disk {spool.bars()}"
    elif spool.most_messages:
        note = f"held up to {spool.most_messages:,} {spool.bars()}"
    table.add_row("in the spool", f"{spool.last.messages:,}", "", note)


def _faults(chaos: ChaosState) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    for fault in chaos.faults:
        style = "red" if fault.over_s is None else "yellow"
        table.add_row(f"{fault.at_s:.0f} s", Text(str(fault), style=style, overflow="ellipsis", no_wrap=True))
    return table


def _windows(windows: tuple[Window, ...]) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column()
    for _ in ("messages", *_SHOWN_MEASUREMENTS):
        table.add_column(justify="right")
    seconds = (windows[0].end_ms - windows[0].start_ms) / 1000
    header = (f"{seconds:g} s from (UTC)", "Spark's means", "messages", *_SHOWN_MEASUREMENTS)
    table.add_row(*(f"[dim]{text}[/]" for text in header))
    last: int | None = None
    for window in windows:
        means = [window.means.get(name) for name in _SHOWN_MEASUREMENTS]
        table.add_row(
            f"{datetime.fromtimestamp(window.start_ms / 1000, UTC):%H:%M:%S}" if window.start_ms != last else "",
            window.type,
            f"{window.messages:,}",
            *("" if mean is None else f"{mean:,.1f}" for mean in means),
        )
        last = window.start_ms
    return table


def _ms(value: int | None) -> str:
    return "-" if value is None else f"{value:,} ms"

"""Prints ``docs/metrics.md``, the reference of all metrics: ``python docs/print_metrics.py > docs/metrics.md``.

A test compares the page with what this prints.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

from gateway.auth_service.metrics import AuthMetrics
from gateway.base.metrics import Metrics
from gateway.supervisor.metrics import SupervisorMetrics
from streaming.metrics import SERIES, Series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.base.instruments import Definition

_INTRODUCTION: Final = """\
# Metrics

Served at `/metrics` on `http.host` and `http.port` (127.0.0.1:9464), in Prometheus' text format or in OpenMetrics.

- Names in `_total` are counters; the others are gauges, if no histogram is named. Labels stand in brackets, with their
  values if these are fixed. After → stands what to look at when the value is wrong.
- With a supervisor (`workers` other than 0) a worker's samples have the label `worker`, its number; the supervisor's
  `process_*` have `supervisor`. A stopped worker's series are absent and `gateway_worker_up` is 0. Only a supervisor
  has `gateway_worker*`.
- `gateway auth serve` serves `gateway_auth_*` on `auth.operator_host` and `auth.operator_port` (127.0.0.1:9465), with
  `gateway_event_loop_delay_seconds`, `gateway_build_info` and `process_*`.
- `gateway stream` serves `gateway_stream_*` on `stream.metrics.host` and `stream.metrics.port`. `query` is the job's
  name.
- `session` is the session's number in the worker, after its group's name if it has one. `route` is a route's name,
  `topic` a Kafka topic. No label has client ids or MQTT topics.
- Series with labels from the settings exist at 0 from the start, so `rate()` sees the first event.
- A scrape shows one moment: the ledger's terms in it belong together.
- `process_*`: CPU seconds, resident memory, open files and start time of the process.
"""


def _describe(definition: Definition[Any] | Series) -> Iterator[str]:
    text = definition.meaning
    facts = [*_kind(definition), *_labels(definition)]
    if facts:
        text += f" [{'; '.join(facts)}]"
    if definition.turn.startswith("none"):  # with the reason behind it, if there is one
        reason = definition.turn[len("none: ") :]
        text += f" {reason[:1].upper()}{reason[1:]}." if reason else ""
    else:
        text += f" → {definition.turn}."
    yield from (
        f"### `{definition.name}`",
        "",
        textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False),
        "",
    )


def _kind(definition: Definition[Any] | Series) -> Iterator[str]:
    """What neither the name nor the meaning tells: the buckets of a histogram."""
    if not isinstance(definition, Series) and definition.bounds:
        yield f"histogram, {len(definition.bounds)} buckets up to {definition.bounds[-1]:g}"


def _labels(definition: Definition[Any] | Series) -> Iterator[str]:
    free = len(definition.labels) - len(definition.fixed[0])
    for place, label in enumerate(definition.labels):
        text = f"`{label}`"
        if definition is not Metrics.build_info and place >= free:
            values = dict.fromkeys(fixed[place - free] for fixed in definition.fixed)
            if any(values):
                text += f": {', '.join(f'`{value}`' for value in values if value)}"
        yield text


def markdown() -> str:
    """The reference page of all metrics."""
    lines = [_INTRODUCTION]
    # As a dictionary's keys: what several sets have in common is told once.
    for definition in dict.fromkeys(
        (*Metrics.definitions(), *SupervisorMetrics.definitions(), *AuthMetrics.definitions())
    ):
        lines.extend(_describe(definition))
    for series in SERIES:
        lines.extend(_describe(series))
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())

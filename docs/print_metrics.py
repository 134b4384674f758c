"""Prints ``docs/metrics.md``, the reference of all metrics: ``python docs/print_metrics.py > docs/metrics.md``.

A test compares the page with what this prints.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from gateway.auth_service.metrics import AuthMetrics
from gateway.base.metrics import Metrics
from gateway.supervisor.metrics import SupervisorMetrics
from streaming.metric_names import SERIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.base.instruments import Definition
    from streaming.metric_names import Series

_INTRODUCTION: Final = """\
# Metrics

Served at `/metrics`, on `http.host` and `http.port` (127.0.0.1:9464), in Prometheus' text format or in OpenMetrics, as
the scraper asks. This page is printed by `docs/print_metrics.py`.

- With a supervisor (`workers` other than 0) every worker's sample has the label `worker`, its number; the supervisor's
  own `process_*` have `worker="supervisor"`. The series of a worker that does not run are absent, and
  `gateway_worker_up` is 0; `gateway_worker*` exist only there.
- `gateway_auth_*` are those of the service that EMQX asks (`gateway auth serve`), which serves them itself, on
  `auth.operator_host` and `auth.operator_port` (127.0.0.1:9465), with `gateway_event_loop_delay_seconds`,
  `gateway_build_info` and `process_*`.
- `gateway_stream_*` are those of a Spark job (`gateway stream`), which serves them itself on `stream.metrics.host` and
  `stream.metrics.port`, with `process_*` of its Python process. `query` is the job's name; `ingest` has a second query,
  `windows`. `topic` and `partition` exist from their first batch on.
- Series whose labels follow from the settings exist at 0 from the start, so that `rate()` and `increase()` see the
  first event.
- `session` is the session's number in the worker, behind its group's name if it has one, `route` a route's name,
  `topic` a Kafka topic. There is no label for client ids or MQTT topics: they are without bound.
- Everything is counted per batch and read at scrape time. A scrape sees one moment: the ledger's terms of one scrape
  belong together.
- What became of a route's messages: `gateway_mqtt_messages_received_total` of the route, against the same route's
  `gateway_messages_delivered_total`, `gateway_messages_dead_lettered_total` and `gateway_messages_filtered_total`.
- `process_*` are the process's own: CPU seconds, resident memory, open files, start time.
"""


def _describe(definition: Definition[Any] | Series) -> Iterator[str]:
    yield f"### `{definition.name}`"
    yield ""
    yield definition.meaning
    yield ""
    yield f"- {definition.kind}, in {definition.unit}"
    free = len(definition.labels) - len(definition.fixed[0])
    for place, label in enumerate(definition.labels):
        if definition is Metrics.build_info or place < free:
            yield f"- label `{label}`"
        else:
            values = dict.fromkeys(fixed[place - free] for fixed in definition.fixed)
            yield f"- label `{label}`: {', '.join(f'`{value}`' for value in values)}"
    if definition.bounds:
        yield f"- buckets up to {', '.join(f'{bound:g}' for bound in definition.bounds)}"
    yield f"- turn: {definition.turn}"
    yield ""


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

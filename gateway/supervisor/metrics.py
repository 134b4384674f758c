"""What the supervisor itself counts. The workers' metrics are in ``gateway.base.metrics``, whose page prints these
too."""

from __future__ import annotations

__all__ = ["SupervisorMetrics"]

from gateway.base.instruments import MetricSet, counter, gauge
from gateway.base.reload_metrics import LAST_RELOAD, RELOAD_SUCCESS


class SupervisorMetrics(MetricSet):
    """Metrics of a supervisor; there are none of them with ``workers = 0``."""

    workers = gauge(
        "gateway_workers",
        "Workers that should run.",
        "workers; the CPU quota of the container, where that is not set",
        unit="workers",
    )
    worker_up = gauge(
        "gateway_worker_up",
        "1 while the worker runs and answers, else 0; its other series are absent then.",
        "the log's worker_ended says why it is down",
        unit="workers",
        labels=("worker",),
    )
    worker_restarts = counter(
        "gateway_worker_restarts_total",
        "Worker processes that ended by themselves, so that others had to be started.",
        "none: the log's worker_ended says why each one did",
        unit="processes",
        labels=("worker",),
    )
    slots_retiring = gauge(
        "gateway_worker_slots_retiring",
        "Slots of workers that are no longer wanted, whose MQTT sessions and stored messages are still being drained.",
        "shutdown_timeout; the log's slot_not_retired when it stays above 0",
        unit="slots",
    )
    reload_success = RELOAD_SUCCESS
    last_reload = LAST_RELOAD

    def __init__(self) -> None:
        super().__init__({"worker": ()})
        self.reload_success.child().value = 1

"""The supervisor's own metrics. The workers' metrics are in ``gateway.base.metrics``."""

from gateway.base.instruments import counter, gauge
from gateway.base.reload_state import ReloadMetrics


class SupervisorMetrics(ReloadMetrics):
    """Metrics of a supervisor; a gateway with ``workers = 0`` has none of them."""

    # fmt: off
    workers = gauge("gateway_workers",
        "Workers that should run.",
        "workers; the container's CPU quota if that is not set",
        unit="workers")
    worker_up = gauge("gateway_worker_up",
        "1 while the worker runs and answers. Else 0; its other series are absent then.",
        "the cause in the log's worker_ended",
        unit="workers", labels=("worker",))
    worker_restarts = counter("gateway_worker_restarts_total",
        "Worker processes that ended by themselves and were replaced.",
        "the cause in the log's worker_ended",
        unit="processes", labels=("worker",))
    slots_retiring = gauge("gateway_worker_slots_retiring",
        "Slots of removed workers whose sessions and spool are still being drained.",
        "shutdown_timeout; the log's slot_not_retired if it stays above 0",
        unit="slots")
    # fmt: on

    def __init__(self) -> None:
        super().__init__({"worker": ()})

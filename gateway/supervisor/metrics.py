"""The supervisor's own metrics. The workers' metrics are in ``gateway.base.metrics``."""

import resource
import time
from pathlib import Path

from gateway.base.instruments import MetricSet, counter, gauge
from gateway.base.process.machine_facts import descriptors
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


class ProcessMetrics(MetricSet):
    """The series of prometheus_client's ProcessCollector: the package would take 2 MiB of a supervisor."""

    # fmt: off
    cpu = counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "", unit="seconds")
    resident = gauge("process_resident_memory_bytes", "Resident memory size in bytes.", "", unit="bytes")
    virtual = gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", "", unit="bytes")
    start = gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "",
        unit="seconds")
    open_fds = gauge("process_open_fds", "Number of open file descriptors.", "", unit="fds")
    max_fds = gauge("process_max_fds", "Maximum number of open file descriptors.", "", unit="fds")
    # fmt: on

    def __init__(self) -> None:
        super().__init__({})
        self.start.child().value = time.time()
        self.cpu.watch(time.process_time)
        self.virtual.watch(lambda: _memory_bytes(0))
        self.resident.watch(lambda: _memory_bytes(1))
        self.open_fds.watch(lambda: descriptors()[0])
        self.max_fds.watch(lambda: descriptors()[1])


def _memory_bytes(column: int) -> int:
    """A size in proc_pid_statm(5); 0 where the system has no such file."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * resource.getpagesize()
    except OSError:
        return 0

"""Verdicts over one measured value, shared by a worker's health and ``gateway doctor``."""

from collections.abc import Sequence
from typing import Final

from gateway.base.problem import Problem, Severity
from gateway.health.model import CpuView

SLOW_DISK_S: Final = 0.25  # a write of the spool; a healthy disk takes 2.5 ms
DESCRIPTORS: Final = 0.8  # of the limit
STARVED: Final = 0.25
PRESSURE: Final = 0.5
_DAY_S: Final = 86_400.0
EXPIRES_S: Final = 14 * _DAY_S
EXPIRES_CRITICAL_S: Final = 2 * _DAY_S


def disk_slow(write_s: float) -> Problem | None:
    """The problem, or None. ``write_s``: how long a write of the spool takes until it is durable."""
    if write_s <= SLOW_DISK_S:
        return None
    text = f"The disk of data_dir takes {write_s:.1f} s for a write of the spool: acknowledgements wait for it."
    check = "Find what else writes to that disk (iostat -x), or use a faster one. gateway doctor measures it."
    return Problem("disk-slow", "warning", text, check)


def descriptors_low(opened: int, limit: int, process: int | None = None) -> Problem | None:
    """The problem, or None. ``process``: the id of another process that has them open; None: this one."""
    if not limit or opened < DESCRIPTORS * limit:
        return None
    whose = "" if process is None else f" in process {process}"
    text = f"{opened} of {limit} file descriptors are open{whose}."
    check = "gateway_sockets shows their kind; raise the limit (ulimit -n, LimitNOFILE)."
    return Problem("descriptors-low", "warning", text, check)


def cpu_starved(cpu: CpuView) -> Problem | None:
    """The problem that work waited for a CPU in the last minute, or None."""
    if cpu.throttled > STARVED:
        text = f"The container was stopped for {percent(cpu.throttled)} of the last minute: its CPU quota is used up."
    elif cpu.waited is not None and cpu.waited > STARVED:
        text = (
            f"The process waited for a CPU for {percent(cpu.waited)} of the last minute (pressure:"
            f" {percent(cpu.pressure)})."
        )
    elif cpu.waited is None and cpu.pressure > PRESSURE:
        text = f"For {percent(cpu.pressure)} of the last minute some process waited for a CPU (PSI)."
    else:
        return None
    check = "Raise the container's CPU limit, move other processes, or run fewer workers than CPUs."
    return Problem("cpu-starved", "warning", text, check)


def certificate_expires(name: str, left_s: float, *, is_ours: bool) -> Problem | None:
    """The problem, or None while it lasts. ``name``: the setting with our certificate, or the server that shows its."""
    if left_s >= EXPIRES_S:
        return None
    severity: Severity = "critical" if left_s < EXPIRES_CRITICAL_S else "warning"
    when = "has expired" if left_s <= 0 else f"expires in {left_s / _DAY_S:.1f} days"
    if is_ours:
        check = "Replace the file: the gateway reads it and reconnects its sessions one by one."
        return Problem("certificate-expires", severity, f"The certificate {name} {when}.", check, name)
    text = f"The certificate of {name} {when}: after that no new connection succeeds."
    check = "Renew it there; gateway doctor shows the address. No setting of the gateway helps."
    return Problem("server-certificate-expires", severity, text, check, name)


def leaderless(
    partitions: str, count: int, away: Sequence[str], *, subject: str, lasted_s: float | None, severity: Severity
) -> Problem:
    """``away`` names the stopped brokers that have replicas of ``partitions``. ``lasted_s`` is None at a first look."""
    since = "No broker leads" if lasted_s is None else f"For {lasted_s:.0f} s no broker has led"
    where = f" The brokers with their replicas are down: {', '.join(away)}." if away else ""
    text = f"{since} {partitions}: {'its' if count == 1 else 'their'} messages wait.{where}"
    check = (
        "Start the brokers with replicas: gateway topics describe, gateway leaders show. An unclean election"
        " would lose records. Do not restart the gateway."
    )
    return Problem("partition-leaderless", severity, text, check, subject)


def percent(share: float) -> str:
    """``4.2 %``, ``37 %``."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"

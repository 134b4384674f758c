"""Verdicts over this machine."""

from __future__ import annotations

__all__ = ["judge_host"]

from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus
from gateway.health.model import SLOW_DISK_S
from gateway.health.pace_verdicts import PRESSURE
from gateway.tools.doctor.wording import bytes_text

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.tools.doctor.host_facts import DiskFacts, HostFacts
    from gateway.tools.doctor.model import Findings

_NETWORKED: Final = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph", "fuse.s3fs"}
_FLEETING: Final = {"tmpfs", "ramfs"}
_CONTAINERS: Final = {"overlay", "aufs"}
_SPARE: Final = 64 << 20  # what the spool needs beside its files
_INODES: Final = 1000
_WORKER: Final = 70 << 20  # of a worker without its messages
_SUPERVISOR: Final = 60 << 20
_OPEN_FILES: Final = 96  # of a worker beside its sessions: brokers, spool, logs, HTTP
_TIGHT: Final = 0.8


def judge_host(findings: Findings, settings: Settings, facts: HostFacts, workers: int) -> None:
    """Every check of the group. ``workers`` is how many run with these settings."""
    if facts.disk is None:
        findings.fail(
            "data_dir",
            f"{settings.data_dir.absolute()} cannot be looked at: {facts.disk_error}.",
            "Set data_dir to a folder that this user may write.",
            status=ExitStatus.CONFIG,
        )
        findings.skip("disk", "Not tried: data_dir cannot be looked at (data_dir).")
    elif _judge_place(findings, settings, facts.disk):
        _judge_room(findings, settings, facts.disk, workers)
    else:
        findings.skip("disk", "Not tried: data_dir cannot be written (data_dir).")
    _judge_fsync(findings, settings, facts.disk)
    _judge_descriptors(findings, settings, facts)
    _judge_memory(findings, settings, facts, workers)
    _judge_cpu(findings, facts.cpu_pressure)


def _judge_place(findings: Findings, settings: Settings, disk: DiskFacts) -> bool:
    stored = "the spool" if settings.spool.enabled else "the identity"
    if disk.read_only or not disk.writable:
        why = "is on a file system that is mounted read-only" if disk.read_only else "may not be written by this user"
        findings.fail(
            "data_dir",
            f"{disk.looked_at} {why}: the gateway will not start.",
            "Run doctor as the gateway's user; else give that user the folder, or mount it for writing.",
            disk.directory,
            ExitStatus.CONFIG,
        )
        return False
    if disk.kind in _NETWORKED:
        findings.warn(
            "data_dir",
            f"It is on a network file system ({disk.kind}): fsync and locks there are slow, and not always true, so "
            "acknowledged messages may be lost with the server.",
            f"Put data_dir on a local disk: {stored} lives there.",
            disk.directory,
            kind=disk.kind,
        )
    elif disk.kind in _FLEETING:
        findings.warn(
            "data_dir",
            f"It is in memory ({disk.kind}): a reboot loses what the spool has acknowledged.",
            "Put data_dir on a disk.",
            disk.directory,
            kind=disk.kind,
        )
    elif disk.kind in _CONTAINERS:
        findings.warn(
            "data_dir",
            f"It is in the container's own layer ({disk.kind}): it goes with the container, and with it what the spool "
            "has acknowledged.",
            "Mount a volume at data_dir.",
            disk.directory,
            kind=disk.kind,
        )
    else:
        findings.ok("data_dir", f"It can be written, on {disk.kind or 'a local file system'}.", disk.directory)
    return True


def _judge_room(findings: Findings, settings: Settings, disk: DiskFacts, workers: int) -> None:
    if not settings.spool.enabled:
        findings.warn(
            "disk",
            "The spool is off: while Kafka cannot take records, the MQTT broker drops what its queue cannot hold.",
            "Set spool.enabled = true.",
        )
        return
    need = max(0, settings.spool.disk_bytes(workers) - disk.spooled)
    text = (
        f"{bytes_text(disk.free)} of {bytes_text(disk.total)} are free; the spools of {workers} "
        f"worker{'' if workers == 1 else 's'} may come to take {bytes_text(need)} more (twice spool.max_bytes, "
        f"{bytes_text(settings.spool.max_bytes)}, and 64 MiB each)"
    )
    if disk.free < workers * _SPARE or (disk.free_inodes is not None and disk.free_inodes < _INODES):
        what = "inodes are used up" if disk.free >= workers * _SPARE else "it is full"
        findings.fail(
            "disk",
            f"{text}: {what}, and the spool cannot take anything.",
            "Make room.",
            disk.directory,
            free=disk.free,
            spooled=disk.spooled,
            total=disk.total,
        )
    elif disk.free < need:
        findings.warn(
            "disk",
            f"{text}: in a long outage of Kafka the disk is full before the spool is.",
            "Make room, or lower spool.max_bytes to what there is.",
            disk.directory,
            free=disk.free,
            spooled=disk.spooled,
            total=disk.total,
        )
    else:
        findings.ok("disk", f"{text}.", disk.directory, free=disk.free, spooled=disk.spooled, total=disk.total)


def _judge_fsync(findings: Findings, settings: Settings, disk: DiskFacts | None) -> None:
    if not settings.spool.enabled:
        findings.skip("fsync", "Not tried: the spool is off.")
    elif disk is None or disk.fsync_s is None:
        findings.skip(
            "fsync", "Not tried: data_dir is not there yet, or its file system takes no files without a name."
        )
    elif disk.fsync_s > SLOW_DISK_S:
        findings.warn(
            "fsync",
            f"The disk takes {disk.fsync_s:.2g} s to make a small write durable: acknowledgements wait for that while "
            "Kafka takes nothing.",
            "Look what else writes there (iostat -x), or put data_dir on a faster disk (docs/runbook.md#disk-slow).",
            disk.directory,
            seconds=disk.fsync_s,
        )
    else:
        findings.ok(
            "fsync", f"A small write is durable within {1000 * disk.fsync_s:.2g} ms.", disk.directory,
            seconds=disk.fsync_s,
        )  # fmt: skip


def _judge_descriptors(findings: Findings, settings: Settings, facts: HostFacts) -> None:
    sessions = settings.mqtt.sessions + sum(group.sessions for group in settings.mqtt.groups)
    need = sessions + _OPEN_FILES
    tight = [
        one
        for one in facts.processes
        if one.descriptors is not None and one.limit and one.descriptors > _TIGHT * one.limit
    ]
    if tight:
        one = tight[0]
        findings.fail(
            "descriptors",
            f"Process {one.pid} has {one.descriptors} of {one.limit} file descriptors open: soon it can open neither a "
            "connection nor a file.",
            "Look at what they are (ls -l /proc/PID/fd); raise the limit (LimitNOFILE=, ulimit -n) and restart it.",
        )
        return
    limits = [one.limit for one in facts.processes if one.limit is not None]
    limit, whose = (min(limits), "the gateway's processes") if limits else (facts.descriptor_limit, "this shell")
    if limit < need:
        findings.fail(
            "descriptors",
            f"The limit of {whose} is {limit} file descriptors; a worker needs about {need}.",
            "Raise it: LimitNOFILE= of the service, ulimit -n.",
            limit=limit,
            need=need,
        )
    elif limit < 2 * need:
        findings.warn(
            "descriptors",
            f"The limit of {whose} is {limit} file descriptors; a worker needs about {need}, and more while it renews "
            "connections.",
            "Raise it: LimitNOFILE= of the service, ulimit -n.",
            limit=limit,
            need=need,
        )
    else:
        most = max((one.descriptors for one in facts.processes if one.descriptors is not None), default=None)
        used = "" if most is None else f", {most} are open in the busiest"
        findings.ok(
            "descriptors",
            f"The limit of {whose} is {limit:,} file descriptors; a worker needs about {need}{used}.",
            limit=limit,
            need=need,
        )


def _judge_memory(findings: Findings, settings: Settings, facts: HostFacts, workers: int) -> None:
    need = workers * (_WORKER + settings.flow.memory_bytes) + (_SUPERVISOR if settings.workers != 0 else 0)
    if facts.memory_limit is not None:
        text = f"The memory limit is {bytes_text(facts.memory_limit)}"
        left = facts.memory_limit
    elif facts.memory_available is not None:
        running = " beside what runs" if facts.processes else ""
        text = f"There is no memory limit; {bytes_text(facts.memory_available)} are free{running}"
        left = facts.memory_available + (need if facts.processes else 0)
    else:
        findings.skip("memory", "This system does not tell.")
        return
    text += f"; {workers} worker{'' if workers == 1 else 's'} may come to need {bytes_text(need)}"
    if left < need:
        findings.fail(
            "memory",
            f"{text}: the kernel will kill one under load.",
            "Raise the limit, or lower workers or flow.memory_bytes.",
            limit=facts.memory_limit,
            need=need,
        )
    elif left < need * 1.25:
        findings.warn(
            "memory",
            f"{text}: that is tight.",
            "Raise the limit, or lower workers or flow.memory_bytes.",
            limit=facts.memory_limit,
            need=need,
        )
    else:
        findings.ok("memory", f"{text}.", limit=facts.memory_limit, need=need)


def _judge_cpu(findings: Findings, pressure: float | None) -> None:
    if pressure is None:
        findings.skip("cpu", "This system does not tell.")
        return
    text = f"For {100 * pressure:.0f} % of the last minute somebody here was ready to run and had no CPU (PSI)"
    if pressure > PRESSURE:
        findings.warn(
            "cpu",
            f"{text}: everything is late, this examination too.",
            "Raise the CPU limit, or move what else runs here (docs/runbook.md#cpu-starved).",
            pressure=pressure,
        )
    else:
        findings.ok("cpu", f"{text}.", pressure=pressure)

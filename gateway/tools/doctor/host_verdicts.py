"""Verdicts over this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus
from config.numbers import bytes_text, many
from gateway.health.measured import cpu_starved, descriptors_low, disk_slow, percent
from gateway.health.model import CpuView

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.tools.doctor.host_facts import DiskFacts, HostFacts
    from gateway.tools.doctor.model import Findings

_NETWORKED: Final = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph", "fuse.s3fs"}
_FLEETING: Final = {"tmpfs", "ramfs"}
_CONTAINERS: Final = {"overlay", "aufs"}
_SPARE: Final = 64 << 20  # the spool's need beside its files
_INODES: Final = 1000
_WORKER: Final = 70 << 20  # a worker's need without its messages
_SUPERVISOR: Final = 60 << 20
_OPEN_FILES: Final = 96  # a worker's need beside its sessions: brokers, spool, logs, HTTP


def judge_host(findings: Findings, settings: Settings, facts: HostFacts, workers: int) -> None:
    """All checks of the group. ``workers`` is their number by these settings."""
    if facts.disk is None:
        findings.of("data_dir").fail(
            f"{settings.data_dir.absolute()} cannot be looked at: {facts.disk_error}.",
            "Set data_dir to a folder that this user may write.",
            status=ExitStatus.CONFIG,
        )
        findings.of("disk").skip("Not tried: data_dir cannot be looked at (data_dir).")
    elif _judge_place(findings, settings, facts.disk):
        _judge_room(findings, settings, facts.disk, workers)
    else:
        findings.of("disk").skip("Not tried: data_dir cannot be written (data_dir).")
    _judge_fsync(findings, settings, facts.disk)
    _judge_descriptors(findings, settings, facts)
    _judge_memory(findings, settings, facts, workers)
    _judge_cpu(findings, facts.cpu_pressure)


def _judge_place(findings: Findings, settings: Settings, disk: DiskFacts) -> bool:
    """Returns whether data_dir can be written."""
    check = findings.of("data_dir", disk.directory, kind=disk.kind)
    stored = "the spool" if settings.spool.enabled else "the identity"
    if disk.read_only or not disk.writable:
        why = "is on a file system that is mounted read-only" if disk.read_only else "may not be written by this user"
        check.fail(
            f"{disk.looked_at} {why}: the gateway will not start.",
            "Run doctor as the gateway's user; else give that user the folder, or mount it for writing.",
            status=ExitStatus.CONFIG,
        )
        return False
    if disk.kind in _NETWORKED:
        check.warn(
            f"It is on a network file system ({disk.kind}): fsync and locks there are slow, and not always true, so "
            "acknowledged messages may be lost with the server.",
            f"Put data_dir on a local disk: {stored} lives there.",
        )
    elif disk.kind in _FLEETING:
        check.warn(
            f"It is in memory ({disk.kind}): a reboot loses what the spool has acknowledged.",
            "Put data_dir on a disk.",
        )
    elif disk.kind in _CONTAINERS:
        check.warn(
            f"It is in the container's own layer ({disk.kind}): it goes with the container, and with it what the spool "
            "has acknowledged.",
            "Mount a volume at data_dir.",
        )
    else:
        check.ok(f"It can be written, on {disk.kind or 'a local file system'}.")
    return True


def _judge_room(findings: Findings, settings: Settings, disk: DiskFacts, workers: int) -> None:
    if not settings.spool.enabled:
        findings.of("disk").warn(
            "The spool is off: while Kafka cannot take records, the MQTT broker drops what its queue cannot hold.",
            "Set spool.enabled = true.",
        )
        return
    check = findings.of("disk", disk.directory, free=disk.free, spooled=disk.spooled, total=disk.total)
    need = max(0, settings.spool.disk_bytes(workers) - disk.spooled)
    text = (
        f"{bytes_text(disk.free)} of {bytes_text(disk.total)} are free; the spools of {many(workers, 'worker')} "
        f"may come to take {bytes_text(need)} more (twice spool.max_bytes, "
        f"{bytes_text(settings.spool.max_bytes)}, and 64 MiB each)"
    )
    if disk.free < workers * _SPARE or (disk.free_inodes is not None and disk.free_inodes < _INODES):
        what = "inodes are used up" if disk.free >= workers * _SPARE else "it is full"
        check.fail(f"{text}: {what}, and the spool cannot take anything.", "Make room.")
    elif disk.free < need:
        check.warn(
            f"{text}: in a long outage of Kafka the disk is full before the spool is.",
            "Make room, or lower spool.max_bytes to what there is.",
        )
    else:
        check.ok(f"{text}.")


def _judge_fsync(findings: Findings, settings: Settings, disk: DiskFacts | None) -> None:
    if not settings.spool.enabled:
        findings.of("fsync").skip("Not tried: the spool is off.")
    elif disk is None or disk.fsync_s is None:
        findings.of("fsync").skip(
            "Not tried: data_dir is not there yet, or its file system takes no files without a name."
        )
    elif (slow := disk_slow(disk.fsync_s)) is not None:
        findings.of("fsync", disk.directory).problem(slow, seconds=disk.fsync_s)
    else:
        text = f"A small write is durable within {1000 * disk.fsync_s:.2g} ms."
        findings.of("fsync", disk.directory).ok(text, seconds=disk.fsync_s)


def _judge_descriptors(findings: Findings, settings: Settings, facts: HostFacts) -> None:
    sessions = settings.mqtt.sessions + sum(group.sessions for group in settings.mqtt.groups)
    need = sessions + _OPEN_FILES
    for one in facts.processes:
        low = descriptors_low(one.descriptors or 0, one.limit or 0, one.pid)
        if low is not None:
            findings.of("descriptors").problem(low)
            return
    limits = [one.limit for one in facts.processes if one.limit is not None]
    limit, whose = (min(limits), "the gateway's processes") if limits else (facts.descriptor_limit, "this shell")
    check = findings.of("descriptors", limit=limit, need=need)
    fix = "Raise it: LimitNOFILE= of the service, ulimit -n."
    if limit < need:
        check.fail(f"The limit of {whose} is {limit} file descriptors; a worker needs about {need}.", fix)
    elif limit < 2 * need:
        check.warn(
            f"The limit of {whose} is {limit} file descriptors; a worker needs about {need}, and more while it renews "
            "connections.",
            fix,
        )
    else:
        most = max((one.descriptors for one in facts.processes if one.descriptors is not None), default=None)
        used = "" if most is None else f", {most} are open in the busiest"
        check.ok(f"The limit of {whose} is {limit:,} file descriptors; a worker needs about {need}{used}.")


def _judge_memory(findings: Findings, settings: Settings, facts: HostFacts, workers: int) -> None:
    need = workers * (_WORKER + settings.flow.memory_bytes) + (_SUPERVISOR if settings.workers != 0 else 0)
    check = findings.of("memory", limit=facts.memory_limit, need=need)
    fix = "Raise the limit, or lower workers or flow.memory_bytes."
    if facts.memory_limit is not None:
        text = f"The memory limit is {bytes_text(facts.memory_limit)}"
        left = facts.memory_limit
    elif facts.memory_available is not None:
        running = " beside what runs" if facts.processes else ""
        text = f"There is no memory limit; {bytes_text(facts.memory_available)} are free{running}"
        left = facts.memory_available + (need if facts.processes else 0)  # a running gateway has its part
    else:
        check.skip("This system does not tell.")
        return
    text += f"; {many(workers, 'worker')} may come to need {bytes_text(need)}"
    if left < need:
        check.fail(f"{text}: the kernel will kill one under load.", fix)
    elif left < need * 1.25:
        check.warn(f"{text}: that is tight.", fix)
    else:
        check.ok(f"{text}.")


def _judge_cpu(findings: Findings, pressure: float | None) -> None:
    check = findings.of("cpu", pressure=pressure)
    if pressure is None:
        check.skip("This system does not tell.")
        return
    starved = cpu_starved(CpuView(pressure=pressure))
    if starved is not None:
        check.problem(starved)
    else:
        text = f"For {percent(pressure)} of the last minute some process waited for a CPU (PSI)"
        check.ok(f"{text}.")

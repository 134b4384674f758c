"""``meta.properties``, which names the owner of a data directory: its reading and writing.

Format 2, in Java's properties format like Kafka's own file:

    version=2
    instance=plant-7                                  the setting
    instance.id=0b6e…                                 made once, so two directories of one name differ
    cluster.id=4L6g3nShT-eMCtK--X86sw                 of the first Kafka; missing before that
    workers=0,1,2                                     slots that were used here and not retired
    witness=1835042:1795231010669214494               inode and birth time of ``meta.lock``, see :class:`Witness`

Format 1 had only version and instance.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from config.error_words import words
from config.errors import ConfigError, ExitStatus
from gateway.data_dir import durable

FORMAT_VERSION: Final = 2
META_FILE: Final = "meta.properties"
WITNESS_FILE: Final = "meta.lock"

_BIRTH_MASK: Final = 0x800  # STATX_BTIME
_BIRTH_OFFSET: Final = 80  # of stx_btime in struct statx, the same on every architecture (linux/stat.h)
_AT_FDCWD: Final = -100
_LOCK_NAME: Final = re.compile(r"worker-(\d+)\.lock")
_HEADER: Final = "# Written by the gateway; `gateway identity show` explains it, `gateway identity adopt` changes it.\n"


class IdentityError(ConfigError):
    """The data directory belongs to another instance, is a copy, is in use, or is unusable."""


class DiskFullError(IdentityError):
    """The data directory's disk is full or fails. A start may succeed once there is space."""

    exit_status = ExitStatus.UNAVAILABLE


class NewerFormatError(IdentityError):
    """The data directory was written by a newer gateway, whose formats this one does not know."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A file that is created with the directory and never replaced, so a copy of the directory has another one.

    ``inode`` and ``born_ns`` (Unix time, None if unknown) belong to the file, not to its name, place or machine. Other
    signs of a copy, and why they are not used:

    - path, mount point: a folder above may be renamed, a volume mounted elsewhere;
    - device number: assigned at each mount or boot by overlay, btrfs, NFS and hot-plugged disks;
    - machine id, host name: a volume follows its pod to another node, an image has one id or none;
    - change time: chown at each mount (Kubernetes' fsGroup) changes it;
    - the directory's own inode: the root of a volume has the same number on every volume;
    - extended attributes: ``cp -a`` and ``rsync -X`` copy them.

    If both birth times are known, they decide: a copy cannot set its birth time, but files copied in the same order to
    a fresh volume may get the same inode numbers. A copy of whole blocks (a snapshot of the disk, a clone of the
    virtual machine) is not noticed.
    """

    inode: int
    born_ns: int | None

    def is_same(self, other: Witness) -> bool:
        """Whether both describe one file."""
        if self.born_ns is not None and other.born_ns is not None:
            return self.born_ns == other.born_ns
        return self.inode == other.inode

    @classmethod
    def of(cls, path: Path) -> Self:
        """The witness of an existing file. Raises OSError."""
        return cls(path.stat().st_ino, _born_ns(path))

    def __str__(self) -> str:
        return f"{self.inode}:{'' if self.born_ns is None else self.born_ns}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A witness from its ``str()``. Raises ValueError."""
        inode, _, born = text.partition(":")
        return cls(int(inode), int(born) if born else None)


def _born_ns(path: Path) -> int | None:
    """The file's birth time, or None. Python's ``os.stat`` lacks it on Linux."""
    try:
        statx = ctypes.CDLL(None).statx
    except (AttributeError, OSError):  # a C library, or a system, without it
        return None
    buffer = ctypes.create_string_buffer(256)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH_MASK, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BIRTH_OFFSET)
    if not mask & _BIRTH_MASK or seconds <= 0:  # 0: set by a tool that did not know the time
        return None
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of ``meta.properties``. ``version`` is that of the file it was read from."""

    instance: str
    instance_id: str
    cluster_id: str | None = None
    workers: frozenset[int] = frozenset()
    witness: Witness | None = None
    version: int = FORMAT_VERSION

    @classmethod
    def new(cls, instance: str, witness: Witness) -> Self:
        return cls(instance, str(uuid.uuid4()), witness=witness)

    def write(self, directory: Path) -> None:
        """Write it in the present format. The caller holds the directory's lock. Raises OSError."""
        values = {
            "version": str(FORMAT_VERSION),
            "instance": self.instance,
            "instance.id": self.instance_id,
            "cluster.id": self.cluster_id,
            "workers": ",".join(map(str, sorted(self.workers))),
            "witness": None if self.witness is None else str(self.witness),
        }
        lines = [f"{name}={value}\n" for name, value in values.items() if value is not None]
        durable.write(directory / META_FILE, _HEADER + "".join(lines))


def read_meta(directory: Path) -> Meta | None:
    """The directory's ``meta.properties``, None without the file. A file of format 1 is completed with a new id and the
    slots that have a lock file.

    Raises IdentityError for a newer format or an invalid text, OSError if it cannot be read.
    """
    path = directory / META_FILE
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    version = values.get("version", "")
    if version.isascii() and version.isdigit() and int(version) > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path.absolute()} has format version {version}; this gateway knows {FORMAT_VERSION} and older. "
            "A newer gateway wrote it: run that one, or use another data_dir."
        )
    try:
        return _parse(directory, int(version), values)
    except (KeyError, ValueError) as error:
        raise IdentityError(
            f"{path.absolute()} cannot be understood ({words(error)}). It was changed by hand or damaged: put it "
            "right, restore it from a backup, or let `gateway identity adopt` write it anew."
        ) from error


def _parse(directory: Path, version: int, values: dict[str, str]) -> Meta:
    """The Meta of a file's values, an old format's upgraded. Raises KeyError or ValueError for a missing or wrong
    value."""
    if version == 1:
        return _upgrade(directory, values["instance"])
    return Meta(
        values["instance"],
        values["instance.id"],
        values.get("cluster.id"),
        frozenset(int(number) for number in values["workers"].split(",") if number),
        Witness.parse(values["witness"]) if "witness" in values else None,
    )


def _upgrade(directory: Path, instance: str) -> Meta:
    locks = (_LOCK_NAME.fullmatch(path.name) for path in directory.iterdir())
    workers = frozenset(int(match[1]) for match in locks if match is not None)
    return Meta(instance, str(uuid.uuid4()), workers=workers, version=1)

"""The jars of the embedded brokers, Spark's Kafka source and Delta Lake: fetched once, checked against SHA-256 sums.

The fetching is done by the Ivy that pyspark carries, told every jar by name and version (``jars.lock``), so it resolves
nothing itself: no POM is read, no version can move, and the jars arrive in seconds. Each bundle has a directory in the
cache, named after its lock lines: a changed lock never meets an old directory, and a started process keeps its files.
"""

import functools
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal, get_args

from gateway.local.runtime import ivy
from gateway.local.runtime.cache import cache_directory, locked, require_space
from gateway.local.runtime.errors import ChecksumError
from gateway.local.runtime.jar import Jar
from gateway.local.runtime.java import ensure_java
from gateway.local.runtime.progress import Download, ProgressCallback, print_progress

Bundle = Literal["kafka", "hivemq", "spark"]
BUNDLES: tuple[Bundle, ...] = get_args(Bundle)

LOCK_FILE = Path(__file__).with_name("jars.lock")
_LABELS: dict[Bundle, str] = {
    "kafka": "Kafka broker",
    "hivemq": "MQTT broker",
    "spark": "Spark's Kafka source and Delta Lake",
}
_STAMP = ".verified.json"
_SLACK_BYTES = 20_000_000  # Ivy's own notes, and room to breathe


def locked_jars(bundle: Bundle) -> tuple[Jar, ...]:
    """The jars ``bundle`` consists of, in the lock file's order (which is the class path's)."""
    return _read_lock()[bundle]


def bundle_digest(bundle: Bundle) -> str:
    """Twelve hex digits that change whenever a jar of ``bundle`` does."""
    text = "\n".join(f"{jar.file_name} {jar.sha256}" for jar in locked_jars(bundle))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def resolve(bundle: Bundle, progress: ProgressCallback = print_progress) -> list[Path]:
    """The paths of a bundle's jars, fetching them when they are not in the cache yet.

    Blocks: seconds to minutes the first time, a millisecond later. Later calls need no network. Every jar is hashed
    when it arrives; on later calls its size and time stamp are compared, and it is hashed again when one differs.
    Safe to call from several threads and processes at once: one fetches, the others wait. An interrupted call leaves
    what is complete for the next. Raises DownloadError, ChecksumError or, for a full disk, EmbeddedError.
    """
    directory = _directory(bundle)
    if _verified(directory, bundle):
        return _paths(directory, bundle)
    root = directory.parent
    with locked(root / f"{directory.name}.lock"):
        if not _verified(directory, bundle):  # else: another process fetched them while we waited
            _fetch(bundle, directory, progress)
    return _paths(directory, bundle)


def pending_bytes(bundle: Bundle) -> int:
    """How much :func:`resolve` would download now; 0 when the bundle is in the cache."""
    if _verified(_directory(bundle), bundle):
        return 0
    return sum(jar.size for jar in locked_jars(bundle))


@functools.cache
def _read_lock() -> dict[str, tuple[Jar, ...]]:
    bundles: dict[str, list[Jar]] = {name: [] for name in BUNDLES}
    for line in LOCK_FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            bundle, coordinate, size, sha256 = line.split()
            organisation, name, version = coordinate.split(":")
            bundles[bundle].append(Jar(organisation, name, version, int(size), sha256))
    return {name: tuple(jars) for name, jars in bundles.items()}


def _directory(bundle: Bundle) -> Path:
    # Where they really are: the class data are those of a class path.
    return (cache_directory() / "jars").resolve() / f"{bundle}-{bundle_digest(bundle)}"


def _paths(directory: Path, bundle: Bundle) -> list[Path]:
    return [directory / jar.file_name for jar in locked_jars(bundle)]


def _verified(directory: Path, bundle: Bundle) -> bool:
    """Whether every jar is there and is what the lock says; hashes only those touched since they were last hashed."""
    try:
        stamp: dict[str, Any] = json.loads((directory / _STAMP).read_text())
    except (OSError, ValueError):
        return False
    for jar in locked_jars(bundle):
        path = directory / jar.file_name
        try:
            status = path.stat()
        except OSError:
            return False
        if status.st_size != jar.size:
            return False
        if stamp.get(jar.file_name) != status.st_mtime_ns and _sha256(path) != jar.sha256:
            return False
    return True


def _fetch(bundle: Bundle, directory: Path, progress: ProgressCallback) -> None:
    """Fetch into a staging directory that survives interruption, check, then rename the whole into place."""
    jars = locked_jars(bundle)
    staging = directory.with_name(f".{directory.name}.staging")
    staging.mkdir(exist_ok=True)
    arrived = {jar: staging / "cache" / jar.organisation / jar.file_name for jar in jars}
    missing = [jar for jar, path in arrived.items() if not (path.exists() and path.stat().st_size == jar.size)]
    total = sum(jar.size for jar in jars)
    require_space(staging, sum(jar.size for jar in missing) + _SLACK_BYTES, f"{_LABELS[bundle]} (its jars)")
    announce = Download(_LABELS[bundle], len(jars), total, 0)
    ivy.fetch(jars, staging, ensure_java(progress), announce, progress)
    _check(arrived)
    ready = staging / "ready"
    shutil.rmtree(ready, ignore_errors=True)
    ready.mkdir()
    stamp = {}
    for jar, path in arrived.items():
        target = path.replace(ready / jar.file_name)
        stamp[jar.file_name] = target.stat().st_mtime_ns
    (ready / _STAMP).write_text(json.dumps(stamp))
    if directory.exists():  # damaged: a jar is missing or is not what it was
        damaged = directory.with_name(f".{directory.name}.damaged-{os.getpid()}")
        directory.replace(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    ready.replace(directory)
    shutil.rmtree(staging, ignore_errors=True)
    progress(Download(announce.label, len(jars), total, total, finished=True))


def _check(arrived: dict[Jar, Path]) -> None:
    """Hash what arrived; what is wrong is deleted, so that a second attempt fetches it again."""
    wrong = []
    for jar, path in arrived.items():
        if not path.exists():
            wrong.append(f"{jar.file_name} did not arrive")
        elif (actual := _sha256(path)) != jar.sha256:
            wrong.append(f"{jar.file_name} has SHA-256 {actual}, pinned is {jar.sha256}")
            path.unlink()
    if wrong:
        raise ChecksumError(
            f"{len(wrong)} of {len(arrived)} jars are not what {LOCK_FILE.name} pins: {'; '.join(wrong[:3])}. "
            "None is used. A proxy that answers with a page of its own, or a mirror that rebuilds jars, does this: "
            "check https_proxy and GATEWAY_MAVEN_MIRROR, then try again."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

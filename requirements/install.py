"""Makes the virtual environment the Makefile works in, from the locked requirements beside this file.

    python requirements/install.py .venv            make or bring up to date; nothing to do is quick and silent
    python requirements/install.py --ready .venv    status 0 if there is nothing to do, 1 if there is

Everything said goes to standard error, so that a command behind it has standard output to itself. Nothing is written
outside the environment and pip's own cache. A stamp in the environment holds a digest of the locks; the set-up runs
again when it no longer matches. An interrupted set-up leaves a marker instead: the next one then starts from an empty
environment (what pip had downloaded is in its cache), because a package that was cut off while being unpacked may
look installed.

Needs the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

__all__ = ["SetupError", "main"]

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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STAMP = "set-up-complete"
MARKER = "set-up-unfinished"

PYSPARK_MB = 450  # its source distribution; there is no wheel
PACKAGES_MB = 110  # everything else in dev.txt, as wheels
# Free space wanted where the environment, pip's cache and temporary files lie. pyspark is there three times for a
# moment: as an archive, unpacked, and as the wheel built from it.
ENVIRONMENT_GB = 1.2
CACHE_GB = 1.2
TEMPORARY_GB = 1.6


class SetupError(Exception):
    """The set-up cannot go on; the text says what is missing and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def digest(venv: Path) -> str:
    """What the environment depends on: locks, declared dependencies and entry points, its place, its Python."""
    found = hashlib.sha256()
    for path in (HERE / "build.txt", HERE / "dev.txt", ROOT / "pyproject.toml", Path(__file__)):
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


def is_ready(venv: Path) -> bool:
    try:
        stamp = (venv / STAMP).read_text().strip()
    except OSError:
        return False
    return not (venv / MARKER).exists() and stamp == digest(venv)


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


def pip(venv: Path, *arguments: str) -> None:
    """Runs the environment's pip with its output on standard error: bars on a terminal, plain lines elsewhere."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    environment["PIP_USER"] = "0"  # a user's setting; it would make pip refuse to install into an environment
    command = [str(venv_python(venv)), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    if not sys.stderr.isatty():
        command += ["--progress-bar", "off"]
    if subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False).returncode:
        raise SetupError(
            "pip could not install the locked packages; its own lines above say why. Without a direct way to a package "
            "index, pip's settings are honoured (PIP_INDEX_URL, PIP_PROXY, PIP_CERT, pip.conf). When it says that "
            "hashes differ, the index served another file than the one that was locked: do not go on with it. "
            "Run the same command again when that is solved; nothing has to be cleaned up."
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


def create(venv: Path) -> None:
    """An environment at ``venv`` with nothing in it, whatever was there before; says first what will be downloaded."""
    check_disk(venv)
    say(
        f"Setting up {venv}, once: about {PYSPARK_MB + PACKAGES_MB} MB to download (pyspark alone {PYSPARK_MB} MB), "
        "less what pip has in its cache."
    )
    empty(venv)
    ran = subprocess.run([sys.executable, "-m", "venv", str(venv)], stdout=sys.stderr, check=False)
    if ran.returncode:
        raise SetupError(f"{sys.executable} -m venv could not make {venv}; its own lines above say why.")


def make(venv: Path) -> None:
    """Brings the environment to what the locks say, from nothing or from an older state."""
    version = venv_version(venv)
    if not venv.exists():
        create(venv)
    elif version is None or (venv / MARKER).exists():
        say(f"{venv} is unfinished, or its Python is gone: starting with an empty one.")
        create(venv)
    elif version < (3, 11):
        raise SetupError(
            f"{venv} was made with Python {version[0]}.{version[1]}, and 3.11 or newer is needed. "
            "Move it away, or remove it with: make clean"
        )
    else:
        say(f"Bringing {venv} up to date with requirements/dev.txt.")
    (venv / MARKER).touch()
    (venv / STAMP).unlink(missing_ok=True)
    locked = ("--require-hashes", "--no-build-isolation")
    pip(venv, *locked, "--requirement", str(HERE / "build.txt"))
    pip(venv, *locked, "--requirement", str(HERE / "dev.txt"))
    pip(venv, "--no-index", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    unfinished = venv / (STAMP + ".new")
    unfinished.write_text(digest(venv) + "\n")
    unfinished.replace(venv / STAMP)
    (venv / MARKER).unlink()


def main(arguments: list[str] | None = None) -> int:
    """Makes the environment named on the command line; returns the exit status. Blocks, minutes the first time."""
    parser = argparse.ArgumentParser(
        description="Makes the project's virtual environment from the locked requirements."
    )
    parser.add_argument("--ready", action="store_true", help="only tell, by the exit status, whether it is up to date")
    parser.add_argument("venv", type=Path, help="the environment's folder")
    options = parser.parse_args(arguments)
    venv = options.venv.absolute()
    if options.ready or is_ready(venv):
        return 0 if is_ready(venv) else 1
    try:
        check_python()
        with alone(ROOT):
            if not is_ready(venv):
                make(venv)
    except SetupError as error:
        say(f"\nSet-up stopped: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nSet-up interrupted. Run the same command again: it starts from what pip has already downloaded.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

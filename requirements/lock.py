"""Writes the locked requirements: every file ``.txt`` beside this one, from pyproject.toml and the ``.in`` files.

    python requirements/lock.py [--upgrade]

Without ``--upgrade`` a version that still fits is kept. The locks hold for Python 3.11 and newer on every platform
and carry no address: where packages come from is the installing machine's setting. Each is made within the versions
of the one before, so that production runs what was tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lock -> what it is made from. Paths are relative to the checkout, as they appear in the locks' comments.
LOCKS: dict[str, tuple[str, ...]] = {
    "requirements/lock.txt": ("requirements/lock.in",),
    "requirements/build.txt": ("requirements/build.in",),
    "requirements/dev.txt": ("pyproject.toml", "--extra", "dev", "--constraint", "requirements/build.txt"),
    "requirements/demo.txt": (
        "pyproject.toml",
        "--extra",
        "embedded",
        "--extra",
        "auth",
        "--constraint",
        "requirements/dev.txt",
    ),
    "requirements/streaming.txt": ("pyproject.toml", "--extra", "streaming", "--constraint", "requirements/dev.txt"),
    "requirements/auth.txt": ("pyproject.toml", "--extra", "auth", "--constraint", "requirements/dev.txt"),
    "requirements/compile.txt": ("requirements/compile.in", "--constraint", "requirements/dev.txt"),
    "requirements/core.txt": ("pyproject.toml", "--constraint", "requirements/dev.txt"),
}


def main(arguments: list[str]) -> int:
    """Locks everything; ``arguments`` go to every call. Needs a package index. Returns the exit status."""
    environment = {**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
    for lock, sources in LOCKS.items():
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        command += ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--output-file", lock]
        status = subprocess.run([*command, *sources, *arguments], cwd=ROOT, env=environment, check=False).returncode
        if status:
            print(f"{lock} was not locked; the lines above say why.", file=sys.stderr)
            return status
        print(f"locked {lock}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

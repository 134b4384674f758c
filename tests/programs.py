"""Programs of this machine that tests need."""

import os
import shutil
from typing import NoReturn

import pytest

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def missing(reason: str) -> NoReturn:
    """Skip the test for want of a tool; in CI it fails, for there it would look green for ever."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"{reason}; in CI that is a failure")
    pytest.skip(reason)


def find(binary: str, package: str, *, also: str = "") -> str:
    """The path of a binary. Without one the test is skipped, or fails in CI. ``also`` are further folders."""
    found = shutil.which(binary, path=f"{also}:{_PATH}")
    if found is None:
        missing(f"{binary} is not installed (Debian: apt-get install {package})")
    return found

"""The soak, for some seconds: it goes through a handful of faults, finds all well, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.harness import FULL
from tests.command_line import ROOT
from tests.programs import find
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

MINUTES = 10.0 if FULL else 0.25


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a soak makes its temporary files; nothing may be left there, nor anybody who uses it."""
    find("mosquitto", "mosquitto")
    place = tmp_path / "t"
    place.mkdir()
    # Ports are reserved by files that all processes on the machine share: they stay where they are.
    reservations = Path(tempfile.gettempdir()) / f"gateway-ports-{os.getuid()}"
    reservations.mkdir(mode=0o700, exist_ok=True)
    (place / reservations.name).symlink_to(reservations)
    yield place

    def left() -> list[str]:
        return [one.name for one in place.iterdir() if one.name != reservations.name] + users_of(place)

    # Behind a process that ended in the middle of a start its guard clears up, a moment later.
    wait_until(lambda: not left(), lambda: f"nothing is left: {left()}")


def users_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line:
            found.append(line)
    return found


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.soak", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip


def test_a_short_soak_finds_all_well(folder: Path) -> None:
    process = start(folder, "--minutes", str(MINUTES), "--seed", "5", "--json")
    output, _ = process.communicate(timeout=MINUTES * 60 + 240)
    print(output)
    assert process.returncode == 0, output
    result = json.loads(output.splitlines()[-1])
    assert result["missing"] == result["foreign"] == result["out_of_order"] == 0
    assert result["published"] > 60 * MINUTES * 100
    assert sum(fault["count"] for fault in result["faults"].values()) >= 2
    assert result["problems"] == []
    assert "--seed 5" in output, "so that it can be run again"


def test_a_soak_that_is_ended_leaves_nothing_behind(folder: Path) -> None:
    process = start(folder, "--minutes", "5")
    try:
        wait_until(lambda: len(users_of(folder)) >= 3, "its brokers and its gateway run")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.communicate()

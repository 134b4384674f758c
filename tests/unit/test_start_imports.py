"""What `gateway run` loads before it forks its workers: a start after a crash waits for all of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
workers = 1
[mqtt]
addresses = ["mqtt://127.0.0.1:1883"]
[kafka]
bootstrap_servers = ["127.0.0.1:9092"]
[[routes]]
name = "telemetry"
filters = ["devices/+/telemetry"]
topic = "telemetry"
"""
# Runs the command up to the fork. Prints the modules of the supervisor, then those that a worker has as well.
UP_TO_THE_FORK = """
import sys
from gateway.supervisor import prefork

def stop(count, load, meanwhile):
    meanwhile()
    print(*sys.modules)
    load()
    print(*sys.modules)
    raise SystemExit(0)

prefork.fork_workers = stop
from gateway.cli.main import main
main(["run", "--config", sys.argv[1]])
"""


def python(code: str, *arguments: str | Path, cache: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    environment |= {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.toml"
    file.write_text(SETTINGS)
    return file


def test_a_start_imports_no_other_command(settings: Path, tmp_path: Path) -> None:
    printed = python(UP_TO_THE_FORK, settings, cache=tmp_path / "cache")
    supervisor, modules = (line.split() for line in printed.splitlines())
    heavy = {"aiokafka", "cramjam", "gateway.worker.worker", "paho.mqtt.client", "prometheus_client.exposition"}
    assert heavy <= set(modules), "the workers would load it again, each for itself"
    assert not heavy & set(supervisor), "12 MiB that a supervisor does not need"
    assert not {"aiohttp", "gateway.base.metrics", "prometheus_client", "rich"} & set(supervisor), "17 MiB more"
    assert {name for name in modules if name.startswith("gateway.cli.")} == {
        "gateway.cli.main", "gateway.cli.parser", "gateway.cli.service", "gateway.cli.service.run",
    }  # fmt: skip


def test_the_image_has_the_bytecode_of_all_that_a_start_loads(settings: Path, tmp_path: Path) -> None:
    """Nobody may write there when the container runs, and the base image has none of Python's own library."""
    (imports,) = re.findall(
        r'^RUN PYTHONDONTWRITEBYTECODE= .*\\\n *"(import .*)"$', (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    python(imports, cache=tmp_path / "image")
    written = set((tmp_path / "image").rglob("*.pyc"))
    python(UP_TO_THE_FORK, settings, cache=tmp_path / "image")
    late = {file.name for file in set((tmp_path / "image").rglob("*.pyc")) - written}
    assert not late, f"each start in a container compiles {sorted(late)}"

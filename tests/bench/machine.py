"""The machine a benchmark ran on, so that its figures can be read elsewhere."""

import os
import platform
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from gateway.local.runtime.jars import locked_jars

_LIBRARIES: Final = ("paho-mqtt", "aiokafka", "cramjam", "confluent-kafka", "prometheus-client", "pydantic")
_REFERENCE_ROUNDS: Final = 40


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware, kernel, versions, and how busy and how fast the machine was.

    reference_ns: CPU nanoseconds of one dictionary look-up and one 200-byte slice in this Python: divide figures of two
    machines by it to compare them, and two figures of one machine to see whether its neighbours slowed it down.
    """

    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    versions: dict[str, str]
    load_average: tuple[float, float, float]
    reference_ns: float


def describe() -> Machine:
    """This machine, now. Takes a tenth of a second of CPU."""
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 0,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        kernel=platform.release(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions={
            **{name: metadata.version(name) for name in _LIBRARIES},
            "mosquitto": _mosquitto(),
            "embedded Kafka": next(jar.version for jar in locked_jars("kafka") if jar.name.startswith("kafka_")),
        },
        load_average=os.getloadavg(),
        reference_ns=round(reference_ns(), 1),
    )


def reference_ns() -> float:
    """CPU time of a fixed piece of Python work, per step: the median of five looks."""
    places = {b"devices/%d/telemetry" % number: number for number in range(1_000)}
    topics = list(places)
    data = bytes(100_000)
    looks = []
    for _ in range(5):
        began = time.process_time_ns()
        for _ in range(_REFERENCE_ROUNDS):
            for topic in topics:
                at = places[topic]
                data[at : at + 200]
        looks.append((time.process_time_ns() - began) / (_REFERENCE_ROUNDS * len(topics)))
    return statistics.median(looks)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _mosquitto() -> str:
    binary = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    if not Path(binary).exists():
        return "not installed"
    # -h prints the version and ends with a status other than 0.
    shown = subprocess.run([binary, "-h"], capture_output=True, text=True, timeout=10, check=False).stdout
    return shown.partition("\n")[0].removeprefix("mosquitto version ")

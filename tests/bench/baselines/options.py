"""The command line both baselines share."""

from __future__ import annotations

__all__ = ["Options", "parse"]

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Where to read from and write to; ``persistent`` keeps the MQTT session while the bridge is away."""

    mqtt_port: int
    mqtt_filter: str
    client_id: str
    persistent: bool
    kafka: str
    topic: str
    compression: str


def parse(description: str | None) -> Options:
    """The options of this process's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mqtt-port", type=int, required=True)
    parser.add_argument("--mqtt-filter", required=True)
    parser.add_argument("--client-id", default="baseline")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--compression", choices=("none", "zstd"), default="none")
    return Options(**vars(parser.parse_args()))

"""Whether somebody listens where a job is told to connect: Spark would try for a minute and end with a page of Java."""

import contextlib
import socket
from collections.abc import Iterable

from config.errors import ConfigError
from config.values.addresses import parse_kafka_address
from streaming.errors import KafkaUnavailableError, MasterUnavailableError


def require_kafka(bootstrap_servers: tuple[str, ...], timeout_s: float) -> None:
    """Returns once one of the brokers accepts a connection; raises KafkaUnavailableError if none does. Blocks up to
    ``timeout_s`` for each address."""
    if failures := _failures(bootstrap_servers, timeout_s):
        raise KafkaUnavailableError(
            f"Kafka cannot be reached at {', '.join(failures)}. Is it running, and is kafka.bootstrap_servers right?"
        )


def require_master(master: str, timeout_s: float) -> None:
    """Returns once one of the masters of a standalone cluster (``spark://host:port,host:port``) accepts a connection;
    raises MasterUnavailableError if none does, ConfigError for an invalid address. Another kind of master is not
    checked. Blocks up to ``timeout_s`` for each address."""
    if not master.startswith("spark://"):
        return
    try:
        failures = _failures(master.removeprefix("spark://").split(","), timeout_s)
    except ValueError as error:
        raise ConfigError(f"stream.master is {master!r}: {error}.") from error
    if failures:
        raise MasterUnavailableError(
            f"Spark's master cannot be reached at {', '.join(failures)}. Is it running, and is stream.master right?"
        )


def _failures(addresses: Iterable[str], timeout_s: float) -> list[str]:
    """What each address said to a connection; nothing if one accepted it."""
    failures = []
    for address in addresses:
        try:
            with contextlib.closing(socket.create_connection(parse_kafka_address(address), timeout_s)):
                return []
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    return failures

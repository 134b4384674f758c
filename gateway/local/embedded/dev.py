"""Embedded brokers that keep running in the background, for each project its own: start them, find them, stop them.

A server process (``dev_server.py``) owns the brokers. It is found by a state file in the cache and asked over a
loopback port with the secret that file holds, so neither a recycled process id nor another program on the port can be
mistaken for it.
"""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.local.runtime.cache import cache_directory, locked
from gateway.local.runtime.errors import EmbeddedError, PortTakenError, StartError
from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java
from gateway.local.runtime.progress import print_progress

_ANSWER_SECONDS = 5.0
_STOP_SECONDS = 60.0  # three nodes on a busy machine


@dataclass(frozen=True, slots=True)
class DevBrokers:
    """Running brokers and where they are."""

    kafka: str
    """Bootstrap servers, ``host:port,…``."""
    mqtt: str
    """``mqtt://host:port``."""
    websocket: str
    """``ws://host:port/mqtt``."""
    pid: int
    logs: str
    """The folder with the brokers' logs."""
    failed: tuple[str, ...] = ()
    """Brokers that have ended by themselves since."""
    access: str = ""
    """Settings file of the access service, for `gateway auth … --config`; "" without one: everybody gets in."""
    secrets: str = ""
    """The folder with what it made: the gateway's password, the first device's secret."""
    project: str = ""
    """The folder they were started in."""
    name: str = ""
    """What tells them apart from the others of this user."""


def project_name(folder: Path) -> str:
    """The name of a folder's brokers where none is given: the same for every way to write the folder."""
    path = str(folder.resolve())
    plain = re.sub(r"[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-")[:30]
    return f"{plain or 'project'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def up(
    name: str,
    *,
    kafka_port: int | None,
    mqtt_port: int | None,
    nodes: int = 1,
    data: Path | None = None,
    auth: bool = False,
) -> tuple[DevBrokers, bool]:
    """Brokers in the background, and whether this call started them; those that run already keep their ports.

    Ports are those of Kafka's first node and of plain MQTT; None takes any free one. ``data`` keeps Kafka's data;
    without it the data ends with the brokers. With ``auth`` the MQTT broker asks an access service, whose users and
    secrets stay in the cache under that name.
    Blocks until both brokers are ready. Raises what starting them raises.
    """
    directory = _directory(name)
    with locked(directory / "lock", mode=0o700):
        if (running := find(name)) is not None:
            return running, False
        resolve("kafka", print_progress)  # here, where somebody sees the progress, not in the background
        resolve("hivemq", print_progress)
        ensure_java(print_progress)
        _state_file(name).unlink(missing_ok=True)
        description = {
            "state": str(_state_file(name)),
            "kafka_port": kafka_port,
            "mqtt_port": mqtt_port,
            "nodes": nodes,
            "data": str(data.absolute()) if data else None,
            "auth": str(directory / "auth") if auth else None,
            "project": str(Path.cwd()),
        }
        return _start(name, description, directory / "server.log"), True


def find(name: str) -> DevBrokers | None:
    """The running brokers of that name, or None. A state file left by a server that was killed counts as None. Raises
    EmbeddedError for a server that does not answer."""
    try:
        answer = _ask(name, "status", _ANSWER_SECONDS)
    except TimeoutError:
        raise _silence_error(name, "answer", _ANSWER_SECONDS) from None
    if answer is None:
        return None
    return _brokers(name, answer)


def others(name: str) -> list[DevBrokers]:
    """The user's running brokers of other names. Those whose server does not answer are left out."""
    found = []
    for file in sorted(cache_directory().glob("dev-*/state.json")):
        other = file.parent.name.removeprefix("dev-")
        if other != name:
            with suppress(EmbeddedError):
                found += [brokers] if (brokers := find(other)) is not None else []
    return found


def down(name: str) -> bool:
    """Stop the brokers that :func:`up` started and wait until they are gone; False when none ran.

    Raises EmbeddedError when they do not stop in time.
    """
    if not _directory(name).exists():
        return False
    with locked(_directory(name) / "lock"):
        try:
            answer = _ask(name, "stop", _STOP_SECONDS)
        except TimeoutError:
            raise _silence_error(name, "stop", _STOP_SECONDS) from None
        _state_file(name).unlink(missing_ok=True)
        return answer is not None


def _silence_error(name: str, verb: str, seconds: float) -> EmbeddedError:
    pid = (_read_state(name) or {}).get("pid", "?")
    return EmbeddedError(
        f"The background brokers' server (process {pid}) did not {verb} within {seconds:g} s. Is it frozen, or the "
        "machine out of memory? Killing that process ends the brokers too."
    )


def _directory(name: str) -> Path:
    return cache_directory() / f"dev-{name}"


def _state_file(name: str) -> Path:
    return _directory(name) / "state.json"


def _read_state(name: str) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(_state_file(name).read_text())
    except (OSError, ValueError):
        return None
    return state


def _ask(name: str, command: str, timeout: float) -> dict[str, Any] | None:
    """The server's answer, or None when there is no server. Raises TimeoutError after ``timeout`` seconds."""
    state = _read_state(name)
    if state is None:
        return None
    try:
        with socket.create_connection(("127.0.0.1", state["port"]), _ANSWER_SECONDS) as connection:
            connection.settimeout(timeout)
            connection.sendall(json.dumps({"secret": state["secret"], "command": command}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
                stream.read()  # to the end: after a "stop" that is the server's own
        return json.loads(line) if line else None
    except TimeoutError:
        try:
            os.kill(state["pid"], 0)
        except OSError:  # it was killed, and another program has its port by now
            return None
        raise
    except (OSError, ValueError):  # no server there, or another one, which did not know the secret
        return None


def _start(name: str, description: dict[str, Any], log: Path) -> DevBrokers:
    """Start the server, and wait for its one line of standard output: the brokers, or why there are none."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.local.embedded.dev_server", json.dumps(description)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
            cwd=log.parent,  # not the caller's, which it may want to remove
            env={**os.environ, **_python_path(), "GATEWAY_CACHE": str(cache_directory())},
            start_new_session=True,  # it outlives this command, its terminal and its Ctrl-C
        )
    assert process.stdout is not None
    try:
        with process.stdout:
            line = process.stdout.readline()
    except BaseException:
        process.terminate()  # interrupted while it starts: it stops what it has started
        process.wait()
        raise
    answer: dict[str, Any] = json.loads(line) if line else {"error": f"Their server ended while starting. (log: {log})"}
    if "error" in answer:
        process.wait()
        kind = PortTakenError if answer.get("port_taken") else StartError
        raise kind(answer["error"])
    process.returncode = 0  # it is to outlive us: no warning that it still runs
    return _brokers(name, answer)


def _brokers(name: str, answer: dict[str, Any]) -> DevBrokers:
    fields = answer["brokers"]
    return DevBrokers(**{**fields, "failed": tuple(fields["failed"]), "name": name})


def _python_path() -> dict[str, str]:
    """PYTHONPATH with its relative entries made absolute: the server runs in another directory."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in path.split(os.pathsep))}


def to_json(brokers: DevBrokers) -> str:
    return json.dumps(asdict(brokers))

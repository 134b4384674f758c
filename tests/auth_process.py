"""``gateway auth serve`` as a process, with a database of its own, and the questions that EMQX would ask it."""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auth.passwords import Argon2Cost, hash_argon2id, hash_device_secret
from auth.store.edit import Editor
from auth.store.records import User
from auth.store.store import Store
from tests.asking import exchange
from tests.command_line import GATEWAY, own_environment
from tests.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[1]
WEAK = Argon2Cost(8 << 10, 1)  # tests need not wait for a hash


@dataclass
class Reply:
    status: int
    body: str

    @property
    def data(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


class AuthServe:
    """The process. ``folder`` is its working directory; ``settings`` TOML lines in front of the tables.

    ``answer_timeout`` is the longest there is, as a busy machine may take long with an answer."""

    def __init__(
        self,
        folder: Path,
        settings: str = "",
        auth: str = "",
        environment: dict[str, str] | None = None,
        answer_timeout: str = "4s",
    ) -> None:
        self.folder = folder
        self.log = folder / "log"
        (folder / "gateway.toml").write_text(
            f'{settings}\n[auth]\nport = 0\noperator_port = 0\nanswer_timeout = "{answer_timeout}"\n{auth}\n',
            encoding="utf-8",
        )
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*GATEWAY, "auth", "serve"], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=own_environment(**(environment or {})),
            )  # fmt: skip

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has logged; lines that are no JSON have the event ``text``."""
        found = []
        *lines, _ = self.log.read_text(encoding="utf-8", errors="replace").split("\n")  # the last may be half written
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": "text", "text": line})
        return found

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """The log line of this event, the last of so many; fails when it does not come or the process ends."""
        end = time.monotonic() + DEADLINE_S
        while True:
            ended = self.process.poll() is not None
            found = [line for line in self.lines if line["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            assert not ended, f"it ended with {self.process.returncode}: {self.log.read_text()}"
            assert time.monotonic() < end, f"{event} does not come: {self.log.read_text()}"
            time.sleep(0.02)

    def port(self, name: str = "url") -> int:
        return int(self.wait_for("auth_ready")[name].rpartition(":")[2])

    def ask(self, path: str, body: dict[str, Any], **headers: str) -> Reply:
        """A question of EMQX's."""
        return _request("POST", self.port(), path, json.dumps(body), {"content-type": "application/json", **headers})

    def login(self, username: str, password: str, **more: str) -> dict[str, Any]:
        return self.ask("/authn", {"username": username, "clientid": "c", "password": password, **more}).data

    def get(self, path: str) -> Reply:
        """An operator's question."""
        return _request("GET", self.port("operator_url"), path, None, {})

    @contextlib.contextmanager
    def edit(self) -> Iterator[Editor]:
        """Changes the database as the administration commands do, from another process than the service."""
        with Store(self.folder / "data" / "auth" / "auth.sqlite3").edit("test") as editor:
            yield editor

    def add_user(self, name: str, password: str, *, generated: bool = False, **more: Any) -> None:
        with self.edit() as editor:
            stored = (
                hash_device_secret(password, editor.current_device_key())
                if generated
                else hash_argon2id(password, WEAK)
            )
            editor.users.add(User("username", name, stored, **more))

    def until(self, true: Any, what: str) -> None:
        """Waits until it is so; fails with ``what``."""
        wait_until(true, lambda: f"{what}: {self.log.read_text()}", DEADLINE_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status after the signal."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def _request(method: str, port: int, path: str, body: str | None, headers: dict[str, str]) -> Reply:
    status, _, answer = exchange(port, path, method, body, headers, DEADLINE_S)
    return Reply(status, answer.decode())


@contextlib.contextmanager
def auth_serve(folder: Path, settings: str = "", auth: str = "", **options: Any) -> Iterator[AuthServe]:
    """The process; it is gone at the end."""
    served = AuthServe(folder, settings, auth, **options)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
        served.process.wait(DEADLINE_S)

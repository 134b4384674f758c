"""The access service on this machine, for the demo, development and tests: a real `gateway auth serve` of its own."""

import csv
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from auth.store.first_start import FirstStart
from config.loading.load import load
from config.wording import as_toml
from gateway.local.embedded.access import AccessEndpoint
from gateway.local.runtime.errors import EmbeddedError
from gateway.local.runtime.ports import reserve_ports
from gateway.local.runtime.process import GuardedProcess, wait_for_line
from gateway.local.runtime.server import ServerProcess

_READY = re.compile(rb"auth_ready")
_START_SECONDS = 30.0  # under one when idle
_COMMAND = [sys.executable, "-m", "gateway.cli.main"]


class AccessProcess(ServerProcess):
    """`gateway auth serve` with a database and secrets below ``folder``; not started yet.

    ``filters`` are what the gateway will subscribe to, ``instance`` its name: they become the rules of its own user.
    ``auth_toml`` are further lines of its [auth] table, ``more_toml`` further tables. The file is :attr:`config`, also
    for the administration commands. ``remove`` are folders to delete if this process dies without :meth:`stop`.

    Database and secrets stay in the folder and are taken up again. The service dies with this process. The methods
    block; any one thread at a time may call them.
    """

    what = "the access service"

    def __init__(
        self,
        folder: Path,
        *,
        filters: Sequence[str] = ("#",),
        instance: str = "dev",
        auth_toml: str = "",
        more_toml: str = "",
        remove: Sequence[Path] = (),  # folders to delete if this process dies
    ) -> None:
        self.folder = folder
        self.config = folder / "auth.toml"
        self.database = folder / "auth.sqlite3"
        self.log = folder / "auth.log"
        self._secrets = folder / "secrets"
        self._secret_file = self._secrets / "service" / "shared_secret"
        self.gateway_password_file = self._secrets / "gateway" / "mqtt_password"
        self.emqx_folder = self._secrets / "emqx"  # what deploy/emqx/emqx.conf includes
        self.devices_file = self._secrets / "devices" / "devices.csv"  # names and secrets, by prepare()
        self._filters = list(filters)
        self._instance = instance
        self._auth_toml = auth_toml
        self._more_toml = more_toml
        self._remove = list(remove)

    def __enter__(self) -> Self:
        self.prepare()
        return super().__enter__()

    @property
    def service(self) -> AccessEndpoint:
        """Where it listens, with the secret to show."""
        return AccessEndpoint(self._ports[0], self._secret_file.read_text().strip())

    @property
    def operator_port(self) -> int:
        """Port of /metrics, /healthz and /readyz."""
        return self._ports[1]

    @property
    def devices(self) -> Mapping[str, str]:
        """Secrets of the devices that :meth:`prepare` made, by name."""
        with self.devices_file.open(newline="") as file:
            return {row[0]: row[1] for row in list(csv.reader(file))[1:]}

    @property
    def returncode(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._running().returncode

    @property
    def _ports(self) -> tuple[int, ...]:
        if self._reservation is None:
            raise EmbeddedError("The access service has not been prepared.")
        return tuple(self._reservation.ports)

    def prepare(self, devices: Sequence[str] = ()) -> None:
        """Choose ports, write the settings, and make database, secrets and these devices if they are not there.

        Raises StoreError and ConfigError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._reservation is None:
            self._reservation = reserve_ports(2)
        self.config.write_text(self._toml(""), encoding="utf-8")
        FirstStart(load(self.config, environ={}).settings, self._secrets.absolute()).run(devices)
        secret = f"shared_secret_file = {as_toml(str(self._secret_file.absolute()))}\n"
        self.config.write_text(self._toml(secret), encoding="utf-8")

    def _toml(self, secret_line: str) -> str:
        text = as_toml
        return f"""\
# Written by `gateway demo --auth` or `gateway dev up --auth`; give it to `gateway auth … --config`.
instance = {text(self._instance)}
data_dir = {text(str(self.folder.absolute()))}

[[routes]]
name = "all"
filters = {text(self._filters)}
topic = "unused"

[auth]
port = {self._ports[0]}
operator_port = {self._ports[1]}
{secret_line}{self._auth_toml}
[auth.database]
file = {text(str(self.database.absolute()))}

[auth.protection]
# All devices share this machine's address.
address_failures = 0

{self._more_toml}"""

    def start(self) -> None:
        """Start it, or again after :meth:`kill`, at the same ports; returns when it answers. Raises StartError."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        command = [*_COMMAND, "auth", "serve", "--config", str(self.config)]
        self._process = GuardedProcess(command, log=self.log, env=environment, remove=self._remove)
        wait_for_line(self._process, _READY, time.monotonic() + _START_SECONDS, "The access service")

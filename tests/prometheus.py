"""A real Prometheus, Debian's."""

import contextlib
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from gateway.local.runtime.ports import reserve_ports
from gateway.local.runtime.process import GuardedProcess
from tests.asking import get
from tests.monitoring import tool
from tests.waiting import wait_until


class Prometheus:
    """It looks every ``interval_s``, with these scrape jobs and rules (texts by file name), while its ``with`` block
    runs."""

    def __init__(self, folder: Path, interval_s: int, jobs: list[dict[str, Any]], rules: Mapping[str, str]) -> None:
        (folder / "rules").mkdir(parents=True)
        for name, text in rules.items():
            (folder / "rules" / name).write_text(text)
        often = dict.fromkeys(("scrape_interval", "evaluation_interval", "scrape_timeout"), f"{interval_s}s")
        settings = {"global": often, "rule_files": ["rules/*.yml"], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self.log = folder / "log"
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        ports = reserve_ports(1)
        self._stack.callback(ports.release)
        (self._port,) = ports.ports
        argv = [
            tool("prometheus"), f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}",
        ]  # fmt: skip
        self._process = GuardedProcess(argv, log=self.log)
        self._stack.callback(self._process.kill)
        wait_until(self._ready, "Prometheus is ready")
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _ready(self) -> bool:
        assert self._process.returncode is None, self.log.read_text()
        with contextlib.suppress(OSError, http.client.HTTPException):
            return get(self._port, "/-/ready")[0] == 200
        return False

    def ask(self, what: str, **parameters: str) -> Any:
        """The data of an answer of its API; AssertionError with its sentence when it refuses."""
        status, body = get(self._port, f"/api/v1/{what}?{urlencode(parameters)}", 10)
        document = json.loads(body)
        assert status == 200, f"{parameters}: {document.get('error')}"
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression yields now."""
        return list(self.ask("query", query=expression)["result"])

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or fire: ``labels``, ``annotations``, ``state``."""
        return list(self.ask("alerts")["alerts"])

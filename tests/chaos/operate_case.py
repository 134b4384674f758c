"""A site as its operator sees it: the page's problems, a real Prometheus' alerts by our rules, ``gateway doctor``."""

from __future__ import annotations

__all__ = ["Lookout", "Prometheus", "Seen", "Site", "doctor"]

import contextlib
import http.client
import json
import shutil
import threading
import time
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from gateway.local.runtime.ports import reserve_ports
from gateway.local.runtime.process import GuardedProcess
from tests.brokers.emqx_rest import EmqxRest
from tests.chaos.harness import wait_until
from tests.chaos.threaded import ThreadedBroker
from tests.monitoring import PROMETHEUS, tool

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from tests.brokers.scripted_rules import Rules
    from tests.chaos.harness import Gateway

ALWAYS = {"GatewayWatchdog"}
_OTHERS = ("gateway-auth.yml", "emqx.yml", "kafka.yml")


class Prometheus:
    """Debian's, with the rules of deploy/prometheus but for those of what does not run here, scraping gateways.

    ``interval_s``: between two looks, at gateways and at rules; those of deploy/prometheus are 15 s."""

    def __init__(self, directory: Path, *gateway_ports: int, interval_s: int = 15) -> None:
        self._directory = directory
        self._ports = reserve_ports(1)
        self.port = self._ports.ports[0]
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copytree(PROMETHEUS / "rules", directory / "rules", ignore=shutil.ignore_patterns(*_OTHERS))
        targets = json.dumps([f"127.0.0.1:{port}" for port in gateway_ports])
        often = f"{interval_s}s"
        (directory / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {often}, scrape_timeout: {often}, evaluation_interval: {often}}}\n"
            "rule_files: [rules/*.yml]\n"
            "scrape_configs:\n"
            "  - job_name: gateway\n"
            f"    static_configs: [{{targets: {targets}}}]\n"
        )
        self._process: GuardedProcess | None = None

    def __enter__(self) -> Self:
        argv = [
            tool("prometheus"), f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]  # fmt: skip
        self._process = GuardedProcess(argv, log=self._directory / "prometheus.log")
        wait_until(self._ready, "Prometheus is ready")
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._ports.release()

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._get("/-/ready")[0] == 200
        return False

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or fire, but for the watchdog: ``labels``, ``annotations``, ``state``."""
        status, body = self._get("/api/v1/alerts")
        assert status == 200, body
        found = json.loads(body)["data"]["alerts"]
        return [alert for alert in found if alert["labels"]["alertname"] not in ALWAYS]

    def firing(self) -> list[dict[str, Any]]:
        return [alert for alert in self.alerts() if alert["state"] == "firing"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression yields now."""
        status, body = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        assert status == 200, body
        return list(json.loads(body)["data"]["result"])


@dataclass(frozen=True)
class Seen:
    """Something that the page or an alert said, and from when to when (seconds of the monotonic clock)."""

    where: str  # "page" or "alert"
    name: str
    severity: str
    subject: str
    text: str
    began_s: float


class Lookout:
    """Looks at the page's problems each second, and at the alerts, while its ``with`` block runs."""

    def __init__(self, gateway: Gateway, prometheus: Prometheus | None = None, *, quiet: bool = True) -> None:
        self._gateway, self._prometheus, self._quiet = gateway, prometheus, quiet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout")
        self._began_s = time.monotonic()
        self._now: dict[tuple[str, ...], Seen] = {}
        self.seen: list[Seen] = []
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self, what: str) -> float:
        """Note that something is done now; the moment."""
        self._say(f"### {what}")
        return time.monotonic()

    def _say(self, line: str) -> None:
        if not self._quiet:
            print(f"{time.monotonic() - self._began_s:7.1f} {line}", flush=True)

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._look()

    def _look(self) -> None:
        now_s = time.monotonic()
        found: dict[tuple[str, ...], Seen] = {}
        for one in self._gateway.problems():
            seen = Seen("page", one["id"], one["severity"], one["subject"], one["text"], now_s)
            found["page", seen.name, seen.severity, seen.subject] = seen
        for alert in self._prometheus.alerts() if self._prometheus is not None else ():
            labels = dict(alert["labels"])
            name, severity = labels.pop("alertname"), labels.pop("severity")
            subject = " ".join(
                f"{key}={value}" for key, value in sorted(labels.items()) if key not in {"job", "instance"}
            )
            seen = Seen("alert", name, f"{alert['state']} {severity}", subject, alert["annotations"]["summary"], now_s)
            found["alert", seen.name, seen.severity, seen.subject] = seen
        for key in found.keys() - self._now.keys():
            self.seen.append(found[key])
            self._say(f"+ {' '.join(key)}: {found[key].text}")
        for key in self._now.keys() - found.keys():
            self._say(f"- {' '.join(key)} (last: {self._now[key].text})")
        self._now = found
        self.looks += 1


def doctor(gateway: Gateway, *words: str) -> list[dict[str, Any]]:
    """The checks of ``gateway doctor --json`` that are not ok nor skipped."""
    _, text = gateway.command("doctor", "--json", *words)
    return [check for check in json.loads(text)["checks"] if check["severity"] in {"warn", "FAIL"}]


class Site:
    """A scripted EMQX with its REST API, with whose figures a gateway is told what EMQX drops."""

    def __init__(self, rules: Rules, *, tls: ssl.SSLContext | None = None, nodes: int = 1) -> None:
        self.broker = ThreadedBroker(rules, tls=tls, nodes=nodes)

    def __enter__(self) -> Self:
        self.broker.__enter__()

        async def start() -> EmqxRest:
            rest = EmqxRest(self.broker.broker)
            await rest.start()
            return rest

        self.rest = self.broker.run(start())
        return self

    def __exit__(self, *error: object) -> None:
        self.broker.run(self.rest.stop())
        self.broker.__exit__(*error)

"""A site as its operator sees it: the page's problems, a real Prometheus' alerts by our rules, ``gateway doctor``."""

import json
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import Gateway, Looking
from tests.chaos.threaded import ThreadedBroker
from tests.monitoring import RULE_FILES
from tests.prometheus import Prometheus

ALWAYS = {"GatewayWatchdog"}
_OTHERS = ("gateway-auth.yml", "emqx.yml", "kafka.yml")


def looking(folder: Path, *gateway_ports: int, interval_s: int = 15) -> Prometheus:
    """A Prometheus with the rules of deploy/prometheus but for those of what does not run here, at gateways."""
    job = {"job_name": "gateway", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in gateway_ports]}]}
    rules = {file.name: file.read_text() for file in RULE_FILES if file.name not in _OTHERS}
    return Prometheus(folder, interval_s, [job], rules)


def alerts(prometheus: Prometheus) -> list[dict[str, Any]]:
    """Those that are pending or fire, but for the watchdog."""
    return [alert for alert in prometheus.alerts() if alert["labels"]["alertname"] not in ALWAYS]


@dataclass(frozen=True)
class Seen:
    """Something that the page or an alert said, and from when to when (seconds of the monotonic clock)."""

    where: str  # "page" or "alert"
    name: str
    severity: str
    subject: str
    text: str
    began_s: float


class Lookout(Looking):
    """Looks at the page's problems each second, and at the alerts."""

    def __init__(self, gateway: Gateway, prometheus: Prometheus | None = None, *, quiet: bool = True) -> None:
        super().__init__(gateway)
        self._prometheus, self._quiet = prometheus, quiet
        self._now: dict[tuple[str, ...], Seen] = {}
        self.seen: list[Seen] = []

    def mark(self, what: str) -> float:
        """Note that something is done now; the moment."""
        self._say(f"### {what}")
        return time.monotonic()

    def _say(self, line: str) -> None:
        if not self._quiet:
            print(f"{time.monotonic() - self._began_s:7.1f} {line}", flush=True)

    def look(self) -> None:
        now_s = time.monotonic()
        found: dict[tuple[str, ...], Seen] = {}
        for one in self._gateway.problems():
            seen = Seen("page", one["id"], one["severity"], one["subject"], one["text"], now_s)
            found["page", seen.name, seen.severity, seen.subject] = seen
        for alert in alerts(self._prometheus) if self._prometheus is not None else ():
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

"""What tests of ``gateway doctor`` share: settings as a dictionary, an examination in this process, its checks."""

import asyncio
import re
from pathlib import Path
from typing import Any

from config.loading.load import load
from config.settings import Settings
from gateway.tools.doctor.examine import Options, examine
from gateway.tools.doctor.model import Check, Report, Severity, exit_status
from tests.brokers.mosquitto import Mosquitto

USERS = {"gateway": "gateway-secret", "sensor": "sensor-secret"}
ACL = "user gateway\ntopic readwrite #\n\nuser sensor\ntopic readwrite devices/sensor/#\n"
"""Of mosquitto: the gateway may do everything, a device what is its own."""
_ROUTE = {"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry"}


def settings_of(**tables: Any) -> Settings:
    """Settings with one route, ``devices/#`` to the topic ``telemetry``, changed by ``tables``."""
    return load(None, environ={}, overrides={"routes": [_ROUTE], **tables}).settings


class Looked:
    """A report to ask for its checks."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.status = int(exit_status(report.checks))

    def all(self, name: str, about: str = "") -> list[Check]:
        """The checks of a name, of those whose subject has ``about`` in it."""
        return [check for check in self.report.checks if check.name == name and about in check.about]

    def one(self, name: str, about: str = "") -> Check:
        (found,) = self.all(name, about)
        return found

    def of(self, *severities: Severity) -> list[str]:
        """Checks of these severities, in a line each, for messages."""
        return [
            f"{c.severity} {c.group} {c.name} {c.about}: {c.text}"
            for c in self.report.checks
            if c.severity in severities
        ]

    @property
    def bad(self) -> list[str]:
        return self.of(Severity.FAIL, Severity.WARN)

    def says(self, pattern: str) -> bool:
        """Whether a FAIL says this."""
        return any(
            re.search(pattern, f"{c.about}: {c.text}") for c in self.report.checks if c.severity is Severity.FAIL
        )


def look(
    directory: Path, *only: str, timeout_s: float = 5.0, options: dict[str, Any] | None = None, **tables: Any
) -> Looked:
    """Examine with these settings, from a thread that has no event loop. ``data_dir`` is below ``directory``."""
    overrides = {"routes": [_ROUTE], "data_dir": str(directory / "data"), "workers": 1, **tables}
    loaded = load(None, environ={}, overrides=overrides)
    chosen = Options(only=frozenset(only), timeout_s=timeout_s, **(options or {}))
    return Looked(asyncio.run(examine(loaded, chosen)))


def mqtt(broker: Mosquitto, password: str = USERS["gateway"], **more: Any) -> dict[str, Any]:
    """The table ``mqtt`` for this broker, with the gateway's user."""
    addresses = [f"mqtt://127.0.0.1:{broker.port}"]
    return {"addresses": addresses, "username": "gateway", "password": password, **more}

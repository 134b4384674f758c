"""``--auth``: the access service of a demo, asked by its MQTT broker, with a secret for each device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import GatewayError
from gateway.devices.physics import build_fleet
from gateway.local.demo.background import in_thread
from gateway.local.demo.options import FILTERS, INSTANCE, DemoOptions, commands_toml
from gateway.local.demo.show.scrape import get, read_samples
from gateway.local.demo.show.state import DemoState, Step, StepState
from gateway.local.embedded.access_process import AccessProcess
from gateway.local.runtime.process import last_lines

if TYPE_CHECKING:
    from gateway.local.demo.show.view import View

_KEY = "auth"


@dataclass(frozen=True, slots=True)
class AccessCounts:
    """What the service answered."""

    logins_allowed: int = 0
    logins_denied: int = 0
    topics_allowed: int = 0
    topics_denied: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """The line of the account that is about access."""
        return (
            f"Access: {self.logins_allowed:,} logins allowed and {self.logins_denied:,} denied, {self.topics_allowed:,}"
            f" topics allowed and {self.topics_denied:,} denied, by gateway auth serve; each device with a secret of"
            " its own."
        )


class DemoAccess:
    """The service. One asyncio task uses it; what blocks runs in threads. ``root`` gives the folder of this run."""

    def __init__(self, state: DemoState, view: View, root: Callable[[], Path]) -> None:
        self._step = Step("access service")
        state.steps[_KEY] = self._step
        self._view = view
        self._root = root  # the folder is made at the first call
        self._process: AccessProcess | None = None

    @property
    def process(self) -> AccessProcess:
        """The service, once it is started."""
        assert self._process is not None
        return self._process

    async def start(self, options: DemoOptions) -> None:
        """Start the access service, on a database with a user for each device. Raises GatewayError."""
        begun_s = time.monotonic()
        self._view.note(self._step.now(StepState.WORKING, "making a user for each device"))
        root = self._root()
        self._process = process = AccessProcess(
            root / "auth",
            filters=FILTERS,
            instance=INSTANCE,
            more_toml=commands_toml(),
            remove=[] if options.keep else [root],
        )
        names = [model.device for model in build_fleet(options.devices, options.seed)]

        def work() -> None:
            process.prepare(names)
            process.start()

        await in_thread(work)
        ready = (
            f"{len(names)} devices with secrets of their own, asked at 127.0.0.1:{process.service.port},"
            f" up after {time.monotonic() - begun_s:.1f} s"
        )
        self._view.note(self._step.now(StepState.READY, ready))

    def check(self) -> None:
        """Raises GatewayError when the access service has ended by itself."""
        if self._process is None or self._step.state is not StepState.READY:
            return
        status = self._process.returncode
        if status is not None:
            self._step.state = StepState.FAILED
            raise GatewayError(
                f"The access service ended with status {status}. The end of its log:\n"
                f"{last_lines(self._process.log.read_bytes())}"
            )

    async def counts(self) -> AccessCounts:
        """The access service's answers so far, from its metrics."""
        page = await get(self.process.operator_port, "/metrics")
        if page is None:
            raise GatewayError("The access service does not tell what it answered: its operator port is silent.")
        found = {
            (sample.labels["endpoint"], sample.labels["result"]): int(sample.value)
            for sample in read_samples(page).get("gateway_auth_requests_total", ())
        }
        asked = [found.get((endpoint, result), 0) for endpoint in ("authn", "authz") for result in ("allow", "deny")]
        return AccessCounts(*asked)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await in_thread(process.stop)
            self._view.note(self._step.now(StepState.STOPPED))

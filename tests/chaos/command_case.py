"""What failure tests of commands share: a gateway that serves them, load, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.chaos.commands import Device, Site, check_devices, check_histories, summary
from tests.chaos.harness import FULL, Beside, Gateway
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.fixtures import MakeGateway

DEVICES = [f"d{number:02}" for number in range(10)]
ROUNDS = 15 if FULL else 2
RATE = 100


def in_ms(after_ms: int) -> str:
    """The header ``expires-at`` of so long after now."""
    return str(int(time.time() * 1000) + after_ms)


class Load(Beside):
    """Commands to all devices in turn, at a rate, while its ``with`` block runs. They live for ``expiry_s``, and ask
    for an ``answer``."""

    def __init__(
        self, site: Site, *, rate: int = RATE, devices: Iterable[str] = DEVICES, expiry_s: int = 300,
        answer: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self._site, self._rate, self._devices = site, rate, list(devices)
        self._expiry_s, self._answer = expiry_s, answer
        self.sent: dict[str, list[str]] = {name: [] for name in self._devices}
        self.count = 0

    def __exit__(self, *_error: object) -> None:
        super().__exit__()
        self._site.flush()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.005):
            while self.count < (time.monotonic() - began) * self._rate:
                name = self._devices[self.count % len(self._devices)]
                command_id = f"{name}-{self.count}"
                self._site.send(name, id_=command_id, answer=self._answer, expires_at=in_ms(1000 * self._expiry_s))
                self.sent[name].append(command_id)
                self.count += 1


def begin(
    make: MakeGateway, site: Site, port: int, *, tables: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None, **entry: Any,
) -> Gateway:  # fmt: skip
    """A gateway that serves a site. ``tables`` are settings beside its own, ``entry`` those of its ``[[commands]]``."""
    gateway = make(
        port, site.bootstrap, site.name, **(site.tables(waiting_per_device=100_000, **entry) | (tables or {}))
    )
    gateway.environment = environment or {}
    gateway.start()
    return gateway


def flows(devices: Iterable[Device], count: int = RATE) -> None:
    """Wait until devices have so many commands more."""
    before = sum(len(device.got) for device in devices)
    wait_until(lambda: sum(len(device.got) for device in devices) > before + count, "commands flow")


def judge(site: Site, load: Load, devices: Iterable[Device], *, copies: int) -> None:
    """End the load. All are finished, and well; the devices' own records say the same."""
    load.__exit__()
    history = site.finished(load.count, 300)
    check_histories(history)
    words = summary(history)
    assert words == {"succeeded": load.count}, words
    found = check_devices(devices, load.sent)
    print(f"{load.count} commands, {found} copies")
    assert found <= copies

"""Faults of real devices, at given shares: duplicates, wrong order, wrong clocks, broken payloads.

Decides without I/O. A device's faults depend only on the seed and its name.
"""

import json
from array import array
from dataclasses import dataclass
from random import Random
from typing import Any, Final

CORRUPT: Final = -1
"""In :attr:`Mischief.numbers` the number of a payload that names no reading."""
_FAR_MS = 10 * 365 * 86_400_000  # largest error of a wrong clock: ten years in either direction
_JUNK_BYTES = 16


@dataclass(frozen=True, slots=True)
class FaultShares:
    """Shares from 0 to 1 of messages; for ``wrong_clock`` of devices."""

    duplicates: float = 0.0
    reorder: float = 0.0
    wrong_clock: float = 0.0
    corrupt: float = 0.0
    disconnects: float = 0.0


class Mischief:
    """The faults of one device. ``numbers`` has the ``seq`` of each payload, or ``CORRUPT``."""

    def __init__(self, shares: FaultShares, seed: int, device: str) -> None:
        self._shares = shares
        self._random = Random(f"{seed}/mischief/{device}")
        self._held: tuple[int, bytes] | None = None  # the payload that goes behind the next, and its number
        self.numbers = array("q")
        self.clock_offset_ms = 0
        if self._random.random() < shares.wrong_clock:
            self.clock_offset_ms = self._random.choice((-1, 1)) * self._random.randrange(60_000, _FAR_MS)
        self.duplicates = self.corrupt = self.reordered = 0

    def payloads(self, body: dict[str, Any]) -> list[bytes]:
        """The payloads for a reading with these fields: mostly one; none if it is held back behind the next; several
        after that, or for a duplicate."""
        shares, random = self._shares, self._random
        body["ts"] += self.clock_offset_ms
        number, payload = body["seq"], json.dumps(body, separators=(",", ":")).encode()
        if random.random() < shares.corrupt:
            payload = payload[: random.randrange(len(payload))] + random.randbytes(_JUNK_BYTES)
            number = CORRUPT
            self.corrupt += 1
        out = [(number, payload)]
        if random.random() < shares.duplicates:
            self.duplicates += 1
            out.append((number, payload))
        if self._held is not None:
            out.append(self._held)
            self._held = None
            self.reordered += 1
        elif len(out) == 1 and random.random() < shares.reorder:
            self._held = out.pop()
        self.numbers.extend(number for number, _ in out)
        return [payload for _, payload in out]

    def rest(self) -> list[bytes]:
        """The payloads that are still held back."""
        if self._held is None:
            return []
        number, payload = self._held
        self._held = None
        self.numbers.append(number)
        return [payload]

    def disconnects(self) -> bool:
        """Whether the device drops its connection now."""
        return self._random.random() < self._shares.disconnects

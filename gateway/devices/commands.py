"""What a simulated device does with its commands: it obeys and answers. Decides without I/O."""

import json
from collections import OrderedDict
from dataclasses import dataclass
from random import Random
from typing import Final

LATE_S: Final = 45.0
"""How late a late answer is: above the gateway's default ``answer_timeout`` of 30 s."""
_REMEMBERED: Final = 1_000  # commands whose copies are recognised
_MOST_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True)
class AnswerShares:
    """Shares from 0 to 1 of the commands that are answered with 500, that are answered late, and not at all."""

    failures: float = 0.0
    late: float = 0.0
    silent: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a command, and when it is given. ``status`` is like that of HTTP; None: there is no answer."""

    status: int | None
    payload: bytes = b""
    delay_s: float = 0.0


class Obedience:
    """The commands of one device. Its answers depend only on the seed, its name and the order of the commands.

    A JSON object with ``every`` makes the device take one reading of so many, one with ``"recalibrate": true`` ends the
    fault of its sensor. Every other command is done at once, and changes nothing. A copy of a command gets the same
    answer and changes nothing.
    """

    def __init__(self, shares: AnswerShares, seed: int, device: str) -> None:
        self._shares = shares
        self._random = Random(f"{seed}/commands/{device}")
        self._replies: OrderedDict[str, Reply] = OrderedDict()
        self.every = 1
        """One reading of so many is taken."""
        self.recalibrated = False
        """Whether a command has ended the fault of its sensor."""
        self.received = self.copies = 0

    def obey(self, command_id: str, payload: bytes) -> Reply:
        """Do a command; a copy, known by its id, gets the first reply again and is not done."""
        if (reply := self._replies.get(command_id)) is not None:
            self.copies += 1
            return reply
        self.received += 1
        reply = self._replies[command_id] = self._reply(payload)
        if len(self._replies) > _REMEMBERED:
            self._replies.popitem(last=False)
        return reply

    def _reply(self, payload: bytes) -> Reply:
        """Do a new command, unless it is to fail; its reply by the shares."""
        shares, draw = self._shares, self._random.random()
        if draw < shares.failures:
            return Reply(500, b'{"error":"simulated"}')
        try:
            self._do(payload)
        except ValueError as error:
            return Reply(400, json.dumps({"error": str(error)}).encode())
        draw -= shares.failures
        if 0 <= draw < shares.silent:
            return Reply(None)
        done = json.dumps({"every": self.every}).encode()
        if 0 <= draw - shares.silent < shares.late:
            return Reply(200, done, LATE_S)
        return Reply(200, done)

    def _do(self, payload: bytes) -> None:
        """Take one reading of ``every``, end a fault by ``recalibrate``; else do nothing. Raises ValueError."""
        try:
            asked = json.loads(payload)
        except ValueError:
            return
        if not isinstance(asked, dict):
            return
        self.recalibrated = self.recalibrated or asked.get("recalibrate") is True
        every = asked.get("every")
        if every is None:
            return
        if not isinstance(every, int) or not 1 <= every <= _MOST_EVERY:
            raise ValueError(f"every is a number from 1 to {_MOST_EVERY:,}")
        self.every = every

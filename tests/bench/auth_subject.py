"""`python -m tests.bench.auth_subject --config FILE`: `gateway auth serve` on one core, with one path more: `/echo`.

What is asked there goes the same way, connection, head, shared secret and count included, and gets an answer that is
always the same: what the server costs by itself, in the very process whose decisions are measured.
"""

import argparse
import asyncio
import os
import time
from pathlib import Path

from config.loading.load import load
from config.settings import Settings
from gateway.auth_service.process import AuthProcess
from gateway.auth_service.server import AuthServer
from gateway.base import logs
from gateway.base.lifecycle import StopRequest
from gateway.base.process import memory
from gateway.base.signals import StopSignals
from gateway.http.connection import Connection, Exchange
from gateway.http.http1 import Request

_ANSWER = b'{"result":"allow","is_superuser":false}'


class EchoServer(AuthServer):
    """The server, and ``/echo``."""

    def respond(self, connection: Connection, request: Request) -> bytes | Exchange:
        """As the server does; its own part of the work alone for ``/echo``."""
        head = request.head
        if head.target != b"/echo":
            return super().respond(connection, request)
        started_ns = time.monotonic_ns()
        if self._secret is None or not self._knows(head):
            return self._turn_away(None, 401, "secret", "the benchmark has forgotten the shared secret", head)
        return self._finish(self._authn, "allow", _ANSWER, started_ns, head.keep_alive)


async def _run(settings: Settings) -> None:
    stop = StopRequest()
    with StopSignals(stop):
        await AuthProcess(settings, EchoServer).service.run(stop)


def main() -> None:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # hashing threads inherit it
    memory.keep_heap_small()
    settings = load(arguments.config, environ={}).settings
    logs.configure(settings.log)
    asyncio.run(_run(settings))


if __name__ == "__main__":
    main()

"""Connections that a test leaves behind are that test's failure, by name.

asyncio says "unclosed transport" when the garbage collector finds one whose event loop has ended, which may be a
thousand tests later: a stranger fails then. Here every transport that is made is remembered, without keeping it alive,
and looked at when its test has been torn down. That costs a look at a short list; a collection after each test would
cost minutes.
"""

import functools
import weakref
from asyncio import selector_events
from collections.abc import Generator
from typing import Any

import pytest


class Transports:
    """Remembers the sockets that asyncio's event loops carry from now on."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        kind: Any = selector_events._SelectorTransport  # type: ignore[attr-defined]
        begin = kind.__init__

        @functools.wraps(begin)
        def remembered(transport: Any, *arguments: Any, **options: Any) -> None:
            begin(transport, *arguments, **options)
            self._made.add(transport)

        kind.__init__ = remembered

    def take_left(self) -> list[str]:
        """What is open though its event loop has ended: for each its two ends. Closes them, and forgets them.

        Those of loops that still run belong to somebody: to a fixture of the whole session, to a thread.
        """
        left = []
        for transport in list(self._made):
            if transport._sock is None:
                self._made.discard(transport)
            elif transport._loop.is_closed():
                self._made.discard(transport)
                side = "accepted by a server of the test" if transport._server is not None else "opened"
                ends = (transport.get_extra_info(name) for name in ("sockname", "peername"))
                left.append(f"{side}, {' to '.join(map(str, ends))}, {transport.get_protocol()!r}")
                transport._sock.close()
                transport._sock, transport._closing = None, True
        return left


transports = Transports()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fails a test whose event loops have ended with connections still open."""
    yield
    left = transports.take_left()
    if left:
        pytest.fail(
            f"{item.nodeid} left connections open when its event loop ended:\n" + "\n".join(left), pytrace=False
        )

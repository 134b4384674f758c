"""The guard itself: what is open when its event loop has ended is told once, and nothing else is."""

import asyncio
import contextlib
import socket

import pytest

from tests.unclosed import transports


def leave(*, closed: bool) -> asyncio.AbstractEventLoop:
    """An event loop that has ended, with a connection that was closed or not."""
    ours, theirs = socket.socketpair()
    loop = asyncio.new_event_loop()

    async def connect() -> None:
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        if closed:
            transport.close()
            await asyncio.sleep(0)

    with contextlib.closing(theirs):
        loop.run_until_complete(connect())
        loop.close()
    return loop


@pytest.mark.parametrize("closed", [False, True])
def test_a_connection_left_open_is_told_once(closed: bool) -> None:
    leave(closed=closed)
    assert len(transports.take_left()) == (not closed)
    assert not transports.take_left()


async def test_a_loop_that_still_runs_may_have_connections() -> None:
    ours, theirs = socket.socketpair()
    with contextlib.closing(theirs):
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        assert not transports.take_left()
        transport.close()

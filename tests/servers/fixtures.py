"""Fixtures of real databases and a directory: one of each for the session, started when a test first asks for it."""

from __future__ import annotations

__all__ = ["postgresql_server"]

from typing import TYPE_CHECKING

import pytest

from tests.servers.postgresql import Postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Postgresql]:
    """Tests that kill or freeze it call ``heal`` in the end."""
    server = Postgresql()
    try:
        server.start()
        server.create()
        yield server
    finally:
        server.stop()

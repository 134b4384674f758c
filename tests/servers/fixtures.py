"""Fixtures of real databases and a directory: one of each for the session, started when a test first asks for it.

Tests that kill or freeze one call ``heal`` in the end.
"""

from __future__ import annotations

__all__ = ["ldap_server", "mysql_server", "postgresql_server", "redis_server"]

import contextlib
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.servers.mariadb import Mariadb
from tests.servers.postgresql import Postgresql
from tests.servers.redis import Redis
from tests.servers.slapd import Slapd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.loopback import LoopbackServer

S = TypeVar("S", bound="LoopbackServer")


@contextlib.contextmanager
def _started(kind: type[S]) -> Iterator[S]:
    server = kind()
    try:
        server.start()
        server.create()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Postgresql]:
    with _started(Postgresql) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[Mariadb]:
    with _started(Mariadb) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    with _started(Redis) as server:
        yield server


@pytest.fixture(scope="session")
def ldap_server() -> Iterator[Slapd]:
    with _started(Slapd) as server:
        yield server

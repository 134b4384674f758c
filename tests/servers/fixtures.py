"""Fixtures of other servers: databases and a directory, one of each for the session, and an identity provider.

Tests that kill or freeze one call ``heal`` in the end.
"""

from collections.abc import Iterator

from tests.servers.loopback import LoopbackServer

__all__ = ["clock", "ldap_server", "mysql_server", "postgresql_server", "provider", "redis_server"]

import contextlib
from typing import TypeVar

import pytest

from tests.servers.identity_provider import Clock, IdentityProvider
from tests.servers.mariadb import Mariadb
from tests.servers.postgresql import Postgresql
from tests.servers.redis import Redis
from tests.servers.slapd import Slapd

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


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """An identity provider of the test's own."""
    with IdentityProvider() as started:
        yield started


@pytest.fixture
def clock() -> Clock:
    return Clock()

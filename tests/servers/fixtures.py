"""Fixtures of other servers: databases and a directory, one of each for the session, and an identity provider.

Tests that kill or freeze one call ``heal`` in the end.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.authority import Authority
from tests.servers.identity_provider import Clock, IdentityProvider
from tests.servers.loopback import LoopbackServer
from tests.servers.mariadb import Mariadb
from tests.servers.postgresql import Postgresql
from tests.servers.redis import Redis
from tests.servers.slapd import Slapd

__all__ = ["authority", "clock", "ldap_server", "mysql_server", "postgresql_server", "provider", "redis_server"]


def _of_the_session(kind: type[LoopbackServer]) -> Any:
    @pytest.fixture(scope="session")
    def started() -> Iterator[LoopbackServer]:
        server = kind()
        try:
            server.start()
            server.create()
            yield server
        finally:
            server.stop()

    return started


postgresql_server = _of_the_session(Postgresql)
mysql_server = _of_the_session(Mariadb)
redis_server = _of_the_session(Redis)
ldap_server = _of_the_session(Slapd)


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """An identity provider of the test's own."""
    with IdentityProvider() as started:
        yield started


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def clock() -> Clock:
    return Clock()

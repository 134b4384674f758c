"""A backend beside its real server, in one shape for all of them: what the common suite runs against."""

from collections.abc import AsyncIterator

from auth.backends.remote import RemoteAuthenticator
from auth.model import Verdict
from tests.servers.loopback import LoopbackServer
from tests.servers.mariadb import Mariadb
from tests.servers.postgresql import Postgresql
from tests.servers.redis import Redis
from tests.servers.slapd import Slapd

__all__ = ["site"]  # the fixture, for a module that takes everything

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import pytest

from auth.backends.ldap import LdapAuthenticator
from auth.backends.ldap_filter import escape_name
from auth.backends.mysql import MysqlAuthenticator
from auth.backends.postgresql import PostgresqlAuthenticator
from auth.backends.redis import RedisAuthenticator
from auth.hashing import Hasher
from auth.model import LoginRequest
from config.tables.auth import (
    AuthHashingSettings,
    AuthLdapSettings,
    AuthMysqlSettings,
    AuthPostgresqlSettings,
    AuthRedisSettings,
)
from config.tables.tls import TlsSettings
from tests.servers import mariadb, postgresql, redis, slapd

TIMEOUT_S = 60.0  # more than there is to set: a busy machine may take long with an answer
SHORT = timedelta(seconds=1)  # for a server that is frozen: short enough to wait for
GOOD = "correct horse"
PLAIN = AuthHashingSettings(memory=8 << 10, passes=1)


class Site(ABC):
    """``server`` and the table, keys or tree in it that belong to one test."""

    name: str
    by_bind = False  # the server checks the password itself; it has no hashes, and groups at most

    def __init__(self, server: LoopbackServer, unique: str) -> None:
        self.server = server
        self.unique = unique
        self.hasher = Hasher(PLAIN)

    @abstractmethod
    def put(self, username: str, **record: Any) -> None:
        """Store a user: ``password_hash``, ``salt``, ``is_superuser``, ``tenant``, ``groups``, ``attributes``."""

    @abstractmethod
    def remove(self, username: str) -> None:
        """Take out a user, if there is one."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The table of settings for this site."""

    @abstractmethod
    def make(self, settings: dict[str, Any]) -> RemoteAuthenticator[Any, Any]: ...

    def authenticator(self, **changes: Any) -> RemoteAuthenticator[Any, Any]:
        """With settings for this site, and these others; not started."""
        made = self.make({**self.settings(), **changes})
        if "timeout" not in changes:
            made._timeout_s = TIMEOUT_S  # type: ignore[misc]
        return made

    def tls(self, **changes: Any) -> TlsSettings:
        return TlsSettings(**{"ca_file": self.server.authority.ca_file, **changes})

    def own_password(self, secret: str) -> dict[str, Any]:
        """Settings with this for the gateway's own password; none where it has none."""
        return {"password": secret}

    def over_tls(self, **changes: Any) -> dict[str, Any]:
        """Settings with TLS."""
        return {"tls": self.tls(**changes)}

    @contextlib.asynccontextmanager
    async def running(self, **changes: Any) -> AsyncIterator[RemoteAuthenticator[Any, Any]]:
        authenticator = self.authenticator(**changes)
        try:
            await authenticator.start()
            yield authenticator
        finally:
            await authenticator.close()

    async def put_password(self, username: str, password: str = GOOD, **record: Any) -> None:
        self.put(username, password_hash=await self.hasher.hash(password), **record)

    def close(self) -> None:
        self.hasher.close()


class PostgresqlSite(Site):
    name = "postgresql"
    server: Postgresql

    def __init__(self, server: Postgresql, unique: str) -> None:
        super().__init__(server, unique)
        self.table = unique.replace("-", "_").lower()[-60:].lstrip("_0123456789")
        server.sql(
            f'CREATE TABLE "{self.table}" (username text PRIMARY KEY, password_hash text, salt text, '
            "is_superuser boolean, tenant text, groups text[], attributes jsonb);"
            f'GRANT SELECT ON "{self.table}" TO gateway, tlsonly'
        )

    def put(self, username: str, **record: Any) -> None:
        columns = {"username": username, **record}
        values = ", ".join(_literal(value) for value in columns.values())
        self.server.sql(f'INSERT INTO "{self.table}" ({", ".join(columns)}) VALUES ({values})')

    def remove(self, username: str) -> None:
        self.server.sql(f'DELETE FROM "{self.table}" WHERE username = {_literal(username)}')

    def settings(self) -> dict[str, Any]:
        return {
            "port": self.server.port,
            "password": postgresql.PASSWORD,
            "query": f'SELECT * FROM "{self.table}" WHERE username = ${{username}}',
        }

    def make(self, settings: dict[str, Any]) -> PostgresqlAuthenticator:
        return PostgresqlAuthenticator(AuthPostgresqlSettings(**settings), self.hasher)


class MysqlSite(Site):
    name = "mysql"
    server: Mariadb

    def __init__(self, server: Mariadb, unique: str) -> None:
        super().__init__(server, unique)
        self.table = unique.replace("-", "_").lower()[-60:]
        server.sql(
            f"CREATE TABLE mqtt.`{self.table}` (username varchar(255) COLLATE utf8mb4_general_ci, "
            "password_hash varchar(255), salt varchar(100), is_superuser bit(1), tenant varchar(300), "
            "`groups` text, attributes json, KEY (username))"
        )
        for user in ("gateway", "tlsonly"):
            server.sql(f"GRANT SELECT ON mqtt.`{self.table}` TO {user}@localhost")
            server.sql(f"GRANT SELECT ON mqtt.`{self.table}` TO {user}@'127.0.0.1'")

    def put(self, username: str, **record: Any) -> None:
        columns = {"username": username, **record}
        names = ", ".join(f"`{name}`" for name in columns)
        values = tuple(_flat(value) for value in columns.values())
        self.server.sql(f"INSERT INTO mqtt.`{self.table}` ({names}) VALUES ({', '.join(['%s'] * len(values))})", values)

    def remove(self, username: str) -> None:
        self.server.sql(f"DELETE FROM mqtt.`{self.table}` WHERE username = %s", (username,))

    def settings(self) -> dict[str, Any]:
        return {
            "port": self.server.port,
            "password": mariadb.PASSWORD,
            "query": f"SELECT * FROM `{self.table}` WHERE username = ${{username}} "
            "AND CAST(username AS BINARY) = CAST(${username} AS BINARY)",
        }

    def make(self, settings: dict[str, Any]) -> MysqlAuthenticator:
        return MysqlAuthenticator(AuthMysqlSettings(**settings), self.hasher)


class RedisSite(Site):
    name = "redis"
    server: Redis

    def put(self, username: str, **record: Any) -> None:
        fields = {name: _flat(value) for name, value in record.items() if value is not None}
        with self.server.admin() as admin:
            admin.hset(f"mqtt_user:{self.unique}:{username}", mapping={"created": "today", **fields})

    def remove(self, username: str) -> None:
        with self.server.admin() as admin:
            admin.delete(f"mqtt_user:{self.unique}:{username}")

    def settings(self) -> dict[str, Any]:
        return {"port": self.server.port, "password": redis.PASSWORD, "key": f"mqtt_user:{self.unique}:${{username}}"}

    def make(self, settings: dict[str, Any]) -> RedisAuthenticator:
        return RedisAuthenticator(AuthRedisSettings(**settings), self.hasher)

    def over_tls(self, **changes: Any) -> dict[str, Any]:
        return {"port": self.server.tls_port, **super().over_tls(**changes)}


class LdapSite(Site):
    """By search, or by a name made of the user's."""

    name = "ldap"
    server: Slapd
    by_bind = True

    def __init__(self, server: Slapd, unique: str) -> None:
        super().__init__(server, unique)
        self.base = f"ou={unique},{slapd.PEOPLE}"
        server.add(self.base, {"objectClass": ["organizationalUnit"], "ou": [unique]})

    def put(self, username: str, **record: Any) -> None:
        raise NotImplementedError("a directory has no hashes of ours")

    async def put_password(self, username: str, password: str | None = GOOD, **record: Any) -> None:
        attributes = {"objectClass": ["inetOrgPerson"], "uid": [username], "cn": ["x"], "sn": ["x"]}
        if password is not None:
            attributes["userPassword"] = [password]
        if "groups" in record:
            attributes["departmentNumber"] = record["groups"]
        await asyncio.to_thread(self.server.add, f"uid={escape_name(username)},{self.base}", attributes)

    def remove(self, username: str) -> None:
        self.server.remove(f"uid={escape_name(username)},{self.base}")

    def own_password(self, secret: str) -> dict[str, Any]:
        return {"search_password": secret}

    def over_tls(self, **changes: Any) -> dict[str, Any]:
        return {"address": f"ldaps://127.0.0.1:{self.server.tls_port}", **super().over_tls(**changes)}


class LdapSearchSite(LdapSite):
    def settings(self) -> dict[str, Any]:
        return {
            "address": f"ldap://127.0.0.1:{self.server.port}",
            "search_base": self.base,
            "search_filter": "(&(objectClass=inetOrgPerson)(uid=${username}))",
            "search_username": slapd.SEARCHER,
            "search_password": slapd.PASSWORD,
        }

    def make(self, settings: dict[str, Any]) -> LdapAuthenticator:
        return LdapAuthenticator(AuthLdapSettings(**settings))


class LdapNameSite(LdapSite):
    def settings(self) -> dict[str, Any]:
        return {"address": f"ldap://127.0.0.1:{self.server.port}", "bind_dn": f"uid=${{username}},{self.base}"}

    def make(self, settings: dict[str, Any]) -> LdapAuthenticator:
        return LdapAuthenticator(AuthLdapSettings(**settings))

    def own_password(self, secret: str) -> dict[str, Any]:
        return {}


def _flat(value: Any) -> Any:
    """As a database without arrays has it."""
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value) if isinstance(value, dict) else value


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(_literal, value))}]::text[]"
    text = json.dumps(value) if isinstance(value, dict) else value
    return "'" + text.replace("'", "''") + "'"


async def login(
    authenticator: RemoteAuthenticator[Any, Any], username: str, password: str = GOOD, **request: str
) -> Verdict:
    return await authenticator.authenticate(LoginRequest(username=username, password=password, **request))


DATABASES: dict[str, type[Site]] = {"postgresql": PostgresqlSite, "mysql": MysqlSite, "redis": RedisSite}
SITES: dict[str, type[Site]] = {**DATABASES, "ldap-search": LdapSearchSite, "ldap-name": LdapNameSite}


@pytest.fixture(params=SITES)
async def site(request: pytest.FixtureRequest, unique: str) -> AsyncIterator[Site]:
    """Each kind in turn, over its server, which is well again afterwards."""
    made = SITES[request.param](request.getfixturevalue(f"{request.param.split('-')[0]}_server"), unique)
    try:
        yield made
    finally:
        made.server.heal()
        made.close()

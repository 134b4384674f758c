"""EMQX, a real `gateway auth serve`, and users in a server behind it that is killed and frozen under them."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from gateway.local.embedded.access_process import AccessProcess
from tests.brokers.emqx_auth import Connection, Refused
from tests.integration.test_auth_emqx import emqx_of, metrics
from tests.servers.redis import PASSWORD, Redis
from tests.waiting import until

NAMES = [f"r{number}" for number in range(6)]
REFUSED = Refused("not_authorized")


@pytest.fixture
def service(tmp_path: Path, redis_server: Redis) -> Iterator[AccessProcess]:
    redis_server.heal()
    client = redis_server.admin()
    for name in NAMES:
        stored = bcrypt.hashpw(f"secret of {name}".encode(), bcrypt.gensalt(4)).decode()
        client.hset(f"mqtt_user:{name}", mapping={"password_hash": stored, "is_superuser": "0"})
    client.close()
    more = (
        f'[auth.redis]\nport = {redis_server.port}\nusername = "reader"\npassword = "{PASSWORD}"\n'
        'algorithm = "bcrypt"\ntimeout = "500ms"\n[auth.limits]\nnegative_ttl = 0\n'
    )
    process = AccessProcess(tmp_path / "auth", auth_toml='chain = ["database", "redis"]\n', more=more)
    with process:
        yield process
    redis_server.heal()


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_users_of_a_server_that_is_gone(service: AccessProcess, redis_server: Redis, fault: str) -> None:
    async with emqx_of(service) as emqx:

        async def connect(name: str) -> Connection | Refused:
            return await emqx.connect(name, name, f"secret of {name}")

        made = await asyncio.gather(*map(connect, NAMES[:3]))
        assert all(isinstance(one, Connection) for one in made)
        assert await emqx.connect("r0", "r0", "wrong") == REFUSED
        getattr(redis_server, fault)()
        began_s = time.monotonic()
        answers = await asyncio.gather(*map(connect, NAMES))
        took_s = time.monotonic() - began_s
        # Who was there lately comes back from the cache; nobody else is let in, and nobody waits for EMQX's time-out.
        assert [isinstance(one, Connection) for one in answers] == [True] * 3 + [False] * 3
        assert took_s < 4.5, f"answered after {took_s:.1f} s, and EMQX waits 5"
        assert 'gateway_auth_backend_up{backend="redis"} 0.0' in metrics(service)
        ours = await emqx.connect("gateway", "g", service.gateway_password_file.read_text())
        assert isinstance(ours, Connection), "the users of the database do not need that server"
        redis_server.heal()

        async def all_in() -> bool:
            return all([isinstance(await connect(name), Connection) for name in NAMES])

        await until(all_in, "all let in again")
        assert emqx.asked[1] == 0

"""``gateway auth serve`` with users on another server, from outside."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.auth_process import auth_serve
from tests.integration.auth_sites import GOOD, PostgresqlSite, Site
from tests.servers.postgresql import PASSWORD, Postgresql
from tests.toml_text import to_toml
from tests.waiting import DEADLINE_S


@pytest.fixture
def site(postgresql_server: Postgresql, unique: str) -> Iterator[Site]:
    """One kind for all: what differs between them is the authenticators' own."""
    made = PostgresqlSite(postgresql_server, unique)
    yield made
    made.server.heal()
    made.close()


def tables(site: Site, **changes: Any) -> str:
    settings = {**site.settings(), "timeout": "3s", **changes}
    return to_toml({"chain": ["database", site.name], f"auth.{site.name}": settings})


async def test_a_server_of_users_alive_dead_and_back(site: Site, tmp_path: Path) -> None:
    await site.put_password("lamp")
    with auth_serve(tmp_path, auth=tables(site)) as served:
        served.add_user("alice", "of the database")
        assert served.wait_for("auth_ready")["chain"] == ["database", site.name]
        assert served.login("lamp", GOOD)["result"] == "allow"
        assert served.login("lamp", "wrong") == {"result": "deny"}
        assert served.get("/readyz").status == 200
        state = re.compile(rf'gateway_auth_backend_breaker_state{{backend="{site.name}"}} (\d)')

        def breaker() -> int:
            found = state.search(served.get("/metrics").body)
            assert found is not None
            return int(found[1])

        assert breaker() == 0
        site.server.kill()
        served.until(
            lambda: served.login(f"plug-{breaker()}", GOOD) == {"result": "deny"} and breaker() > 0, "it is asked"
        )
        assert served.login("lamp", GOOD)["result"] == "allow", "the cache knows it"
        assert served.login("alice", "of the database")["result"] == "allow", "she does not need that server"
        answer = served.get("/readyz")
        assert answer.status == 503
        assert any(f"backend {site.name}" in reason for reason in answer.data["reasons"]), answer.data
        assert any("refuses connections" in reason for reason in answer.data["reasons"]), answer.data
        assert served.wait_for("auth_backend_down")["backend"] == site.name
        page = served.get("/metrics").body
        assert f'gateway_auth_backend_up{{backend="{site.name}"}} 0.0' in page
        failures = re.search(rf'failures_total{{backend="{site.name}",cause="unreachable"}} (\d+)', page)
        assert failures is not None
        assert int(failures[1]) >= 3, "probes count as well"
        assert f'gateway_auth_backend_failures_total{{backend="{site.name}",cause="tls"}} 0.0' in page
        site.server.start()
        served.until(lambda: served.get("/readyz").status == 200, "it is back and /readyz does not say so")
        assert breaker() == 0
        assert served.wait_for("auth_backend_up")["backend"] == site.name
        served.until(lambda: served.login("lamp", GOOD)["result"] == "allow", "it is back and does not let in")
        assert PASSWORD not in served.log.read_text()
        assert GOOD not in served.log.read_text()


async def test_a_frozen_server_of_users_holds_up_nobody(site: Site, tmp_path: Path) -> None:
    """EMQX takes a time-out for "ask the next": so there is an answer to each login, in time."""
    await site.put_password("lamp")
    with auth_serve(tmp_path, auth=tables(site, timeout="500ms")) as served:
        served.until(lambda: served.login("lamp", GOOD)["result"] == "allow", "it does not let in")
        site.server.freeze()

        def timed(number: int) -> tuple[float, dict[str, Any]]:
            began = time.monotonic()
            answer = served.login(f"plug-{number}", GOOD)
            return time.monotonic() - began, answer

        answers = await asyncio.gather(*(asyncio.to_thread(timed, number) for number in range(40)))
        assert all(answer == {"result": "deny"} for _, answer in answers), answers
        assert max(length for length, _ in answers) < 4.5, "EMQX waits 5 s"
        assert served.login("lamp", GOOD)["result"] == "allow", "the cache knows it"
        served.until(lambda: served.get("/readyz").status == 503, "/readyz does not say so")
        site.server.thaw()
        served.until(lambda: served.get("/readyz").status == 200, "it is back and /readyz does not say so")
        await site.put_password("plug-1")
        served.until(lambda: served.login("plug-1", GOOD)["result"] == "allow", "it is back and does not let in")


async def test_settings_that_the_server_refuses_end_the_start(site: Site, tmp_path: Path) -> None:
    wrong = "SELECT password_hash FROM no_such_table WHERE u = ${username}"
    with auth_serve(tmp_path, auth=tables(site, query=wrong)) as served:
        assert served.process.wait(DEADLINE_S) == 78, served.log.read_text()
        said = served.log.read_text()
        assert f"auth.{site.name}." in said
        assert "Traceback" not in said
        assert PASSWORD not in said

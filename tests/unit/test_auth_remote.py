"""What all backends on other servers have in common, with a server that does as it is told, in a time of our own."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from auth.backends.breaker import BreakerState
from auth.backends.remote import IDLE_MAX_NS, RemoteAuthenticator
from auth.errors import BackendDownError, OverloadedError
from auth.model import Allow, Ignore, LoginRequest, Verdict
from config.errors import ConfigError
from tests.unit.manual_time import at_end, in_manual_time

TIMEOUT_S = 1.0


class LostError(Exception):
    """The connection broke."""


class SettingsError(Exception):
    """The server does not like the query."""


class OtherError(Exception):
    """The server does not like this one question."""


@dataclass(eq=False)
class Link:
    number: int
    open: bool = True
    asking: str = ""
    asked: list[str] = field(default_factory=list)


class Fake(RemoteAuthenticator[Link, str]):
    """``answer`` and ``connect`` are what its server does; they may wait, and raise."""

    def __init__(
        self,
        pool_size: int = 2,
        answer: Callable[[Link, str], Awaitable[None]] | None = None,
        connect: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(
            "fake", "The fake server", pool_size=pool_size, timeout=timedelta(seconds=TIMEOUT_S),
            clock=lambda: round(asyncio.get_running_loop().time() * 1e9),
        )  # fmt: skip
        self.links: list[Link] = []
        self.probes = 0
        self.answer = answer or self.at_once
        self.connect = connect or self.nothing
        at_end(self.close)

    async def at_once(self, link: Link, name: str) -> None: ...

    async def nothing(self) -> None: ...

    async def _open(self) -> Link:
        await self.connect()
        link = Link(len(self.links))
        self.links.append(link)
        return link

    async def _exchange(self, link: Link, name: str) -> str:
        assert link.open, f"asked over connection {link.number}, which was ended"
        assert not link.asking, f"{name} is asked while {link.asking} is, over one connection"
        link.asking = name
        link.asked.append(name)
        await self.answer(link, name)
        link.asking = ""
        return name

    async def _ask(self, connection: Link, request: LoginRequest) -> str:
        return await self._exchange(connection, request.username)

    async def _probe(self, connection: Link) -> None:
        self.probes += 1
        await self._exchange(connection, "probe")

    async def _judge(self, request: LoginRequest, answer: str) -> Verdict:
        assert answer == request.username, "somebody else's answer"
        return Allow(self.name, answer)

    def _usable(self, connection: Link) -> bool:
        return connection.open

    def _abort(self, connection: Link) -> None:
        connection.open = False

    def _concerns(self, request: LoginRequest) -> bool:
        return bool(request.username)

    def _explained(self, error: BaseException) -> BackendDownError:
        match error:
            case LostError():
                return self._down("is lost", "lost")
            case SettingsError():
                return self._down("does not like the query", "settings")
            case OtherError():
                return self._down("does not like the question", "other")
            case ConnectionRefusedError():
                return self._down("refuses", "unreachable")
            case _:
                return self._down(f"failed with {type(error).__name__}", "other")

    @property
    def standing(self) -> list[Link]:
        return [link for link in self.links if link.open]


async def never(*_: Any) -> None:
    await asyncio.sleep(3600)


def now() -> float:
    return asyncio.get_running_loop().time()


async def login(fake: Fake, name: str = "lamp") -> Verdict:
    return await fake.authenticate(LoginRequest(username=name))


async def cause_of(fake: Fake, name: str = "lamp") -> str:
    with pytest.raises(BackendDownError) as caught:
        await login(fake, name)
    return caught.value.cause


def refuse(error: Exception) -> Callable[..., Awaitable[None]]:
    async def raising(*_: Any) -> None:
        raise error

    return raising


def after(seconds: float) -> Callable[..., Awaitable[None]]:
    async def waiting(*_: Any) -> None:
        await asyncio.sleep(seconds)

    return waiting


async def test_connections_are_kept_and_the_latest_is_used_first() -> None:
    fake = Fake(pool_size=3)
    await fake.start()
    for _ in range(5):
        await login(fake)
    assert len(fake.links) == 1
    await asyncio.gather(*(login(fake) for _ in range(3)))
    await asyncio.gather(*(login(fake) for _ in range(3)))
    assert len(fake.links) <= 3
    await fake.close()
    assert not fake.standing


async def test_who_waits_too_long_for_a_connection_is_told_so_and_the_server_is_not_blamed() -> None:
    fake = Fake(pool_size=1, answer=after(0.4))
    began = now()
    outcomes = await asyncio.gather(*(login(fake, f"lamp-{number}") for number in range(5)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [Allow, Allow] + [OverloadedError] * 3
    assert now() - began == pytest.approx(0.8), "two answers, and nobody waited longer than half of the time-out"
    assert "auth.fake.pool_size" in str(outcomes[-1])
    assert fake.failures["overload"] == 3
    assert fake.breaker.state is BreakerState.CLOSED


async def test_a_time_out_ends_the_connection_and_not_the_next_question() -> None:
    fake = Fake(pool_size=1, answer=never)
    began = now()
    assert await cause_of(fake) == "timeout"
    assert now() - began == pytest.approx(TIMEOUT_S)
    assert not fake.standing
    assert not fake.up
    assert "auth.fake.timeout" in fake.problem
    fake.answer = fake.at_once
    assert isinstance(await login(fake), Allow)
    assert fake.up
    assert fake.problem == ""


async def test_a_time_out_counts_the_connecting_too() -> None:
    fake = Fake(answer=after(TIMEOUT_S * 0.7), connect=after(TIMEOUT_S * 0.7))
    began = now()
    assert await cause_of(fake) == "timeout"
    assert now() - began == pytest.approx(TIMEOUT_S)


async def test_a_time_out_of_the_librarys_own_is_not_taken_for_ours() -> None:
    fake = Fake(answer=refuse(TimeoutError("of the library")))
    assert await cause_of(fake) == "other"


@pytest.mark.parametrize(("share", "counts"), [(0.3, 0), (0.6, 1)])
async def test_a_caller_that_gives_up_ends_the_connection(share: float, counts: int) -> None:
    """And the server is blamed when it had used up half of its time."""
    fake = Fake(pool_size=1, answer=never)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S * share):
            await login(fake)
    assert not fake.standing
    assert fake.failures["timeout"] == counts
    assert fake.breaker.failures == counts
    fake.answer = fake.at_once
    assert isinstance(await login(fake, "plug"), Allow), "its place in the pool is lost"


async def test_a_caller_that_gives_up_while_it_waits_leaves_the_others_their_place() -> None:
    fake = Fake(pool_size=1, answer=after(0.2))
    first, second, third = (asyncio.create_task(login(fake, name)) for name in "abc")
    await asyncio.sleep(0.1)
    second.cancel()
    assert isinstance(await first, Allow)
    assert isinstance(await third, Allow)
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_a_connection_that_broke_while_idle_costs_no_login() -> None:
    fake = Fake(pool_size=2, answer=after(0.1))
    await asyncio.gather(login(fake), login(fake))
    assert len(fake.standing) == 2

    async def broken(link: Link, name: str) -> None:
        if link.number < 2:
            raise LostError

    fake.answer = broken
    assert isinstance(await login(fake), Allow)
    assert [link.number for link in fake.standing] == [2], "the other idle one is as broken"
    assert not fake.failures
    assert fake.up


async def test_a_new_connection_that_breaks_is_a_failure() -> None:
    fake = Fake()
    await login(fake)
    fake.answer = refuse(LostError())
    assert await cause_of(fake) == "lost"
    assert len(fake.links) == 2, "asked a third time"


async def test_an_idle_connection_is_not_trusted_for_ever() -> None:
    fake = Fake()
    await login(fake)
    await asyncio.sleep(IDLE_MAX_NS / 1e9 - 1)
    await login(fake)
    assert len(fake.links) == 1
    await asyncio.sleep(IDLE_MAX_NS / 1e9 + 1)
    await login(fake)
    assert [link.open for link in fake.links] == [False, True]


async def test_failures_in_a_row_open_the_breaker_and_then_nobody_is_asked() -> None:
    fake = Fake(connect=refuse(ConnectionRefusedError()))
    assert [await cause_of(fake) for _ in range(4)] == ["unreachable"] * 3 + ["open"]
    assert fake.breaker.state is BreakerState.OPEN
    began = now()
    with pytest.raises(BackendDownError, match=r"is not asked until a probe succeeds\. The fake server refuses\."):
        await login(fake)
    assert now() == began


async def test_who_waits_when_the_breaker_opens_is_refused_without_asking() -> None:
    fake = Fake(pool_size=3, answer=never)
    early = [asyncio.create_task(login(fake, "early")) for _ in range(3)]
    await asyncio.sleep(TIMEOUT_S * 0.7)
    late = [asyncio.create_task(login(fake, "late")) for _ in range(50)]
    began = now()
    outcomes = await asyncio.gather(*early, *late, return_exceptions=True)
    assert [one.cause for one in outcomes[:3]] == ["timeout"] * 3  # type: ignore[union-attr]
    assert {one.cause for one in outcomes[3:]} == {"open"}  # type: ignore[union-attr]
    assert now() - began == pytest.approx(TIMEOUT_S * 0.3)
    assert all(link.asked == ["early"] for link in fake.links)


async def test_what_one_name_brings_about_does_not_shut_out_the_others() -> None:
    async def picky(link: Link, name: str) -> None:
        if name == "hostile":
            raise OtherError

    fake = Fake(answer=picky)
    for _ in range(20):
        assert await cause_of(fake, "hostile") == "other"
    assert fake.breaker.state is BreakerState.CLOSED
    assert isinstance(await login(fake), Allow)


async def test_one_failure_and_no_more_logins_heals_too() -> None:
    """Else /readyz would keep away the login that would find out."""
    fake = Fake(answer=never)
    assert await cause_of(fake) == "timeout"
    assert not fake.up
    assert fake.breaker.state is BreakerState.CLOSED
    fake.answer = fake.at_once
    await asyncio.sleep(1)
    assert fake.up
    assert fake.probes == 1
    await asyncio.sleep(60)
    assert fake.probes == 1, "it probes a server that is well"


async def test_one_failure_and_no_more_logins_opens_the_breaker_when_probes_fail_too() -> None:
    fake = Fake(connect=refuse(ConnectionRefusedError()))
    assert await cause_of(fake) == "unreachable"
    await asyncio.sleep(2)
    assert fake.breaker.state is BreakerState.OPEN


async def test_an_odd_answer_to_one_question_is_followed_by_a_probe() -> None:
    fake = Fake(answer=refuse(OtherError()))
    assert await cause_of(fake) == "other"
    assert fake.up, "one user's trouble took the service out of /readyz"
    await asyncio.sleep(3)
    assert not fake.up, "the server does not like any question"
    assert fake.breaker.state is not BreakerState.CLOSED
    fake.answer = fake.at_once
    await asyncio.sleep(6)
    assert fake.up
    assert isinstance(await login(fake), Allow)


async def test_what_comes_late_says_nothing_about_now() -> None:
    """Asked before the breaker opened, failing after it has closed again."""

    async def by_name(link: Link, name: str) -> None:
        if name == "slow":
            await asyncio.sleep(0.9)
            raise LostError
        if name == "lost":
            raise LostError

    fake = Fake(pool_size=5, answer=by_name)
    late = asyncio.create_task(login(fake, "slow"))
    await asyncio.sleep(0.05)
    assert [await cause_of(fake, "lost") for _ in range(3)] == ["lost"] * 3
    assert fake.breaker.state is BreakerState.OPEN
    await asyncio.sleep(0.5)
    assert fake.up
    with pytest.raises(BackendDownError):
        await late
    assert fake.up
    assert fake.breaker.failures == 0


async def test_probes_alone_find_out_when_it_is_well() -> None:
    fake = Fake(connect=refuse(ConnectionRefusedError()))
    for _ in range(3):
        await cause_of(fake)
    began = now()
    while fake.probes == 0 and now() - began < 60:
        assert await cause_of(fake) == "open", "a login was the probe"
        await asyncio.sleep(0.1)
        if now() - began > 20:
            fake.connect = fake.nothing
    assert fake.probes == 1
    assert fake.breaker.state is BreakerState.CLOSED
    assert fake.up
    assert now() - began < 20 + 6, "probes are further apart than five seconds"
    assert fake.failures["unreachable"] - 3 >= 4, "fewer probes than that in twenty seconds"
    assert isinstance(await login(fake), Allow)
    assert len(fake.links) == 1, "the probe's connection was thrown away"


async def test_a_probe_has_its_time_out_too() -> None:
    fake = Fake(answer=never)
    for _ in range(3):
        await cause_of(fake)
    await asyncio.sleep(30)
    assert 3 <= fake.probes <= 12
    asking = fake.breaker.state is BreakerState.HALF_OPEN  # a probe may be under way at this very moment
    assert len(fake.standing) == asking
    assert fake.failures["timeout"] == 3 + fake.probes - asking


async def test_a_server_that_is_down_at_the_start_is_left_for_later() -> None:
    fake = Fake(connect=refuse(ConnectionRefusedError()))
    await fake.start()
    assert not fake.up
    assert await cause_of(fake) == "open"
    fake.connect = fake.nothing
    await asyncio.sleep(5)
    assert isinstance(await login(fake), Allow)


async def test_a_start_on_a_frozen_server_takes_no_longer_than_a_question() -> None:
    fake = Fake(connect=never)
    began = now()
    await fake.start()
    assert now() - began == pytest.approx(TIMEOUT_S)
    assert not fake.up


async def test_settings_that_the_server_refuses_end_the_start() -> None:
    fake = Fake(answer=refuse(SettingsError()))
    with pytest.raises(ConfigError, match="does not like the query"):
        await fake.start()
    assert not fake.standing


async def test_later_they_are_a_failure_that_says_so() -> None:
    fake = Fake()
    await fake.start()
    fake.answer = refuse(SettingsError())
    with capture_logs() as logs:
        assert [await cause_of(fake) for _ in range(4)] == ["settings"] * 3 + ["open"]
        fake.connect = refuse(ConnectionRefusedError())
        await asyncio.sleep(3)
    assert [line["cause"] for line in logs if line["event"] == "auth_backend_still_down"] == ["unreachable"]


async def test_a_file_that_goes_away_later_is_named() -> None:
    fake = Fake()
    await fake.start()
    fake.answer, fake.connect = refuse(LostError()), refuse(ConfigError("auth.fake.tls.ca_file x cannot be used."))
    assert await cause_of(fake) == "tls"
    assert fake.problem == "auth.fake.tls.ca_file x cannot be used."


async def test_a_library_that_hides_the_cancellation_is_late_all_the_same() -> None:
    async def hiding(link: Link, name: str) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise OtherError from None

    fake = Fake(answer=hiding)
    assert await cause_of(fake) == "timeout"


async def test_closing_ends_what_is_under_way() -> None:
    fake = Fake(answer=never)
    for _ in range(3):
        await cause_of(fake)
    assert fake.breaker.state is not BreakerState.CLOSED
    await asyncio.sleep(0.1)
    await fake.close()
    await fake.close()
    assert not fake.standing


async def test_a_connection_that_opens_while_it_closes_is_not_kept() -> None:
    fake = Fake(connect=after(0.5))
    question = asyncio.create_task(login(fake))
    await asyncio.sleep(0.1)
    await fake.close()
    with pytest.raises(BackendDownError, match="stopping"):
        await question
    assert not fake.standing


async def test_a_login_that_is_none_of_its_business_asks_nobody() -> None:
    fake = Fake(connect=refuse(AssertionError("it was asked")))
    assert await login(fake, "") == Ignore("fake", "no_identity")


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_server_does_every_login_ends_in_time(seed: int) -> None:
    """A seeded run of 400 logins, some given up, against a server that answers, stalls, breaks and complains. The fake
    checks that no connection has two questions, and no login another's answer."""
    rng, sick = random.Random(seed), 0.0

    async def answer(link: Link, name: str) -> None:
        await asyncio.sleep(rng.expovariate(20))
        if rng.random() < sick:
            raise rng.choice([LostError, OtherError, SettingsError, ConnectionResetError])
        if rng.random() < sick:
            await asyncio.sleep(rng.uniform(0, 3))

    async def connect() -> None:
        await asyncio.sleep(rng.expovariate(50))
        if rng.random() < sick:
            raise ConnectionRefusedError

    fake = Fake(rng.randint(1, 5), answer, connect)

    async def one(number: int) -> str:
        began = now()
        patience = rng.choice([10.0, 10.0, rng.uniform(0, TIMEOUT_S)])
        try:
            async with asyncio.timeout(patience):
                await login(fake, f"lamp-{number}")
            result = "allow"
        except BackendDownError as error:
            result = error.cause
        except TimeoutError:
            result = "given up"
        assert now() - began <= TIMEOUT_S + 1e-6, f"login {number} took {now() - began:g} s: {result}"
        assert len([link for link in fake.links if link.asking and link.open]) <= fake._pool_size + 1
        return result

    tasks = []
    for number in range(400):
        sick = 0.0 if number < 40 or number >= 360 else rng.choice([0.0, 0.05, 0.5, 0.9])
        if number == 360:
            await asyncio.gather(*tasks)
            await asyncio.sleep(10)
            assert fake.breaker.state is BreakerState.CLOSED, "it does not heal"
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(rng.expovariate(40))
    results = await asyncio.gather(*tasks)
    assert set(results[360:]) <= {"allow", "given up", "overload"}, results[360:]
    assert "allow" in results[:40]
    await fake.close()
    assert not fake.standing


in_manual_time(globals())

"""Which session is renewed when, and that the others wait until it is back."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from bridge.certificate import Validity
from bridge.ports import Credential
from config.settings import Settings
from gateway.base.metrics import Metrics
from gateway.mqtt import renewal
from gateway.mqtt.login import Login, Shown
from gateway.mqtt.renewal import Renewals
from tests.servers.token_source import MadeTokens
from tests.waiting import until


class FakeSession:
    """A session that shows ``shown``; a renewal succeeds if ``settles``, and it is back when the test says so."""

    def __init__(self, name: str, shown: Shown) -> None:
        self.name = name
        self.shown: Shown | None = shown
        self.standing = asyncio.Event()
        self.standing.set()
        self.settles = True
        self.renewals = 0
        self.attempts = 0

    async def renew(self, patience_s: float) -> bool:
        assert patience_s > 0
        self.attempts += 1
        if self.settles:
            self.renewals += 1
            self.shown = None
            self.standing.clear()
        return self.settles

    def back(self, shown: Shown) -> None:
        self.shown = shown
        self.standing.set()


@contextlib.asynccontextmanager
async def running(
    sessions: list[FakeSession], tokens: MadeTokens | None, **mqtt: object
) -> AsyncIterator[tuple[Renewals, Metrics]]:
    settings = Settings(mqtt={"username": "u", **({"token": {"value": "x"}} if tokens else {}), **mqtt})  # type: ignore[arg-type]
    metrics = Metrics(settings)
    renewals = Renewals(Login(settings.mqtt, tokens), lambda: sessions, metrics)
    await renewals.start()
    try:
        yield renewals, metrics
    finally:
        await renewals.stop(0)


async def turns(count: int = 50) -> None:
    """Let everything run that can run at once."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "SPREAD_S", 0.0)
    monkeypatch.setattr(renewal, "_RETRY_S", 0.01)


@pytest.mark.usefixtures("_at_once")
async def test_the_next_one_waits_until_this_one_is_back() -> None:
    tokens = MadeTokens(lambda: "t", 600)
    first = await tokens.current()
    sessions = [FakeSession(f"s{n}", Shown("u", "t", credential=first)) for n in range(3)]
    async with running(sessions, tokens) as (_, metrics):
        second = tokens.renew()
        for number, session in enumerate(sessions):
            await until(lambda session=session: session.renewals == 1, "its turn")
            await turns()
            assert [one.renewals for one in sessions] == [1] * (number + 1) + [0] * (2 - number)
            session.back(Shown("u", "t", credential=second))
        await until(lambda: metrics.mqtt_renewals.child("token", "renewed").value == 3, "all three")
        await turns()
        assert [one.renewals for one in sessions] == [1, 1, 1]


@pytest.mark.usefixtures("_at_once")
async def test_what_is_put_off_is_tried_again_and_holds_up_no_other() -> None:
    tokens = MadeTokens(lambda: "t", 600)
    first = await tokens.current()
    busy, idle = (FakeSession(name, Shown("u", "t", credential=first)) for name in ("busy", "idle"))
    busy.settles = False
    async with running([busy, idle], tokens) as (_, metrics):
        second = tokens.renew()
        await until(lambda: idle.renewals == 1, "the other one is renewed")
        idle.back(Shown("u", "t", credential=second))
        await until(lambda: busy.attempts >= 3, "it is tried again")
        busy.settles = True
        await until(lambda: busy.renewals == 1, "it is renewed")
        busy.back(Shown("u", "t", credential=second))
        await until(lambda: metrics.mqtt_renewals.child("token", "renewed").value == 2, "both")
        assert metrics.mqtt_renewals.child("token", "postponed").value >= 2
        assert idle.renewals == 1


@pytest.mark.usefixtures("_at_once")
async def test_a_session_that_is_away_or_has_the_token_already_is_left_alone() -> None:
    tokens = MadeTokens(lambda: "t", 600)
    first = await tokens.current()
    old, away = FakeSession("old", Shown("u", "t", credential=first)), FakeSession("away", Shown("u"))
    away.shown = None
    fresh = FakeSession("fresh", Shown("u", "t", credential=Credential("t", None, 2)))
    async with running([away, fresh, old], tokens):
        tokens.renew()
        await until(lambda: old.renewals == 1, "the old one is renewed")
        assert away.attempts == fresh.attempts == 0


@pytest.mark.parametrize(("left_s", "latest_s"), [(600.0, 30.0), (40.0, 10.0), (-5.0, 0.0), (None, 30.0)])
async def test_workers_begin_at_moments_of_their_own_and_in_time(left_s: float | None, latest_s: float) -> None:
    """Within half a minute, or a quarter of what the old token has left."""
    now_ns = time.monotonic_ns()
    expires_ns = None if left_s is None else now_ns + round(left_s * 1e9)
    old = Credential("t", expires_ns, 1)
    begins = []
    for _ in range(200):
        async with running([FakeSession("s", Shown("u", "t", credential=old))], MadeTokens(lambda: "t")) as (one, _):
            one._told(Credential("t", None, 2))
            begins.append((one._begin_ns - time.monotonic_ns()) / 1e9)
    assert max(begins) <= latest_s
    if latest_s:
        assert min(begins) < latest_s / 4
        assert max(begins) > latest_s * 3 / 4


@pytest.mark.usefixtures("_at_once")
async def test_a_defect_does_not_end_the_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = MadeTokens(lambda: "t", 600)
    session = FakeSession("s", Shown("u", "t", credential=await tokens.current()))
    defects = iter([ZeroDivisionError()])
    renew = FakeSession.renew

    async def broken_once(self: FakeSession, patience_s: float) -> bool:
        for defect in defects:
            raise defect
        return await renew(self, patience_s)

    monkeypatch.setattr(FakeSession, "renew", broken_once)
    with capture_logs() as lines:
        async with running([session], tokens):
            tokens.renew()
            await until(lambda: session.renewals == 1, "it is renewed after the defect")
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["mqtt_renewal_defect"]


async def test_nothing_runs_where_nothing_expires() -> None:
    async with running([FakeSession("s", Shown("u", "p"))], None) as (renewals, _):
        assert renewals._task is None


async def test_a_certificate_that_ends_without_another_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "CHECK_S", 0.01)
    now_s = time.time()
    ending = FakeSession("s", Shown("u", certificate=Validity(now_s - 3600, now_s + 60)))
    with capture_logs() as lines:
        async with running([ending], None, tls={"certificate_file": "c"}, addresses=("mqtts://a",)):
            await until(lambda: lines, "it is told")
    assert {line["event"] for line in lines} == {"mqtt_certificate_expires"}
    assert ending.attempts == 0

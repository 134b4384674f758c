"""Tokens that the gateway shows: when the next is looked for, and what is handed out meanwhile. No network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from structlog.testing import capture_logs

from auth.errors import CredentialError
from auth.outward.keeper import Found, Keeper
from auth.outward.renewal import PollPlan, RenewalPlan
from auth.outward.token_text import problem_of_token, token_expiry_ns
from auth.outward.tokens import FileToken, OAuthTokens, StaticToken, token_source
from bridge.ports import Credential
from config.errors import ConfigError
from config.settings import OAuthSettings, TokenSettings
from config.values.secret_files import FileSecret
from tests.scripts import loaded_after
from tests.unit.access_parts import ManualClock
from tests.unit.jwt_tokens import NOW_S, hand_made, token
from tests.waiting import until

S = 1_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.set_s = NOW_S - clock.now_s()
    return clock


# --- when -------------------------------------------------------------------------------------------------------------
@given(st.floats(0.1, 0.95), st.integers(5 * S, 10**7 * S), st.integers(0, 4 * S), st.integers())
def test_a_token_is_renewed_after_its_share_of_life_and_before_its_end(
    share: float, life_ns: int, answer_ns: int, seed: int
) -> None:
    plan = RenewalPlan(share, rng=random.Random(seed))
    assert plan.due_ns() == 0
    plan.began(100 * S)
    plan.succeeded(100 * S + answer_ns, 100 * S + life_ns)
    after_ns = plan.due_ns() - 100 * S
    assert after_ns <= max(life_ns * share, answer_ns + S) + 1
    assert after_ns >= life_ns * share * 0.9 - 1


def test_a_token_that_is_over_at_once_makes_no_storm() -> None:
    plan = RenewalPlan(0.75)
    plan.began(0)
    plan.succeeded(0, 1)
    assert plan.due_ns() == S


def test_failures_are_spaced_wider_and_wider() -> None:
    plan, now, waits = RenewalPlan(0.75, rng=random.Random(3)), 0, []
    for _ in range(12):
        plan.began(now)
        plan.failed(now)
        waits.append(plan.due_ns() - now)
        now = plan.due_ns()
    assert 0.8 * S <= waits[0] <= 1.2 * S
    assert 30 * S < waits[-1] <= 60 * S


def test_a_refused_token_is_replaced_at_once_but_every_ten_seconds_at_most() -> None:
    plan = RenewalPlan(0.75)
    plan.began(0)
    plan.succeeded(0, 3600 * S)
    plan.ask(20 * S)
    assert plan.due_ns() == 20 * S
    plan.began(20 * S)
    plan.succeeded(20 * S, 3620 * S)
    plan.ask(21 * S)
    plan.ask(22 * S)
    assert plan.due_ns() == 30 * S


def test_asking_puts_nothing_off() -> None:
    plan = RenewalPlan(0.75)
    plan.began(0)
    plan.failed(0)
    soon = plan.due_ns()
    plan.ask(0)
    assert plan.due_ns() == soon


def test_a_file_is_looked_at_every_five_seconds_and_when_asked() -> None:
    plan = PollPlan()
    assert plan.due_ns() == 0
    plan.began(S)
    plan.failed(S)
    assert plan.due_ns() == 6 * S
    plan.ask(2 * S)
    assert plan.due_ns() == 2 * S


# --- what a token is --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "problem"), [
    ("abc", None), (token(), None), ("", "empty"), ("a b", "other characters"), ("a\nb", "other characters"),
    ("a\x01auth=x", "other characters"), ("é", "other characters"), ("x" * 65_536, "more than 65535"),
])  # fmt: skip
def test_what_can_be_a_token(text: str, problem: str | None) -> None:
    found = problem_of_token(text)
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_the_end_of_a_jwt_is_read_without_its_key() -> None:
    assert token_expiry_ns(token({"exp": NOW_S + 60}), 5 * S, NOW_S) == 65 * S
    assert token_expiry_ns(token({"exp": NOW_S - 60}), 5 * S, NOW_S) == -55 * S
    for text in ("opaque", token({"exp": None}), token({"exp": "soon"}), hand_made({"alg": "none"}, "[[")):
        assert token_expiry_ns(text, 5 * S, NOW_S) is None


# --- the keeper -------------------------------------------------------------------------------------------------------
class Finder:
    """What a keeper asks: gives what it is told to, and can be held."""

    def __init__(self) -> None:
        self.answers: list[Found | Exception] = []
        self.asked = 0
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self) -> Found:
        self.asked += 1
        await self.free.wait()
        answer = self.answers.pop(0) if self.answers else CredentialError("nothing more")
        if isinstance(answer, Exception):
            raise answer
        return answer


class Rig:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.finder = Finder()
        self.plan = RenewalPlan(0.75, rng=random.Random(5))
        self.keeper = Keeper(self.finder, self.plan, "mqtt.token", monotonic_ns=clock.now_ns)
        self.told: list[Credential] = []

    async def asked(self, times: int) -> None:
        """Wait until the finder was asked so often, and has answered."""
        await until(lambda: self.finder.asked >= times and not self.keeper._looking)

    async def wake(self) -> None:
        """What a timer does when the clock has moved to the plan's moment."""
        self.keeper._asked.set()
        await asyncio.sleep(0)

    async def looked_twice(self) -> Credential:
        """Take the first token and let the next attempt be made; returns the first."""
        await self.keeper.start()
        first = await self.keeper.current()
        self.clock.forward(76)
        await self.wake()
        await self.asked(2)
        return first


@pytest.fixture
async def rig(clock: ManualClock) -> AsyncIterator[Rig]:
    made = Rig(clock)
    made.keeper.watch(made.told.append)
    yield made
    await made.keeper.close()


async def test_whoever_comes_first_waits_for_the_first_token(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S)]
    rig.finder.free.clear()
    await rig.keeper.start()
    waiting = [asyncio.create_task(rig.keeper.current()) for _ in range(20)]
    await until(lambda: rig.finder.asked == 1)
    rig.finder.free.set()
    assert {(one.token, one.number) for one in await asyncio.gather(*waiting)} == {("one", 1)}
    assert rig.finder.asked == 1
    assert rig.told == [], "a first token replaces none"


async def test_a_renewed_token_is_told_and_handed_out(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S), Found("two", rig.clock.now_ns() + 180 * S)]
    with capture_logs() as lines:
        await rig.looked_twice()
    assert (await rig.keeper.current()).token == "two"
    assert [line["event"] for line in lines] == ["token_taken"], "of the first alone; renewals are usual"
    assert [(one.token, one.number) for one in rig.told] == [("two", 2)]


async def test_the_old_one_is_good_while_the_next_cannot_be_had(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S)]
    await rig.looked_twice()
    assert (await rig.keeper.current()).token == "one"
    rig.clock.forward(24)
    with pytest.raises(CredentialError, match="nothing more"):
        await rig.keeper.current()


async def test_an_attempt_under_way_holds_up_nobody_who_has_a_token(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S), Found("two", rig.clock.now_ns() + 200 * S)]
    await rig.keeper.start()
    await rig.keeper.current()
    rig.finder.free.clear()
    rig.clock.forward(76)
    await rig.wake()
    await until(lambda: rig.finder.asked == 2)
    async with asyncio.timeout(60):
        assert (await rig.keeper.current()).token == "one"
    rig.finder.free.set()
    await rig.asked(2)
    assert (await rig.keeper.current()).token == "two"


async def test_a_refused_token_is_replaced_and_who_asks_waits_for_that(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 3600 * S), Found("two", rig.clock.now_ns() + 3600 * S)]
    await rig.keeper.start()
    one = await rig.keeper.current()
    rig.clock.forward(20)
    rig.keeper.refused(one)
    two = await rig.keeper.current()
    assert two.token == "two"
    rig.keeper.refused(one)
    assert (await rig.keeper.current()) is two, "the old one is not the one that is shown"
    rig.keeper.refused(two)
    async with asyncio.timeout(60):
        assert (await rig.keeper.current()) is two, "the next attempt has to wait its turn, whoever asks not"
    assert rig.finder.asked == 2


async def test_the_refusal_of_an_earlier_token_asks_for_no_other(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S), Found("two", rig.clock.now_ns() + 3600 * S)]
    one = await rig.looked_twice()
    due_ns = rig.plan.due_ns()
    rig.keeper.refused(one)
    assert rig.plan.due_ns() == due_ns


async def test_a_refused_token_is_still_handed_out_when_there_is_no_other(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 3600 * S), CredentialError("down")]
    await rig.keeper.start()
    one = await rig.keeper.current()
    rig.clock.forward(20)
    rig.keeper.refused(one)
    assert (await rig.keeper.current()) is one
    assert rig.finder.asked == 2


async def test_a_provider_that_is_down_is_not_hammered_however_many_ask(rig: Rig) -> None:
    await rig.keeper.start()
    for _ in range(100):
        with pytest.raises(CredentialError, match="nothing more"):
            await rig.keeper.current()
        await asyncio.sleep(0)
    assert rig.finder.asked == 1, "the time of the next attempt has to come, and here it stands still"


async def test_the_same_token_again_is_no_new_one(rig: Rig) -> None:
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S)] * 2
    one = await rig.looked_twice()
    assert (await rig.keeper.current()) is one
    assert rig.told == []


async def test_a_watcher_that_fails_or_ends_keeps_nothing_from_the_others(rig: Rig) -> None:
    def fails(_credential: Credential) -> None:
        raise RuntimeError("watcher")

    ended: list[Credential] = []
    end = rig.keeper.watch(ended.append)
    rig.keeper.watch(fails)
    later: list[Credential] = []
    rig.keeper.watch(later.append)
    end()
    end()
    rig.finder.answers = [Found("one", rig.clock.now_ns() + 100 * S), Found("two", rig.clock.now_ns() + 200 * S)]
    await rig.looked_twice()
    assert (len(ended), len(later)) == (0, 1)


async def test_a_defect_in_looking_is_survived(rig: Rig) -> None:
    rig.finder.answers = [RuntimeError("defect"), Found("one", None)]
    rig.keeper._plan = PollPlan()
    await rig.keeper.start()
    await rig.asked(1)
    assert (await rig.keeper.current()).token == "one", "a file's next attempt is due when somebody needs it"


async def test_nobody_waits_for_a_keeper_that_stops(rig: Rig) -> None:
    rig.finder.free.clear()
    await rig.keeper.start()
    waiting = asyncio.create_task(rig.keeper.current())
    await until(lambda: rig.finder.asked == 1)
    await rig.keeper.close()
    with pytest.raises(CredentialError):
        await waiting
    with pytest.raises(CredentialError, match="stopping"):
        await rig.keeper.current()


def test_no_repr_shows_a_token() -> None:
    assert "secret" not in repr(Credential("secret")) + repr(Found("secret", 1))


# --- files ------------------------------------------------------------------------------------------------------------
async def reading(clock: ManualClock, file: Path) -> FileToken:
    source = FileToken(file, "mqtt.token.file", monotonic_ns=clock.now_ns, clock=clock.now_s)
    await source.start()
    return source


async def test_a_token_in_a_file_is_followed(clock: ManualClock, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token({"exp": NOW_S + 600}) + "\n")
    source = await reading(clock, file)
    told: list[Credential] = []
    source.watch(told.append)
    try:
        first = await source.current()
        assert first.expires_at_ns == clock.now_ns() + 600 * S
        file.write_text(token({"exp": NOW_S + 1200}))
        source.refused(first)
        second = await source.current()
        assert second.number == 2
        assert told == [second]
        for bad in (b"", b"\xff\xfe", b"two words", token({"exp": NOW_S - 1}).encode()):
            file.write_bytes(bad)
            source.refused(second)
            assert (await source.current()) is second, bad
        file.unlink()
        source.refused(second)
        assert (await source.current()) is second
    finally:
        await source.close()


@pytest.mark.parametrize(("content", "says"), [
    (None, "no such file or directory. Has the program that writes it"),
    (b"", "holds no token: it is empty"),
    (b"\n", "holds no token: it is empty"),
    (b"two words", "holds no token: it holds spaces"),
    (b"\xff", "it is no text"),
    (b"x" * 70_000, "more than 65535"),
    (token({"exp": NOW_S - 5}).encode(), "has expired"),
])  # fmt: skip
async def test_what_is_no_token_yet_is_told_and_looked_at_again(
    content: bytes | None, says: str, clock: ManualClock, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    source = await reading(clock, file)
    try:
        with pytest.raises(CredentialError) as failure:
            await source.current()
        assert str(failure.value).startswith(f"mqtt.token.file {file} ")
        assert says in str(failure.value)
        file.write_text("opaque-token")
        credential = await source.current()
        assert (credential.token, credential.expires_at_ns) == ("opaque-token", None)
    finally:
        await source.close()


async def test_a_folder_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        await FileToken(tmp_path, "mqtt.token.file").start()


async def test_a_fixed_token_never_changes() -> None:
    source = StaticToken("fixed", "mqtt.token.value")
    await source.start()
    credential = await source.current()
    source.refused(credential)
    end = source.watch(lambda _: None)
    end()
    assert (await source.current()) is credential
    assert credential == Credential("fixed")
    await source.close()
    with pytest.raises(ConfigError, match=r"mqtt\.token\.value cannot be a token"):
        await StaticToken("two words", "mqtt.token.value").start()


OAUTH: dict[str, Any] = {"token_url": "https://idp/token", "client_id": "gw", "client_secret": SecretStr("s")}


def test_the_settings_say_which_source(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t")
    cases: list[tuple[TokenSettings, type]] = [
        (TokenSettings(value=SecretStr("t")), StaticToken),
        (TokenSettings(value=FileSecret("t", file)), FileToken),
        (TokenSettings(file=file), FileToken),
        (TokenSettings(oauth=OAuthSettings(**OAUTH)), OAuthTokens),
    ]
    for table, kind in cases:
        assert isinstance(token_source(table, "mqtt.token"), kind)


def test_a_gateway_with_tokens_starts_without_an_http_client() -> None:
    """aiohttp takes 0.4 s to import, cryptography and PyJWT some more."""
    code = (
        "import auth.outward.tokens as t\n"
        "from config.settings import TokenSettings, OAuthSettings\n"
        "oauth = OAuthSettings(token_url='https://i/t', client_id='c', client_secret='s')\n"
        "t.token_source(TokenSettings(oauth=oauth), 'x')"
    )
    assert not {"aiohttp", "jwt", "cryptography", "prometheus_client"} & loaded_after(code)

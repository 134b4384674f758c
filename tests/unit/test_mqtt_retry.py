"""Waits stay at about a second while the broker is away, grow while it refuses this session, and siblings end them."""

import asyncio
import random

import pytest

from config.settings import MqttSettings
from gateway.mqtt.errors import ConnectError, MqttRefusedError
from gateway.mqtt.retry import Pause, Retry, Siblings
from tests.unit.manual_time import manual_time

SECOND = 1_000_000_000
GONE = ConnectError("refused the connection", "unreachable")
BUSY = ConnectError("server busy", "unavailable", code=0x89)
PASSWORD = MqttRefusedError("bad user name or password", "credentials", code=0x86)
NO_RIGHTS = MqttRefusedError("refused to subscribe", "subscribe")
BANNED = ConnectError("banned", "banned", code=0x8A)
QUOTA = ConnectError("quota exceeded", "unavailable", code=0x97)
RATE = ConnectError("connection rate exceeded", "unavailable", code=0x9F)


def make(siblings: Siblings | None = None, *, seed: int = 1, **mqtt: object) -> Retry:
    settings = MqttSettings.model_validate(mqtt)
    return Retry(settings, siblings or Siblings(), rng=random.Random(seed))


def waits(pauses: list[Pause]) -> list[float]:
    return [pause.wait_ns / SECOND for pause in pauses]


@pytest.mark.parametrize(
    "error", [GONE, BUSY, ConnectError("no answer", "timeout"), ConnectError("hung up", "protocol")]
)
def test_a_broker_that_is_away_is_tried_every_second_for_as_long_as_it_takes(error: ConnectError) -> None:
    seen = []
    for seed in range(50):
        retry = make(seed=seed)
        pauses = [retry.failed(error, n * SECOND) for n in range(100)]
        assert all(pause.is_shared for pause in pauses)
        assert 0.4 <= pauses[0].wait_ns / SECOND <= 0.6, "mqtt.reconnect_initial comes first"
        seen += waits(pauses[1:])
    assert min(seen) >= 0.8
    assert max(seen) <= 1.2
    assert max(seen) - min(seen) > 0.35, "spread: a thousand gateways lost the same broker"


def test_breaks_within_stable_after_do_not_make_the_wait_for_a_broker_longer() -> None:
    """A broker that restarts again and again: each time its port is closed for a while."""
    retry, now = make(), 0
    for _ in range(20):
        retry.subscribed(now)
        now += 5 * SECOND
        pauses = [retry.ended("closed", now), *(retry.failed(GONE, now) for _ in range(3))]
        assert max(waits(pauses)) <= 1.2
        assert waits(pauses)[0] <= 0.6, "and begin with mqtt.reconnect_initial"


@pytest.mark.parametrize("error", [BANNED, QUOTA, RATE])
@pytest.mark.parametrize("after_restart", [False, True])
def test_a_ban_and_a_quota_are_waited_for_longer_and_longer(error: ConnectError, after_restart: bool) -> None:
    retry = make(reconnect_jitter=0)
    if after_restart:
        retry.failed(GONE, 0)
    pauses = [retry.failed(error, SECOND) for _ in range(8)]
    assert waits(pauses) == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert not any(pause.is_shared for pause in pauses), "a sibling that is let in says nothing of this client id"


@pytest.mark.parametrize("label", ["taken_over", "other", "protocol"])
def test_a_take_over_is_answered_later_and_later(label: str) -> None:
    retry, now, pauses = make(reconnect_jitter=0), 0, []
    for _ in range(8):
        retry.subscribed(now)
        now += 20 * SECOND
        pauses.append(retry.ended(label, now))
    assert waits(pauses) == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert not any(pause.is_shared for pause in pauses)
    early = retry.failed(ConnectError("ended before SUBACK", "protocol"), now, "taken_over")
    assert early == (30 * SECOND, False), "before SUBACK too"
    retry.subscribed(now)
    assert waits([retry.ended(label, now + 60 * SECOND)]) == [0.5], "after mqtt.stable_after it begins anew"


@pytest.mark.parametrize("label", ["closed", "administrative"])
def test_a_broker_that_ends_each_connection_at_once_is_not_hammered(label: str) -> None:
    """A take-over in MQTT 3.1.1, of which the broker says nothing; or somebody who kicks us again and again."""
    retry, now, pauses = make(reconnect_jitter=0), 0, []
    for number in range(8):
        assert retry.short_lived is (number >= 3)
        retry.subscribed(now)
        now += SECOND
        pauses.append(retry.ended(label, now))
    assert waits(pauses) == [0.5, 0.5, 0.5, 1, 2, 4, 8, 16]
    assert [pause.is_shared for pause in pauses] == [True, True] + 6 * [False]
    retry.failed(GONE, now)
    retry.subscribed(now)
    assert retry.ended(label, now + SECOND).is_shared, "its port was closed: a broker's restart, nobody's take-over"


@pytest.mark.parametrize("error", [PASSWORD, NO_RIGHTS])
@pytest.mark.parametrize("sign", ["a closed port", "a lost connection", "a sibling's lost connection"])
def test_a_refusal_within_thirty_seconds_of_a_restart_is_tried_every_second(error: ConnectError, sign: str) -> None:
    """EMQX opens its listeners before its authenticators and rules are loaded."""
    siblings = Siblings()
    retry, sibling = make(siblings), make(siblings)
    assert not siblings.lately_down(0)
    retry.subscribed(0)
    began = 100 * SECOND
    if sign == "a closed port":
        retry.failed(GONE, began)
    elif sign == "a lost connection":
        retry.ended("closed", began)
    else:
        sibling.ended("closed", began)
    pauses = [retry.failed(error, began + n * SECOND) for n in range(30)]
    assert max(waits(pauses)) <= 1.2
    assert all(pause.is_shared for pause in pauses)
    later = [retry.failed(error, began + n * SECOND) for n in range(30, 60)]
    assert max(waits(later)) > 20, "a wrong password does not become right: no refusal makes the 30 s longer"
    assert all(pause.is_shared for pause in later), "a sibling that is let in is a reason to try"


def test_a_kick_is_no_restart() -> None:
    siblings = Siblings()
    retry = make(siblings)
    retry.subscribed(0)
    retry.ended("administrative", SECOND)
    assert not siblings.lately_down(SECOND)


def test_waits_of_the_settings_are_kept_to() -> None:
    calm = make(reconnect_initial="30s", reconnect_max="60s", reconnect_jitter=0)
    assert waits([calm.failed(GONE, 0) for _ in range(3)]) == [30, 30, 30]
    quick = make(reconnect_initial="10ms", reconnect_max="20ms")
    assert max(waits([quick.failed(GONE, 0) for _ in range(20)])) <= 0.02


@manual_time
async def test_a_sibling_that_is_subscribed_ends_the_wait() -> None:
    siblings, loop = Siblings(), asyncio.get_running_loop()
    long = Pause(3600 * SECOND, True)
    waiting = [asyncio.create_task(siblings.wait(long, siblings.next_subscribed)) for _ in range(3)]
    banned = asyncio.create_task(siblings.wait(Pause(20 * SECOND, False), siblings.next_subscribed))
    began = loop.time()
    loop.call_later(2, siblings.subscribed)
    await asyncio.wait(waiting)
    assert loop.time() - began == pytest.approx(2)
    await banned
    assert loop.time() - began == pytest.approx(20)
    before = siblings.next_subscribed
    siblings.subscribed()
    await siblings.wait(long, before)
    assert loop.time() - began == pytest.approx(20), "also when it came in during the attempt that failed"
    await siblings.wait(Pause(SECOND, True), siblings.next_subscribed)
    assert loop.time() - began == pytest.approx(21), "news are told once"

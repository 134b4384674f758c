"""A verification says what was lost before the gateway, or that nobody looked."""

import pytest

from config.settings import EmqxSettings, MqttSettings, Settings
from gateway.base.group_plan import client_ids
from gateway.health.emqx.model import EmqxClient
from gateway.tools.verify.before import Before, as_sentence, look_before, workers_of

EMQX = EmqxSettings.model_validate({"url": "http://127.0.0.1:9", "api_key": "k", "api_secret": "s"})
NOON = 1_767_268_800_000  # 2026-01-01T12:00:00Z


def session(number: int, dropped: int = 0, too_large: int = 0) -> EmqxClient:
    return EmqxClient(
        f"gw-0-{number}", connected=True, session_ms=NOON + number * 1000, mqueue_dropped=dropped,
        dropped_too_large=too_large,
    )  # fmt: skip


def test_a_problem_that_asks_ends_with_its_question_mark() -> None:
    asked = "http://emqx refuses connections. Is this the dashboard's port?"
    assert as_sentence(Before(problem=asked)) == f"Before the gateway: not looked at: {asked}"


def test_nobody_looked() -> None:
    assert as_sentence(Before(problem="emqx.url is not set")) == (
        "Before the gateway: not looked at: emqx.url is not set."
    )
    assert Before(problem="x").as_dict()["dropped"] is None, "unknown is not 0"


def test_nothing_was_dropped() -> None:
    assert as_sentence(Before((session(1), session(0)))) == (
        "Before the gateway: EMQX has dropped nothing for our 2 sessions since 2026-01-01T12:00:00Z."
    )
    assert "knows none of its sessions" in as_sentence(Before())


async def test_sessions_that_emqx_does_not_know_are_not_vouched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def clients(_api: object, wanted: list[str]) -> dict[str, EmqxClient]:
        assert wanted == ["gw-0-0", "gw-0-1", "gw-0-2"]
        return {"gw-0-1": session(1)}

    monkeypatch.setattr("gateway.health.emqx.api.EmqxApi.clients", clients)
    before = await look_before(Settings(instance="gw", mqtt=MqttSettings(sessions=3), emqx=EMQX), [0])
    assert as_sentence(before).endswith("for our 1 session since 2026-01-01T12:00:01Z; it knows nothing of 2 others.")
    assert before.as_dict()["unknown_sessions"] == 2


def test_what_was_dropped_is_told_by_session_with_its_beginning() -> None:
    before = Before((session(0, 5000), session(1), session(2, 720, 3)))
    assert as_sentence(before) == (
        "BEFORE THE GATEWAY: EMQX has dropped 5723 messages of 2 of our 3 sessions, though devices have had their "
        "acknowledgement: gw-0-0 5000 from the full queue since 2026-01-01T12:00:00Z; gw-0-2 720 from the full queue "
        "since 2026-01-01T12:00:02Z and 3 larger than mqtt.max_packet_bytes."
    )
    assert before.as_dict()["dropped"] == 5723
    many = Before(tuple(session(number, 1) for number in range(7)))
    assert as_sentence(many).endswith("; and 2 more.")


@pytest.mark.parametrize(
    ("workers", "worker", "seen", "numbers"),
    [(None, 0, (), [0]), (None, 0, (1, 3), [0, 1, 3]), (0, 5, (2,), [2, 5]), (3, 0, (7,), [0, 1, 2, 7])],
)
def test_whose_sessions_count(workers: int | None, worker: int, seen: tuple[int, ...], numbers: list[int]) -> None:
    assert workers_of(Settings(workers=workers, worker=worker), seen) == numbers


def test_client_ids_of_another_worker() -> None:
    settings = Settings(instance="plant", mqtt=MqttSettings(sessions=2))
    assert client_ids(settings, 3) == [("0", "plant-3-0"), ("1", "plant-3-1")]


async def test_an_emqx_that_is_away_is_said_and_ends_nothing() -> None:
    assert (await look_before(Settings(), [0])).problem == "emqx.url is not set"
    before = await look_before(Settings(emqx=EMQX), [0])
    assert before.problem is not None
    assert as_sentence(before).startswith("Before the gateway: not looked at: emqx.url: http://127.0.0.1:9")

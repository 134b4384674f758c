"""Losses in EMQX are counted once each, whatever begins anew there or here."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.problem import Problem
from gateway.health.emqx.losses import CALM_MS, Marks, SessionLosses
from gateway.health.emqx.model import EmqxClient, EmqxNode, EmqxZone
from gateway.health.emqx.problems import emqx_problems

BORN = 1_000_000
SEEN = EmqxClient(
    "gw-0-0", connected=True, session_ms=BORN - 5_000, connection_ms=BORN - 5_000, mqueue_max=1000, inflight_max=32
)


def losses() -> SessionLosses:
    return SessionLosses("0", "gw-0-0", since_ms=BORN)


def problems(session: SessionLosses, now_ms: int, **more: Any) -> list[Problem]:
    return list(emqx_problems([session], now_ms, **more))


def test_what_an_older_session_had_lost_before_anybody_looked_is_no_loss_of_now() -> None:
    session = losses()
    assert session.look(replace(SEEN, mqueue_dropped=700), BORN + 1) == {}
    assert session.before == 700
    assert session.look(replace(SEEN, mqueue_dropped=705), BORN + 2) == {"queue_full": 5}
    assert session.look(replace(SEEN, mqueue_dropped=705), BORN + 3) == {}
    assert session.lost["queue_full"] == 5


def test_what_was_dropped_while_the_worker_was_away_is_counted_when_it_is_back() -> None:
    marks = Marks.of(replace(SEEN, mqueue_dropped=700))
    session = SessionLosses("0", "gw-0-0", since_ms=BORN, marks=marks, looked_ms=BORN - 60_000)
    assert session.look(replace(SEEN, mqueue_dropped=950, connection_ms=BORN + 1), BORN + 1) == {"queue_full": 250}
    (problem,) = problems(session, BORN + 1)
    assert "since 1970-01-01T00:15:40Z" in problem.text, "since the last look of the earlier life"


def test_a_session_made_in_this_life_counts_whole_at_the_first_look() -> None:
    session = losses()
    assert session.look(replace(SEEN, session_ms=BORN + 10, mqueue_dropped=8), BORN + 20) == {"queue_full": 8}


def test_what_a_connection_counts_begins_anew_with_the_next_one() -> None:
    session = losses()
    session.look(replace(SEEN, dropped_too_large=3), BORN + 1)
    assert session.look(replace(SEEN, dropped_too_large=5), BORN + 2) == {"too_large": 2}
    again = replace(SEEN, connection_ms=BORN + 3, dropped_too_large=6, dropped_expired=1)
    assert session.look(again, BORN + 4) == {"too_large": 6, "expired": 1}


def test_a_session_that_is_gone_and_back_is_counted_on() -> None:
    session = losses()
    session.look(replace(SEEN, mqueue_dropped=1), BORN + 1)
    assert session.look(None, BORN + 2) == {}
    assert session.client is None
    assert session.look(replace(SEEN, mqueue_dropped=3), BORN + 3) == {"queue_full": 2}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["stay", "reconnect", "renew"]), st.booleans()), min_size=1)
)
def test_the_count_only_grows_and_equals_what_was_dropped_between_looks(steps: list[tuple[int, str, bool]]) -> None:
    """A simulated EMQX: some messages dropped, then perhaps a new connection or session, then perhaps a look."""
    session, client, now_ms = losses(), SEEN, BORN
    session.look(client, now_ms)
    total = unseen = 0
    for dropped, what, looks in steps:
        now_ms += 10
        if what == "reconnect":
            client = replace(client, connection_ms=now_ms, dropped_expired=0, dropped_too_large=0)
        elif what == "renew":
            client = replace(client, session_ms=now_ms, connection_ms=now_ms, mqueue_dropped=0)
            unseen = 0  # with the session its counter is gone: nobody can know
        client = replace(client, mqueue_dropped=client.mqueue_dropped + dropped)
        unseen += dropped
        if looks:
            before = session.lost["queue_full"]
            session.look(client, now_ms)
            total, unseen = total + unseen, 0
            assert session.lost["queue_full"] >= before
            assert session.lost["queue_full"] == total


def test_dropping_is_a_problem_until_it_has_been_calm_for_a_while() -> None:
    session = losses()
    session.look(SEEN, BORN + 1000)
    assert problems(session, BORN + 1000) == []
    session.look(replace(SEEN, mqueue_dropped=5), BORN + 16_000)
    session.look(replace(SEEN, mqueue_dropped=12), BORN + 31_000)
    (problem,) = problems(session, BORN + 31_000)
    assert (problem.id, problem.severity) == ("emqx-queue-dropping", "critical")
    assert problem.text == (
        "EMQX has dropped 12 messages from the full queue of session 0 (gw-0-0) since 1970-01-01T00:16:41Z, the last "
        "before 1970-01-01T00:17:11Z (queue 1000, window 32). The devices have an acknowledgement, but the gateway "
        "never received the messages."
    )
    assert "mqtt.max_inflight and mqtt.max_mqueue_len" in problem.check
    assert problems(session, BORN + 31_000 + CALM_MS - 1)
    assert problems(session, BORN + 31_000 + CALM_MS) == []
    session.look(replace(SEEN, mqueue_dropped=13), BORN + 2 * CALM_MS)
    (problem,) = problems(session, BORN + 2 * CALM_MS)
    assert "1 message from" in problem.text, "what was told before is not told again"


def test_many_sessions_make_one_problem_that_names_the_worst() -> None:
    sessions = [SessionLosses(str(number), f"gw-1-{number}", since_ms=BORN) for number in range(7)]
    for number, session in enumerate(sessions):
        session.look(SEEN, BORN + 1)
        session.look(replace(SEEN, mqueue_dropped=10 * number, mqueue_len=900), BORN + 1000 * (number + 2))
        session.look(replace(SEEN, mqueue_dropped=10 * number, mqueue_len=900), BORN + 60_000)
    dropping, filling = emqx_problems(sessions, BORN + 60_000, subject="worker 1")
    assert (dropping.id, dropping.subject) == ("emqx-queue-dropping", "worker 1")
    assert dropping.text.startswith(
        "EMQX has dropped 210 messages from the full queues of 6 sessions since 1970-01-01T00:16:40Z "
        "(6 (gw-1-6) 60, 5 (gw-1-5) 50, 4 (gw-1-4) 40, 3 (gw-1-3) 30 and 2 more), the last before 1970-01-01T00:16:48Z"
    )
    assert filling.id == "emqx-queue-filling"
    assert "queue of session 0 (gw-1-0) holds 900 of 1000 messages" in filling.text, "the one that has dropped nothing"


def test_filling_is_a_problem_at_the_second_look_and_not_beside_dropping() -> None:
    session = losses()
    half = replace(SEEN, mqueue_len=500)
    session.look(half, BORN + 1)
    assert problems(session, BORN + 1) == []
    session.look(half, BORN + 2)
    (problem,) = problems(session, BORN + 2)
    assert (problem.id, problem.severity) == ("emqx-queue-filling", "warning")
    assert "EMQX's queue of session 0 (gw-0-0) holds 500 of 1000 messages" in problem.text
    session.look(replace(half, mqueue_dropped=1), BORN + 3)
    assert [problem.id for problem in problems(session, BORN + 3)] == ["emqx-queue-dropping"]
    other = losses()
    for at in range(3):
        other.look(replace(SEEN, mqueue_len=499), BORN + at)
    assert problems(other, BORN + 3) == []
    for at in range(3):
        other.look(replace(SEEN, mqueue_len=10**6, mqueue_max=0), BORN + at)
    assert problems(other, BORN + 3) == [], "a queue without limit is never full"


def test_packets_that_are_too_large_are_a_problem_with_its_own_cure() -> None:
    session = losses()
    session.look(SEEN, BORN + 1)
    session.look(replace(SEEN, dropped_too_large=2, dropped_expired=9), BORN + 2)
    (problem,) = problems(session, BORN + 2)
    assert problem.id == "emqx-too-large"
    assert "mqtt.max_packet_bytes" in problem.check


def test_an_api_that_does_not_answer_is_a_problem_at_the_second_failure() -> None:
    session = losses()
    assert problems(session, BORN, failed_looks=1, failure="it is down.") == []
    (problem,) = problems(session, BORN, failed_looks=2, failure="it is down.")
    assert (problem.id, problem.severity) == ("emqx-unwatched", "warning")
    assert problem.text.endswith("it is down.")


@pytest.mark.parametrize(("said", "ms"), [
    ("2024-01-01T12:34:56.789+08:00", 1_704_083_696_789),
    ("2024-01-01T04:34:56Z", 1_704_083_696_000),
    (1_704_083_696_789, 1_704_083_696_789),
    (None, 0),
    ("yesterday", 0),
    (True, 0),
])  # fmt: skip
def test_moments_as_emqx_writes_them(said: object, ms: int) -> None:
    assert EmqxClient.parse({"clientid": "c", "created_at": said}).session_ms == ms


def test_what_is_missing_null_or_infinite_counts_as_nothing() -> None:
    client = EmqxClient.parse({"clientid": "c", "mqueue_len": None, "mqueue_max": "infinity", "inflight_cnt": True})
    assert client == EmqxClient("c", connected=False)
    with pytest.raises(ValueError, match="without clientid"):
        EmqxClient.parse({"mqueue_len": 1})


def test_a_zone_with_words_for_numbers_and_with_emqx_s_defaults() -> None:
    zone = EmqxZone.parse({"mqtt": {"max_mqueue_len": "infinity", "max_inflight": "64"}})
    assert (zone.max_mqueue_len, zone.max_inflight) == (None, 64)
    zone = EmqxZone.parse({"mqtt": {"max_mqueue_len": 0}})
    assert (zone.max_mqueue_len, zone.max_inflight) == (None, 32)
    assert zone.shared_subscription_strategy == "round_robin"
    with pytest.raises(ValueError, match="without mqtt"):
        EmqxZone.parse({})
    assert EmqxNode.parse({"node": "n", "node_status": "Running"}).status == "running"

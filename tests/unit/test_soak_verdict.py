"""The soak's verdict notices what it is there to notice."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.harness import Account, Gateway
from tests.chaos.soak import ANSWERS, Asked
from tests.chaos.soak_verdict import DESCRIPTORS, MEMORY, Life, Outcome, Sample, judged, report, slope_per_minute

GOOD = Account(published=100, found=100, copies=3, missing=[], out_of_order=[])


def life(pid: int, *, minutes: float = 60, rss_per_minute: float = 0.0, descriptors_per_minute: float = 0.0) -> Life:
    """A process looked at every five seconds, after a jump while it warmed up."""
    samples = [Sample(0.0, 20.0, 3)]
    for step in range(3, int(minutes * 12)):
        minute = step / 12
        samples.append(Sample(minute * 60, 60 + rss_per_minute * minute, round(15 + descriptors_per_minute * minute)))
    return Life(pid, 2, samples)


def outcome(account: Account = GOOD, *lives: Life) -> Outcome:
    return Outcome(seed=1, seconds=3600, account=account, repeated=1, lives=list(lives or (life(1),)), looks=700)


def test_a_good_run_is_good() -> None:
    found = outcome()
    assert found.problems() == []
    assert found.status == 0
    assert "all is well" in report(found)
    assert found.may_repeat == 3


@pytest.mark.parametrize(("account", "words", "status"), [
    (replace(GOOD, missing=[("device-0001", 7)]), "1 messages are missing: [('device-0001', 7)]", 3),
    (replace(GOOD, strangers=[("x", 0)]), "of no message", 1),
    (replace(GOOD, out_of_order=["device-0001: 3 after 4"]), "out of order", 1),
    (replace(GOOD, copies=4), "4 copies, but only 3 messages were sent again", 1),
])  # fmt: skip
def test_a_bad_account_is_bad(account: Account, words: str, status: int) -> None:
    found = outcome(account)
    assert any(words in problem for problem in found.problems()), found.problems()
    assert found.status == status
    assert "FAILED" in report(found)


@pytest.mark.parametrize("grown", [{"rss_per_minute": 0.5}, {"descriptors_per_minute": 0.5}])
def test_what_grows_is_noticed(grown: dict[str, float]) -> None:
    found = outcome(GOOD, life(1, **grown))
    (problem,) = found.problems()
    assert "grow" in problem
    assert found.status == 1


def test_growth_in_each_of_many_lives_is_noticed_although_each_begins_anew() -> None:
    """Each has a line of its own: a restart must not hide a leak."""
    lives = [life(pid, minutes=30, rss_per_minute=0.5) for pid in range(10)]
    assert all(slope_per_minute(one, MEMORY) == pytest.approx(0.5) for one in lives)
    assert len(outcome(GOOD, *lives).problems()) == 10


def test_one_life_that_grows_is_not_lost_among_many_that_do_not() -> None:
    (problem,) = outcome(GOOD, *(life(pid) for pid in range(9)), life(9, minutes=20, rss_per_minute=0.5)).problems()
    assert "process 9" in problem


@pytest.mark.parametrize(("minutes", "leak"), [(10, 0.45), (60, 0.12), (600, 0.06)])
def test_the_longer_a_life_the_smaller_the_leak_that_shows(minutes: float, leak: float) -> None:
    assert outcome(GOOD, life(1, minutes=minutes, rss_per_minute=leak)).problems()
    assert outcome(GOOD, life(1, minutes=minutes, rss_per_minute=leak / 2)).problems() == []


def test_a_step_of_the_allocator_is_no_leak() -> None:
    """Wherever it falls: a line through a step rises by 1.5 times the step at most."""
    for at in range(5, 60, 5):
        one = life(1)
        one.samples = [s._replace(rss_mib=s.rss_mib + 2.0 * (s.at_s > at * 60)) for s in one.samples]
        assert outcome(GOOD, one).problems() == [], at


def test_a_level_that_differs_between_lives_is_no_growth() -> None:
    low, high = life(1), life(2)
    high.samples = [sample._replace(rss_mib=sample.rss_mib + 20) for sample in high.samples]
    assert outcome(GOOD, low, high).problems() == []


def test_a_moment_is_too_short_to_call_noise_growth() -> None:
    short = outcome(GOOD, life(1, minutes=3, rss_per_minute=3.0))
    assert judged(short.lives) == []
    assert short.problems() == []
    assert "0 long enough" in report(short)


def test_the_warm_up_of_a_life_is_left_out() -> None:
    assert slope_per_minute(life(1), MEMORY) == pytest.approx(0, abs=1e-9)
    assert slope_per_minute(life(1), DESCRIPTORS) == pytest.approx(0, abs=1e-9)
    assert life(1).settled_s == pytest.approx(3600 - 120, abs=6)
    assert life(1, minutes=1).settled_s == pytest.approx(30, abs=6)
    assert slope_per_minute(Life(1, 0, [Sample(0, 1, 1)]), MEMORY) == 0


def test_an_account_out_of_balance_or_never_looked_at_is_bad() -> None:
    assert replace(outcome(), imbalances=[2.0]).status == 1
    assert replace(outcome(), final_imbalance=-1.0).status == 1
    assert replace(outcome(), looks=0).status == 1
    assert Outcome(seed=1).status == 1


@pytest.mark.parametrize("silences", [2, ANSWERS])
def test_a_gateway_that_does_not_answer_in_time_is_asked_again_but_not_for_ever(
    silences: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [TimeoutError()] * silences

    def get(_gateway: Gateway, _path: str) -> tuple[int, str]:
        if left:
            raise left.pop()
        return 200, "x_total 7"

    monkeypatch.setattr(Gateway, "get", get)
    asked = Asked(tmp_path, 1, {})
    if silences < ANSWERS:
        assert asked.metric("x_total") == 7
        assert asked.unanswered == silences
    else:
        with pytest.raises(TimeoutError):
            asked.metric("x_total")
    assert str(silences) in report(replace(outcome(), unanswered=silences))

"""The detectors on numbers alone: what they find, what not, and that their state survives being packed."""

from __future__ import annotations

import csv
import math
import statistics
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.detector_state import DeviceDetector
from streaming.detectors import Habit, Limits, SignalWindow, mad_of, median_of, severity
from tests.unit.sensor_series import SERIES, Series, score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streaming.detectors import Silence, Verdict

SECOND = 1_000_000
RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
NO_FLOOR = Limits(scale_share=0.0)

numbers = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False).map(lambda x: round(x, 3))


def judged(values: Iterable[float], limits: Limits = NO_FLOOR, signal: str = "") -> list[Verdict | None]:
    window = SignalWindow(limits, signal)
    return [window.judge(index * SECOND, value) for index, value in enumerate(values)]


def kinds(values: Iterable[float], limits: Limits = NO_FLOOR) -> dict[int, str]:
    """Position -> kind, of what is an anomaly."""
    verdicts = enumerate(judged(values, limits))
    return {at: verdict.kind for at, verdict in verdicts if verdict is not None and verdict.kind != "score"}


def noise(count: int, seed: int = 1, sigma: float = 0.1) -> list[float]:
    random = Random(seed)
    return [20.0 + random.gauss(0.0, sigma) for _ in range(count)]


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(numbers | st.integers(-3, 3).map(float), min_size=1, max_size=40))
def test_median_and_mad_are_what_the_books_say(values: list[float]) -> None:
    ordered = sorted(values)
    middle = median_of(ordered)
    assert middle == statistics.median(values)
    expected = statistics.median([abs(value - middle) for value in values])
    assert mad_of(ordered, middle) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=60)
@given(
    st.lists(st.integers(-40, 40).map(float), min_size=25, max_size=90),
    st.sampled_from([0.25, 1.0, 8.0, 1024.0]),
    st.sampled_from([-4096.0, 0.0, 512.0]),
)
def test_a_score_is_the_same_in_other_units_and_from_another_zero(
    values: list[float], scale: float, shift: float
) -> None:
    """Powers of two, so that floating point itself adds nothing."""
    plain = judged(values)
    moved = judged([value * scale + shift for value in values])
    assert [v and (v.kind, v.score, v.run) for v in plain] == [v and (v.kind, v.score, v.run) for v in moved]


@settings(max_examples=60)
@given(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=150), st.integers(0, 150))
def test_state_that_was_packed_and_unpacked_goes_on_as_if_nothing_had_been(values: list[float], cut: int) -> None:
    limits = Limits(window=20, warm_up=8, stuck_after=6)
    whole, parts = DeviceDetector(limits), DeviceDetector(limits)
    for at, value in enumerate(values):
        if at == cut:
            parts = DeviceDetector.unpack(parts.pack(), limits)
        moment = at * SECOND
        assert whole.window("a").judge(moment, value) == parts.window("a").judge(moment, value)
        for detector in (whole, parts):
            detector.habit.heard(moment, moment, moment)
    assert whole.pack() == parts.pack()


def test_a_shorter_window_after_a_restart_cuts_what_was_kept() -> None:
    detector = DeviceDetector(Limits())
    for at, value in enumerate(noise(100)):
        detector.window("temperature").judge(at * SECOND, value)
    shorter = DeviceDetector.unpack(detector.pack(), Limits(window=30))
    assert len(shorter.window("temperature").readings) == 30


def test_the_state_of_a_device_with_four_signals_has_the_size_that_is_documented() -> None:
    detector = DeviceDetector(Limits())
    for signal in ("temperature", "humidity", "voltage", "rssi"):
        for at, value in enumerate(noise(100)):
            detector.window(signal).judge(at * SECOND, value)
    for at in range(100):
        detector.habit.heard(at * SECOND, at * SECOND, at * SECOND)
    assert 4000 < len(detector.pack()) < 4400


# ── what is found ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_steady_noise_is_no_anomaly() -> None:
    assert len(kinds(noise(20_000))) <= 2


def test_a_spike_is_found_once_and_does_not_disturb_what_follows() -> None:
    values = noise(200)
    values[100] += 2.0
    assert kinds(values) == {100: "outlier"}


def test_a_burst_of_spikes_does_not_become_normal() -> None:
    values = noise(300)
    for at in range(100, 160, 4):
        values[at] += 5.0
    assert set(kinds(values)) == set(range(100, 160, 4))


def test_a_step_is_told_until_it_has_lasted_and_is_normal_then() -> None:
    values = noise(100) + [value + 5.0 for value in noise(200, seed=2)]
    found = kinds(values)
    assert list(found) == list(range(100, 120))
    assert found[100] == "outlier"
    assert found[119] == "level"
    runs = [verdict.run for verdict in judged(values)[100:120] if verdict is not None]
    assert runs == [*range(1, 20), 0], "the first of its run says that an event begins"


def test_coming_back_to_a_level_that_was_long_normal_is_no_anomaly() -> None:
    values = noise(100) + [value + 5.0 for value in noise(100, seed=2)] + noise(100, seed=3)
    assert all(at < 200 for at in kinds(values))


def test_a_sensor_that_gets_stuck_is_told_once() -> None:
    values = noise(100) + [20.05] * 200 + noise(50, seed=2)
    assert kinds(values) == {159: "stuck"}


def test_a_signal_that_never_changed_is_not_stuck_and_one_that_often_rests_only_after_far_longer() -> None:
    assert kinds([21.0] * 500) == {}
    resting = [value for at in range(30) for value in [20.0 + at % 3] * 30]
    assert "stuck" not in kinds([*resting, *[21.0] * 110]).values()
    assert "stuck" in kinds([*resting, *[21.0] * 140]).values()


def test_drift_slower_than_the_noise_is_not_found() -> None:
    """Said in the docs: the median goes along. Ten times the noise in 1,000 readings."""
    assert kinds([value + 0.001 * at for at, value in enumerate(noise(1000))]) == {}


def test_a_quiet_signal_that_begins_to_move_smoothly_is_no_anomaly() -> None:
    """A room that begins to be heated: far from the median soon, without ever having jumped."""
    random = Random(4)
    values = [18.0 + max(0, at - 100) * 0.03 + random.gauss(0.0, 0.03) for at in range(200)]
    assert kinds(values) == {}


def test_a_constant_signal_may_change_by_the_floor_and_no_more() -> None:
    limits = Limits(scale_share=0.005)
    assert kinds([230.0] * 50 + [231.0], limits) == {}
    assert kinds([230.0] * 50 + [237.5], limits) == {50: "outlier"}
    own = Limits(min_scale={"voltage": 2.0})
    assert judged([230.0] * 50 + [237.5], own, "voltage")[-1] == (  # 7.5 V are 3.75 times 2 V
        "score",
        3.75,
        230.0,
        0.0,
        0,
    )


def test_a_coarse_sensor_is_measured_by_its_own_step() -> None:
    """Three in four readings are one value: MAD is 0, and one step of the last digit no anomaly."""
    values = [-70.0, -70.0, -71.0, -70.0] * 20
    assert kinds([*values, -72.0]) == {}
    assert kinds([*values, -90.0]) == {80: "outlier"}


def test_a_change_of_a_signal_that_was_always_zero_is_an_anomaly_of_endless_score() -> None:
    verdict = judged([0.0] * 30 + [1.0])[-1]
    assert verdict is not None
    assert (verdict.kind, verdict.score) == ("outlier", math.inf)


def test_nothing_is_said_while_the_window_warms_up_or_after_an_absence_longer_than_it() -> None:
    limits = Limits(window_us=3600 * SECOND)
    window = SignalWindow(limits)
    values = noise(60)
    told = [window.judge(at * SECOND, value) for at, value in enumerate(values)]
    assert told[:20] == [None] * 20
    assert None not in told[20:]
    assert window.judge(3 * 3600 * SECOND, 99.0) is None, "what was normal before is too old to be asked"
    assert window.judge(0, 20.0) is None, "a reading from before the window is not measured by it"


def test_severity_rises_with_the_score() -> None:
    limits = Limits(threshold=6.0)
    assert severity("score", 5.0, limits) == "info"
    assert severity("outlier", 6.0, limits) == "warning"
    assert severity("outlier", 12.0, limits) == "critical"
    assert severity("level", 99.0, limits) == "warning"


# ── silence ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def spoken(habit: Habit, times_s: Iterable[float]) -> None:
    for time_s in times_s:
        now = round(time_s * SECOND)
        habit.heard(now, now, now)


def silences(habit: Habit, clock_s: Iterable[float]) -> list[tuple[float, Silence]]:
    """What looks find while the stream's clock stands at these moments, as Spark's timers would have them."""
    found = []
    for now_s in clock_s:
        planned = habit.plan() or habit.look_at_us
        if planned and planned <= now_s * SECOND:
            silence = habit.look(round(now_s * SECOND))
            if silence is not None:
                found.append((now_s, silence))
    return found


def test_a_device_that_falls_silent_while_others_speak_is_told_once() -> None:
    habit = Habit(Limits())
    spoken(habit, range(0, 1000, 60))
    found = silences(habit, range(960, 4000, 5))
    assert [silence for _, silence in found] == [(300 * SECOND, 60 * SECOND)]
    assert 1260 <= found[0][0] <= 1280


@pytest.mark.parametrize("outage_s", [120.0, 3_600.0, 86_400.0])
def test_an_outage_of_the_whole_stream_is_nobodys_silence(outage_s: float) -> None:
    """The stream's clock stands still, then jumps; the device speaks again within its usual interval."""
    habit = Habit(Limits())
    spoken(habit, range(0, 1000, 60))
    back_s = 990 + outage_s
    found = silences(habit, [965, 990, *(back_s + 5 * step for step in range(12))])
    assert found == []
    spoken(habit, [back_s + 60])
    assert silences(habit, [back_s + 60 + 5 * step for step in range(20)]) == []


def test_a_device_that_is_gone_after_an_outage_is_told_when_the_stream_has_gone_on_long_enough() -> None:
    habit = Habit(Limits())
    spoken(habit, range(0, 1000, 60))
    assert len(silences(habit, [965, *range(90_000, 91_000, 5)])) == 1


def test_pauses_between_bursts_are_a_habit_and_few_outages_are_none() -> None:
    habit = Habit(Limits())
    bursts = [start + step for start in range(0, 6000, 600) for step in (0, 1, 2, 3)]
    spoken(habit, bursts)
    assert habit.usual_us == 597 * SECOND
    steady = Habit(Limits())
    spoken(steady, [0, 60, 120, 7200, 7260, 7320, 7380, 14_000, *range(14_060, 15_000, 60)])
    assert steady.usual_us == 60 * SECOND


def test_a_device_whose_habit_is_not_known_yet_cannot_be_silent() -> None:
    habit = Habit(Limits())
    spoken(habit, range(0, 300, 60))
    assert habit.plan() is None
    assert silences(habit, range(300, 9000, 50)) == []


def test_a_device_that_speaks_often_is_given_the_least_silence() -> None:
    habit = Habit(Limits())
    spoken(habit, range(100))
    found = silences(habit, range(100, 1000))
    assert [round(now_s) for now_s, _ in found] == [219]


# ── precision and recall, against labels ─────────────────────────────────────────────────────────────────────────────


def flags(series: Series, limits: Limits) -> set[int]:
    window = SignalWindow(limits)
    found = set()
    for at, (moment_us, value) in enumerate(series.readings):
        verdict = window.judge(moment_us, value)
        if verdict is not None and verdict.kind != "score":
            found.add(at)
    return found


@pytest.mark.parametrize("make", SERIES, ids=lambda make: make.__name__)
def test_made_series_are_found_with_stated_precision_and_recall(make: Callable[[int], Series]) -> None:
    """Over 20 seeds of each kind, at the defaults; the measured numbers are in docs/streaming.md."""
    made = [make(seed) for seed in range(20)]
    precision, recall = score([(one.labels, flags(one, Limits())) for one in made])
    assert precision >= made[0].least_precision, (precision, recall)
    assert recall >= made[0].least_recall, (precision, recall)


def test_the_recording_of_a_water_flow_is_found_with_stated_precision_and_recall() -> None:
    """The labels of tests/recordings/README.md: three cuts and a peak, 47 readings of 1,268."""
    with (RECORDINGS / "water-flow.csv").open() as file:
        readings = [
            (round(datetime.fromisoformat(row["time"]).timestamp()) * SECOND, float(row["flow_l_per_s"]))
            for row in csv.DictReader(file)
        ]
    labels = {*range(93, 109), *range(211, 224), *range(872, 888), 328, 329}
    found = flags(Series(readings, frozenset(labels), 0.0, 0.0), Limits())
    precision, recall = score([(frozenset(labels), found)])
    assert precision >= 0.84
    assert recall >= 0.95
    for first, last in ((93, 108), (211, 223), (872, 887), (328, 329)):
        assert found & set(range(first, last + 1)), f"nothing was found between {first} and {last}"

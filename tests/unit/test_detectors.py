"""The detectors on numbers alone: what they find, what not, and that their state survives being packed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from streaming.anomalies.detectors import Habit, Limits, SignalModel, Silence, Verdict, severity
from streaming.anomalies.processor import Detect, DeviceDetector
from tests.unit.sensor_series import SERIES, Series, score

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY = 1440  # minutes
MONDAY = 4 * 86_400 * SECOND  # 1970 began on a Thursday
RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
NO_FLOOR = Limits(scale_share=0.0)


def judged(values: Iterable[float], limits: Limits = NO_FLOOR, signal: str = "") -> list[Verdict | None]:
    """One reading a minute, from a Monday's midnight on."""
    model = SignalModel(limits, limits.min_scale.get(signal, 0.0))
    return [model.judge(MONDAY + index * MINUTE, value) for index, value in enumerate(values)]


def kinds(values: Iterable[float], limits: Limits = NO_FLOOR) -> dict[int, str]:
    """Position -> kind, of what is an anomaly."""
    verdicts = enumerate(judged(values, limits))
    return {at: verdict.kind for at, verdict in verdicts if verdict is not None and verdict.kind != "score"}


def noise(count: int, seed: int = 1, sigma: float = 0.1) -> list[float]:
    random = Random(seed)
    return [20.0 + random.gauss(0.0, sigma) for _ in range(count)]


# ── the arithmetic and the state ─────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60)
@given(st.lists(st.integers(-40, 40).map(float), min_size=25, max_size=90), st.sampled_from([0.25, 1.0, 8.0, 1024.0]))
def test_a_score_is_the_same_in_other_units(values: list[float], scale: float) -> None:
    """Powers of two, so that floating point itself adds nothing."""
    limits = Limits(scale_share=0.0, warm_up=10)
    plain = judged(values, limits)
    scaled = judged([value * scale for value in values], limits)
    assert [v and (v.kind, v.score) for v in plain] == [v and (v.kind, v.score) for v in scaled]


@settings(max_examples=60)
@given(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=150), st.integers(0, 150))
def test_state_that_was_packed_and_unpacked_goes_on_as_if_nothing_had_been(values: list[float], cut: int) -> None:
    limits = Limits(warm_up=8, stuck_after=6)
    whole, parts = DeviceDetector(limits), DeviceDetector(limits)
    for at, value in enumerate(values):
        if at == cut:
            parts = DeviceDetector.unpack(parts.pack(), limits)
        moment = at * 20 * MINUTE
        assert whole.signal("a").judge(moment, value) == parts.signal("a").judge(moment, value)
        for detector in (whole, parts):
            detector.habit.heard(moment, moment, moment)
    assert whole.pack() == parts.pack()


def test_the_state_of_a_device_with_four_signals_has_the_size_that_is_documented() -> None:
    detector = DeviceDetector(Limits())
    for signal in ("temperature", "humidity", "voltage", "rssi"):
        for at, value in enumerate(noise(100)):
            detector.signal(signal).judge(at * SECOND, value)
    for at in range(100):
        detector.habit.heard(at * SECOND, at * SECOND, at * SECOND)
    assert 2600 < len(detector.pack()) < 2700


class State:
    """Spark's state of one device, between batches."""

    def __init__(self) -> None:
        self.kept: tuple[str | None, bytes] | None = None

    def getValueState(self, _name: str, _schema: str) -> State:  # noqa: N802 (Spark's name)
        return self

    def get(self) -> tuple[str | None, bytes] | None:
        return self.kept

    def update(self, value: tuple[str | None, bytes]) -> None:
        self.kept = value

    def registerTimer(self, _at_ms: int) -> None:  # noqa: N802 (Spark's name)
        pass


def detected(rows: list[Row], cuts: set[int], random: Random) -> tuple[list[Row], bytes]:
    """What the job finds in the rows, cut into batches whose rows come in any order, and the signal's state at the end.
    The habit's also has when the next look is planned, which is once a batch."""
    state, found = State(), []
    for begin, end in pairwise(sorted({0, len(rows), *cuts})):
        detect = Detect(Limits(), ("temperature",), 1.0)
        detect.init(state)  # type: ignore[arg-type]
        batch = random.sample(rows[begin:end], end - begin)
        found += detect.handleInputRows(("room-1",), iter(batch), None)  # type: ignore[arg-type]
    return found, state.kept[1][-576 - len("temperature") :]


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(1, 399), max_size=12), st.randoms(use_true_random=True))
def test_what_is_found_does_not_depend_on_the_cuts_of_batches(cuts: set[int], random: Random) -> None:
    values = noise(400)
    for at in range(70, 400, 90):
        values[at] += 3.0
    rows = [
        Row(event_us=at * MINUTE, record_id=f"{at:04}", measurements=[value], type="room", received_us=at * MINUTE,
            ingested_us=at * MINUTE)
        for at, value in enumerate(values)
    ]  # fmt: skip
    whole, state = detected(rows, set(), random)
    assert [row.event_time.minute for row in whole if row.kind != "score"] == [at % 60 for at in range(70, 400, 90)]
    assert detected(rows, cuts, random) == (whole, state)


# ── what is found ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_steady_noise_gives_one_alert_in_ten_thousand_readings() -> None:
    assert sum(len(kinds(noise(20_000, seed))) for seed in range(3)) <= 8


def test_a_burst_of_spikes_is_one_incident_and_does_not_become_normal() -> None:
    values = noise(600)
    for at in range(200, 260, 4):
        values[at] += 5.0
    values[500] += 5.0
    assert kinds(values) == {200: "outlier", 500: "outlier"}


def test_what_a_signal_often_does_is_reported_a_few_times() -> None:
    """A spike of the same height each hour."""
    values = noise(2000)
    for at in range(200, 2000, 60):
        values[at] += 1.0
    found = sorted(kinds(values))
    assert found[:3] == [200, 260, 320]
    assert 3 <= len(found) <= 8
    values.append(25.0)
    assert len(values) - 1 in kinds(values), "five times as high is not usual"


def test_a_step_is_one_incident_and_is_normal_after_a_day() -> None:
    values = noise(8 * DAY) + [value + 5.0 for value in noise(2 * DAY, seed=2)]
    values[9 * DAY + 200] += 5.0
    found = kinds(values)
    assert {8 * DAY: "outlier", 9 * DAY + 200: "outlier"}.items() <= found.items()
    assert len(found) <= 3, "one more while the hours settle"


def test_a_small_step_that_no_single_reading_shows_is_a_level() -> None:
    low = noise(4 * DAY)
    steps = [value + 0.36 for value in noise(150, seed=2, sigma=0.01)]
    ((at, kind),) = kinds([*low, *steps]).items()
    assert (kind, 4 * DAY < at < 4 * DAY + 150) == ("level", True)


def daily(days: int, seed: int = 5, weekend: float = 1.0) -> list[float]:
    """One reading a minute: 10 at night and 20 by day, on Saturday and Sunday less."""
    random = Random(seed)
    return [
        (20.0 if 8 <= at % DAY // 60 < 18 and (weekend == 1.0 or at // DAY % 7 < 5) else 10.0) + random.gauss(0.0, 0.3)
        for at in range(days * DAY)
    ]


def test_a_day_as_every_day_is_no_anomaly_and_a_day_without_its_rise_is_one() -> None:
    """The first morning and the first evening are news."""
    values = daily(7)
    values[6 * DAY + 480 : 6 * DAY + 1080] = [value - 10.0 for value in values[6 * DAY + 480 : 6 * DAY + 1080]]
    assert list(kinds(values)) == [480, 1080, 6 * DAY + 480]


def test_weekends_have_hours_of_their_own() -> None:
    """The first Saturday is news, the Monday after it and the next Saturday are not."""
    assert list(kinds(daily(21, weekend=0.0))) == [480, 1080, 5 * DAY + 480]


def test_a_sensor_that_gets_stuck_is_told_once() -> None:
    values = noise(100) + [20.05] * 200 + noise(50, seed=2)
    assert kinds(values) == {159: "stuck"}


def test_a_signal_that_never_changed_is_not_stuck_and_one_that_often_rests_only_after_far_longer() -> None:
    assert kinds([21.0] * 500) == {}
    resting = [value for at in range(30) for value in [20.0 + at % 3] * 30]
    assert "stuck" not in kinds([*resting, *[21.0] * 110]).values()
    assert "stuck" in kinds([*resting, *[21.0] * 140]).values()


def test_drift_slower_than_the_noise_is_not_found() -> None:
    """Said in the docs: the means go along. Ten times the noise in 10,000 readings."""
    assert kinds([value + 0.0001 * at for at, value in enumerate(noise(10_000))]) == {}


def test_a_constant_signal_may_change_by_the_floor_and_no_more() -> None:
    limits = Limits(scale_share=0.005)
    assert kinds([230.0] * 90 + [231.0], limits) == {}
    assert kinds([230.0] * 90 + [237.5], limits) == {90: "outlier"}
    own = Limits(min_scale={"voltage": 2.5})
    assert judged([230.0] * 90 + [237.5], own, "voltage")[-1] == ("score", 1.0, 230.0, 2.5)  # 7.5 V are 3 times 2.5 V


def test_a_coarse_sensor_is_measured_by_its_own_spread() -> None:
    """Three in four readings are one value: one step of the last digit is no anomaly."""
    values = [-70.0, -70.0, -71.0, -70.0] * 30
    assert kinds([*values, -71.0, -71.0]) == {}
    assert kinds([*values, -90.0]) == {120: "outlier"}


def test_a_change_of_a_signal_that_was_always_zero_is_an_anomaly_of_the_highest_score() -> None:
    verdict = judged([0.0] * 90 + [1.0])[-1]
    assert (verdict.kind, verdict.score) == ("outlier", 10.0)


def test_nothing_is_said_while_the_signal_warms_up() -> None:
    told = judged(noise(80))
    assert told[:60] == [None] * 60
    assert None not in told[60:]


def test_a_power_on_value_at_the_very_first_hides_nothing_later() -> None:
    """85 °C of a DS18B20. Learned from, it hid such a spike for more than 6,000 readings."""
    assert kinds([85.0, *noise(1500), 25.0]) == {1501: "outlier"}


@pytest.mark.parametrize("at", range(1, 10))
def test_nor_does_a_broken_one_soon_after(at: int) -> None:
    for broken in (-127.0, 1e160):
        assert kinds([*noise(at), broken, *noise(1500), 25.0]) == {at + 1501: "outlier"}


def test_what_has_no_square_is_found_and_hides_no_change_of_a_signal_that_was_always_zero() -> None:
    assert kinds([0.0] * 90 + [1e160] + [0.0] * 90 + [1.0]) == {90: "outlier", 181: "outlier"}


def test_what_is_learned_does_not_depend_on_the_threshold() -> None:
    values = noise(500)
    for at in range(100, 500, 50):
        values[at] += 1.0
    low, high = (judged(values, Limits(scale_share=0.0, threshold=threshold)) for threshold in (1.0, 3.0))
    assert [v and v[1:] for v in low] == [v and v[1:] for v in high]


def test_severity_rises_with_the_score() -> None:
    limits = Limits(threshold=1.25)
    assert severity("score", 1.0, limits) == "info"
    assert severity("outlier", 1.25, limits) == "warning"
    assert severity("outlier", 2.5, limits) == "critical"
    assert severity("level", 9.0, limits) == "warning"


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
    assert silences(habit, [965, 990, *(back_s + 5 * step for step in range(12))]) == []
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
    assert [round(now_s) for now_s, _ in silences(habit, range(100, 1000))] == [219]


# ── precision and recall, against labels ─────────────────────────────────────────────────────────────────────────────


def alerts(series: Series) -> list[int]:
    model = SignalModel(Limits())
    verdicts = enumerate(model.judge(moment_us, value) for moment_us, value in series.readings)
    return [at for at, verdict in verdicts if verdict is not None and verdict.kind != "score"]


@pytest.mark.parametrize("make", SERIES, ids=lambda make: make.__name__)
def test_made_series_are_found_with_stated_precision_and_recall(make: Callable[[int], Series]) -> None:
    """Over 20 seeds of each kind, at the defaults; the measured numbers are in docs/streaming.md."""
    made = [make(seed) for seed in range(20)]
    precision, recall = score([(one.labels, alerts(one)) for one in made])
    assert precision >= made[0].least_precision, (precision, recall)
    assert recall >= made[0].least_recall, (precision, recall)


def test_the_recording_of_a_water_flow_is_found_with_stated_precision_and_recall() -> None:
    """The labels of tests/recordings/README.md: three cuts and a peak. The cuts are found, each with one alert."""
    with (RECORDINGS / "water-flow.csv").open() as file:
        readings = [
            (round(datetime.fromisoformat(row["time"]).timestamp()) * SECOND, float(row["flow_l_per_s"]))
            for row in csv.DictReader(file)
        ]
    labels = frozenset({*range(93, 109), *range(211, 224), *range(872, 888), 328, 329})
    found = alerts(Series(readings, labels, 0.0, 0.0))
    assert score([(labels, found)]) == (1.0, 0.75)
    assert len(found) == 3

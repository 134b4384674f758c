"""The scorer of the Numenta Anomaly Benchmark: its fixed points, and that it counts what the detector reports."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from streaming.anomalies.detectors import Limits, SignalModel
from tests.bench.nab import Series, best, incidents, load, outcome, rolling_z, scored_by, windowed_gaussian

MINUTE = 60_000_000


def series(count: int = 1000, windows: tuple[tuple[int, int], ...] = ((400, 499), (700, 799))) -> Series:
    random = Random(3)
    values = [10.0 + random.gauss(0.0, 1.0) for _ in range(count)]
    for first, _ in windows:
        values[first + 2] += 20.0
    return Series("made", [(at * MINUTE, value) for at, value in enumerate(values)], windows)


def test_finding_nothing_is_0_and_finding_every_window_at_once_is_100() -> None:
    made = series()
    assert outcome([made], {}).nab == 0
    perfect = outcome([made], {"made": [400, 700]})
    assert (perfect.nab, perfect.precision, perfect.recall, perfect.f1) == (100, 1, 1, 1)
    assert outcome([made], {"made": [400, 401, 450, 700]}).nab == 100, "only the first in a window counts"


def test_late_is_worth_less_and_a_false_one_costs_as_the_paper_has_it() -> None:
    made = series(windows=((400, 499),))
    early, late, last = (outcome([made], {"made": [at]}).nab for at in (400, 480, 499))
    assert early == 100
    assert early > late > last > 50, "found at the very end it is worth nothing, but not missed: -1 is saved"
    far, near = (outcome([made], {"made": [400, at]}).nab for at in (300, 510))
    assert far == pytest.approx(100 - 100 * 0.11 / 2)
    assert far < near < 100
    assert made.weight(800) == (None, -1.0)


def test_the_probation_is_15_percent_and_at_most_750_readings() -> None:
    made = series(windows=((400, 499),))
    assert made.probation == 150
    assert replace(made, readings=made.readings * 6).probation == 750
    assert outcome([made], {"made": [100, 149]}).nab == 0
    assert outcome([made], {"made": [150]}).nab < 0


def test_what_counts_is_what_the_detector_reports() -> None:
    """The scorer puts incidents together afterwards, at any threshold; the detector while it reads."""
    made = series(4000)
    for threshold in (1.0, 1.3, 2.0):
        model = SignalModel(Limits(threshold=threshold, stuck_after=1000))
        verdicts = [model.judge(when_us, value) for when_us, value in made.readings]
        told = [at for at, verdict in enumerate(verdicts) if verdict is not None and verdict.kind != "score"]
        scores = [0.0 if verdict is None else verdict.score for verdict in verdicts]
        assert told == list(incidents(list(enumerate(scores)), threshold))
        assert told


@pytest.mark.parametrize("detector", [windowed_gaussian, rolling_z])
def test_the_plain_detectors_find_a_plain_outlier(tmp_path: Path, detector: object) -> None:
    made = series()
    (tmp_path / "data").mkdir()
    rows = [
        f"2026-11-{at // 1440 + 1:02}T{at // 60 % 24:02}:{at % 60:02}:00,{v}" for at, (_, v) in enumerate(made.readings)
    ]
    (tmp_path / "data" / "made").write_text("\n".join(["timestamp,value", *rows]))
    labels = {"made": [["2026-11-01 06:40:00.000000", "2026-11-01 08:19:00.000000"]]}
    (tmp_path / "windows.json").write_text(json.dumps(labels))
    (read,) = load(tmp_path)
    assert read.windows == [(400, 499)]
    threshold, found = best([read], scored_by([read], detector))  # type: ignore[arg-type]
    assert (found.found, found.windows) == (1, 1)
    assert threshold > 0.5

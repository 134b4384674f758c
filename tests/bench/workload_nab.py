"""The anomaly detector, and two plain ones, on series of the Numenta Anomaly Benchmark."""

import time
from collections.abc import Callable, Sequence

from streaming.anomalies.detectors import Limits, SignalModel
from tests.bench.measurement import Measurement
from tests.bench.nab import Series, best, load, outcome, rolling_z, scored_by, windowed_gaussian
from tests.bench.processes import BenchError
from tests.bench.site import Site


def _product() -> Callable[[int, float], float]:
    model = SignalModel(Limits())

    def judge(when_us: int, value: float) -> float:
        verdict = model.judge(when_us, value)
        return 0.0 if verdict is None else verdict.score

    return judge


def _alerts(one: Series) -> list[int]:
    model = SignalModel(Limits())
    verdicts = (model.judge(when_us, value) for when_us, value in one.readings)
    return [at for at, verdict in enumerate(verdicts) if verdict is not None and verdict.kind != "score"]


def _measured(
    site: Site, detector: Callable[[], Callable[[int, float], float]]
) -> tuple[Sequence[Series], Measurement]:
    if site.nab is None:
        raise BenchError("give the folder of NAB's series: --nab FOLDER")
    series = load(site.nab)
    began_ns = time.process_time_ns()
    scores = scored_by(series, detector)
    spent_ns = time.process_time_ns() - began_ns
    threshold, found = best(series, scores)
    return series, Measurement(
        {
            "nab_score": found.nab,
            "precision": found.precision,
            "recall": found.recall,
            "f1": found.f1,
            "us_per_reading": spent_ns / 1e3 / sum(len(one.readings) for one in series),
        },
        {"series": len(series), "threshold": threshold, "windows": found.windows, "false_alerts": found.false},
    )


def anomalies_nab(site: Site) -> Measurement:
    """The job's detector. The figures are at the threshold that scores highest; those of its alerts at the default
    threshold, stuck sensors included, are in the details."""
    series, measured = _measured(site, _product)
    own = outcome(series, {one.name: _alerts(one) for one in series})
    default = {"default_nab_score": own.nab, "default_precision": own.precision, "default_recall": own.recall}
    return Measurement(measured.figures, {**measured.details, **default, "default_f1": own.f1})


def nab_gaussian(site: Site) -> Measurement:
    """NAB's windowed Gaussian."""
    return _measured(site, windowed_gaussian)[1]


def nab_rolling(site: Site) -> Measurement:
    """A rolling z-score."""
    return _measured(site, rolling_z)[1]

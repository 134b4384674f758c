"""What a call of the benchmark says of its rounds, and of an earlier call."""

import copy
import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.bench import __main__ as bench
from tests.bench import against, report
from tests.bench.measurement import Figure, Measurement, Row
from tests.bench.result import Result, ratios
from tests.bench.site import Site


def never(_site: Site) -> Measurement:
    raise AssertionError("the runs are given")


def result(name: str, *cpu: float, reference: tuple[float, ...] = (100, 110)) -> Result:
    runs = [Measurement({"cpu_s_per_million": value, "messages_per_s": 1000 / value}) for value in cpu]
    return Result(Row(name, "", (), never), runs, [], list(reference))


def test_a_ratio_is_taken_round_by_round() -> None:
    """The machine was three times slower in the second round: no matter, both were."""
    (found,) = ratios([result("ours", 2, 6, 2.2), result("theirs", 40, 120, 40)], [("ours", "theirs")])
    assert (found.ratio, found.smallest, found.largest) == pytest.approx((0.05, 0.05, 0.055))
    assert found.throughput == pytest.approx(20)
    assert report.ratio_lines([found])[1] == "  ours : theirs  0.050 (0.050-0.055), 20 times the msg/s"


def test_a_row_whose_reference_step_moved_is_marked_and_so_is_its_ratio() -> None:
    calm, moved = result("calm", 2, reference=(100, 114)), result("moved", 40, reference=(100, 116, 99))
    assert (calm.moved, moved.moved) == (False, True)
    (found,) = ratios([calm, moved], [("calm", "moved")])
    assert found.moved
    assert "MOVED" in report.ratio_lines([found])[1]
    assert ["MOVED" in line for line in report.table([calm, moved])[2:]] == [False, True]


def call() -> dict[str, Any]:
    row = {"verified": True, "moved": False, "reference_ns": [100.0, 102.0]}
    return {
        "machine": {"cpu": "a", "cores": 2, "python": "CPython 3.11.7"},
        "quick": False,
        "rows": [
            {**row, "name": "ours", "cpu_s_per_million": 2.0, "rss_mib": 80.0},
            {**row, "name": "auth", "share_of_echo": 0.5},
        ],
        "ratios": [{"ours": "ours", "theirs": "theirs", "ratio": 0.05, "moved": False}],
    }


def kinds(now: dict[str, Any], then: dict[str, Any]) -> dict[str, str]:
    return {verdict.what: verdict.kind for verdict in against.verdicts(now, then, 1.15)}


def test_a_machine_half_as_fast_is_not_worse() -> None:
    now = call()
    now["rows"][0] |= {"cpu_s_per_million": 4.0, "reference_ns": [200.0, 204.0]}
    assert set(kinds(now, call()).values()) == {"same"}


@pytest.mark.parametrize(("factor", "kind"), [(1.2, "worse"), (1.1, "same"), (0.9, "same"), (0.8, "better")])
def test_each_figure_is_judged_by_the_bound(factor: float, kind: str) -> None:
    now = call()
    now["rows"][0]["cpu_s_per_million"] *= factor
    now["rows"][0]["rss_mib"] *= factor
    now["rows"][1]["share_of_echo"] /= factor
    now["ratios"][0]["ratio"] *= factor
    found = kinds(now, call())
    assert found == dict.fromkeys(
        ("ours : theirs", "ours CPU in reference steps", "ours rss_mib", "auth share_of_echo"), kind
    )


def test_what_cannot_be_judged_is_named_with_its_reason() -> None:
    now, then = call(), call()
    now["rows"][0] |= {"cpu_s_per_million": 9.0, "moved": True}
    del now["rows"][1]
    then["ratios"] = []
    found = {verdict.what: verdict.why for verdict in against.verdicts(now, then, 1.15)}
    assert found == {
        "ours CPU in reference steps": "the reference step moved",
        "ours rss_mib": "",
        "auth share_of_echo": "only the earlier call has it",
        "ours : theirs": "only the later call has it",
    }
    assert [line.split()[0] for line in against.lines(against.verdicts(now, then, 1.15))[1:]] == ["not"] * 3 + ["same"]


@pytest.mark.parametrize(
    ("change", "why"),
    [({"machine": {**call()["machine"], "cores": 4}}, "the earlier call had cores 4"),
     ({"quick": True}, "the earlier call had quick rows")],
)  # fmt: skip
def test_another_machine_or_another_size_is_not_compared(change: dict[str, Any], why: str) -> None:
    found = against.verdicts(call(), {**copy.deepcopy(call()), **change}, 1.15)
    assert {(verdict.kind, verdict.why) for verdict in found} == {("not judged", why)}


@pytest.mark.skipif(sys.platform != "linux", reason="the machine is described from Linux's /proc")
def test_exit_status_and_order_of_a_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu, failures = 2.0, list[str]()

    def run_rows(*_arguments: object) -> list[Result]:
        ours = result("commands-live", cpu)
        ours.failures += failures
        return [ours, result("baseline-commands-live", 4)]

    monkeypatch.setattr(bench, "run_rows", run_rows)
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)
    earlier = tmp_path / "earlier.json"
    call = ["--only", "auth-echo"]  # needs no Kafka
    assert bench.main([*call, "--json", str(earlier)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("commands-live : baseline-commands-live") < shown.index("target")
    cpu = 2.4
    assert bench.main([*call, "--against", str(earlier)]) == 3
    assert "worse       1.20  commands-live : baseline-commands-live" in capsys.readouterr().out
    assert bench.main([*call, "--against", str(earlier), "--bound", "25"]) == 0
    failures.append("lost")
    assert bench.main([*call, "--against", str(earlier)]) == 1
    earlier.write_text(json.dumps({"machine": {}, "rows": [], "ratios": []}))
    with pytest.raises(SystemExit, match="an older one"):
        bench.main([*call, "--against", str(earlier)])


def test_the_table_has_a_column_for_each_figure() -> None:
    assert report._COLUMNS.keys() == set(get_args(Figure))

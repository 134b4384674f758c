"""The Grafana dashboard: its file is what its description says, its panels have room, its queries ask for what exists.

Grafana itself does not run here; that every query gives data is tests/integration/test_monitoring.py's.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.monitoring import ADDED_BY_SCRAPE, ROOT, dashboard_module, known_series, rules, selectors

FILE = ROOT / "deploy" / "grafana" / "dashboards" / "gateway.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
# Grafana's own panels, and the formats its Prometheus source knows.
KINDS = {"timeseries", "stat", "heatmap", "table", "state-timeline"}
FORMATS = {"time_series", "heatmap", "table"}
# Ids of Grafana's units (packages/grafana-data, valueFormats/categories.ts).
UNITS = {"short", "cps", "s", "bytes", "Bps", "percentunit"}
VARIABLES = {variable["name"] for variable in BOARD["templating"]["list"]}


def panels() -> Iterator[dict[str, Any]]:
    """All of them, those in folded rows too, without the rows."""
    for panel in BOARD["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries() -> list[tuple[str, str, str]]:
    """Of each its panel's title, the expression and the legend."""
    return [(one["title"], target["expr"], target["legendFormat"]) for one in panels() for target in one["targets"]]


def test_the_file_is_what_the_description_says() -> None:
    assert FILE.read_text() == dashboard_module().text(), (
        "python deploy/grafana/dashboard.py > deploy/grafana/dashboards/gateway.json"
    )


def test_ids_and_titles_are_there_once() -> None:
    rows = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in (*rows, *panels())]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels()]
    # "Dead letters" is a number at the top and a picture below.
    assert {title for title in titles if titles.count(title) > 1} <= {"Dead letters"}


def test_panels_lie_within_the_grid_and_not_on_each_other() -> None:
    open_ones = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    folded = [panel["panels"] for panel in BOARD["panels"] if panel["type"] == "row" and panel["collapsed"]]
    for group in (open_ones, *folded):
        taken: dict[tuple[int, int], str] = {}
        for panel in group:
            place = panel["gridPos"]
            assert place["x"] >= 0
            assert place["x"] + place["w"] <= 24
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                    taken[x, y] = panel["title"]


def test_a_panel_is_one_that_grafana_knows() -> None:
    for panel in panels():
        title, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert panel["type"] in KINDS, title
        assert defaults["unit"] in UNITS, title
        first, *others = (step["value"] for step in defaults["thresholds"]["steps"])
        assert first is None, f"{title}: the first step is for everything below the second"
        assert others == sorted(others), title
        assert "".join(target["refId"] for target in panel["targets"]) in {"", "A", "AB", "ABC", "ABCD"}, title
        for target in panel["targets"]:
            assert target["format"] in FORMATS, title
            assert target["instant"] is not target["range"], title
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title


def test_a_query_asks_for_what_exists() -> None:
    known = known_series()
    recorded = {rule["record"] for rule in rules("record")}
    for title, expression, _ in queries():
        assert set(re.findall(r"\$(\w+)", expression)) <= VARIABLES | {"__rate_interval"}, title
        asked = selectors(re.sub(r"\$\w+", "x", expression))
        assert asked, title
        for series, labels in asked:
            if series not in recorded | {"ALERTS"}:
                assert series in known, f"{title} asks for {series}, which nobody has"
                assert labels <= known[series] | ADDED_BY_SCRAPE, f"{series} has no label {labels - known[series]}"


def test_a_legend_names_labels_that_are_there() -> None:
    for title, expression, legend in queries():
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        for label in re.findall(r"\{\{(\w+)\}\}", legend):
            series = selectors(re.sub(r"\$\w+", "x", expression))[0][0]
            there = set(grouped[0].replace(" ", "").split(",")) if grouped else known_series()[series] | ADDED_BY_SCRAPE
            assert label in there, f"{title}: {legend}"

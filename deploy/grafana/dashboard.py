"""The Grafana dashboard, printed as JSON from a short description of its panels.

    python deploy/grafana/dashboard.py > deploy/grafana/dashboards/gateway.json

Grafana's JSON says each thing a hundred times; what differs between panels is in ``panels.py``. A test compares file
and description, and runs every query against a real Prometheus. Standard library alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from panels import ROWS, Panel, Query

SCHEMA: Final = 41  # Grafana 12.1; newer ones take it as it is, older ones (from 10) ignore what they do not know
WIDTH: Final = 24  # of Grafana's grid
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


def _variable(name: str, label: str, query: str) -> Json:
    """A variable whose values Prometheus tells; all of them unless some are chosen."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


VARIABLES: Final = (
    {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "current": {"selected": True, "text": "Prometheus", "value": "prometheus"},
    },
    _variable("instance", "Gateway", "label_values(gateway_lifecycle_state, instance)"),
    _variable("worker", "Worker", 'label_values(gateway_lifecycle_state{instance=~"$instance"}, worker)'),
    _variable("auth", "Access service", "label_values(gateway_auth_connections, instance)"),
)


def _steps(panel: Panel) -> list[Json]:
    return [{"color": "green", "value": None}, *({"color": colour, "value": at} for at, colour in panel.steps)]


def _custom(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        return {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stack else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.steps else "off"},
        }
    return {"fillOpacity": 70, "lineWidth": 0} if panel.kind == "state-timeline" else {}


def _options(panel: Panel) -> Json:
    match panel.kind:
        case "stat":
            reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"colorMode": "background", "graphMode": "none", "reduceOptions": reduce, "textMode": "value"}
        case "heatmap":
            return {
                "calculate": False,
                "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "reverse": True},
                "cellGap": 1,
                "yAxis": {"unit": panel.unit},
                "legend": {"show": False},
                "tooltip": {"mode": "single", "yHistogram": False},
            }
        case "table":
            return {"showHeader": True, "cellHeight": "sm"}
        case "state-timeline":
            return {"mergeValues": True, "showValue": "never", "rowHeight": 0.8, "legend": {"showLegend": False}}
        case _:
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _target(panel: Panel, query: Query, place: int) -> Json:
    instant = panel.kind in {"stat", "table"}
    form = {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series")
    return {
        "refId": chr(ord("A") + place),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": form,
        "instant": instant,
        "range": not instant,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    up = [{"type": "value", "options": {"0": {"text": "no", "color": "red"}, "1": {"text": "yes", "color": "green"}}}]
    defaults: Json = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.kind in {"stat", "state-timeline"} else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
        "custom": _custom(panel),
        "mappings": up if panel.kind == "state-timeline" and panel.most == 1 else [],
    }
    if panel.kind == "timeseries" and panel.least is not None:
        defaults["min"] = panel.least
    if panel.kind == "timeseries" and panel.most is not None:
        defaults["max"] = panel.most
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help + (f" Empty where {panel.empty}." if panel.empty else ""),
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [_target(panel, query, place) for place, query in enumerate(panel.queries)],
    }
    if panel.kind == "table":
        hidden = dict.fromkeys(("Time", "Value", "__name__", "alertstate"), True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def dashboard() -> Json:
    """The whole of it, as Grafana reads it."""
    panels: list[Json] = []
    y, number = 0, 1
    for row in ROWS:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        head: Json = {
            "id": number, "type": "row", "title": row.title, "collapsed": row.closed, "gridPos": place, "panels": []
        }  # fmt: skip
        number, y, x, tallest = number + 1, y + 1, 0, 0
        inside: list[Json] = []
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            inside.append(_panel(panel, number, x, y))
            number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
        # Grafana keeps the panels of a closed row inside it, and those of an open one beside it.
        panels += [{**head, "panels": inside}] if row.closed else [head, *inside]
        y = y + 1 if row.closed else y + tallest
    return {
        "uid": "mqtt-kafka-gateway",
        "title": "MQTT to Kafka",
        "description": "Whether anything is lost or late on the way from EMQX to Kafka, and why.",
        "tags": ["mqtt", "kafka"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(VARIABLES)},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def text() -> str:
    """The file: a line for each panel, so that a change shows as one."""
    whole = dashboard()
    panels = whole.pop("panels")
    head = json.dumps(whole, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "panels": [\n' + ",\n".join(_lines(panels)) + "\n ]\n}\n"


def _lines(panels: list[Json]) -> list[str]:
    found = []
    for panel in panels:
        inside = panel.get("panels")
        if inside:
            head = json.dumps({**panel, "panels": []}, ensure_ascii=False).removesuffix("[]}")
            found.append(f"{head}[\n" + ",\n".join(_lines(inside)) + "\n]}")
        else:
            found.append(json.dumps(panel, ensure_ascii=False))
    return found


if __name__ == "__main__":
    sys.stdout.write(text())

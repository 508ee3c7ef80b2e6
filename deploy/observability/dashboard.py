"""Writes grafana.json, a dashboard of Grafana, from the table of its panels.

python -m deploy.observability.dashboard            writes it
python -m deploy.observability.dashboard --check    exits with 1 if it is not what it would write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deploy.observability.panels import ROWS, Panel

DASHBOARD: Final = Path(__file__).with_name("grafana.json")
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
PER_ROW: Final = 2
HEIGHT: Final = 8
WIDTH: Final = 24 // PER_ROW


def dashboard() -> dict[str, Any]:
    """Returns the dashboard in Grafana's import format."""
    return {
        "title": "fastovms",
        "uid": "fastovms",
        "description": "What fastovms serves, how fast, and what it waits for.",
        "tags": ["fastovms", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [_data_source(), *_variables()]},
        "panels": list(_panels()),
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _variables() -> Iterator[dict[str, Any]]:
    """Returns the two variables that filter the panels; the value "All" matches every text."""
    for name, label in (("model_name", "Model"), ("instance", "Instance")):
        query = f"label_values(fastovms_model_info, {name})"
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": "StandardVariableQuery"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }


def _panels() -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
            "panels": [],
        }
        top += 1
        for place, panel in enumerate(panels):
            number += 1
            yield {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.text,
                "datasource": SOURCE,
                "gridPos": {
                    "h": HEIGHT,
                    "w": WIDTH,
                    "x": place % PER_ROW * WIDTH,
                    "y": top + place // PER_ROW * HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "options": _options(panel),
                "targets": list(_targets(panel)),
            }
        top += -(-len(panels) // PER_ROW) * HEIGHT


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64},
            "yAxis": {"axisPlacement": "left", "unit": panel.unit},
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _targets(panel: Panel) -> Iterator[dict[str, Any]]:
    for place, line in enumerate(panel.lines):
        yield {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "expr": line.expression,
            "legendFormat": line.legend,
            "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            "range": True,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m deploy.observability.dashboard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    text = json.dumps(dashboard(), indent=2) + "\n"
    if parser.parse_args().check:
        return int(text != DASHBOARD.read_text())
    DASHBOARD.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

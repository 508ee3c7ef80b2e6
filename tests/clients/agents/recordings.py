"""Recorded requests of agents with shortened texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRAFFIC = Path(__file__).with_name("traffic.json")
_MAX_TEXT = 120
_HEADERS = ("user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "originator")


def shortened(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns a request with shortened texts, and the headers that identify it."""
    headers = {name: entry["headers"][name] for name in _HEADERS if name in entry["headers"]}
    return {"path": entry["path"], "headers": headers, "body": _cut(entry["body"])}


def written(traffic: dict[str, list[dict[str, Any]]]) -> str:
    """Returns the text of `TRAFFIC`, which has a line for each request."""
    agents = [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, sent)) + "\n]"
        for name, sent in traffic.items()
    ]
    return "{\n" + ",\n".join(agents) + "\n}\n"


def load() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(TRAFFIC.read_text())
    return found


def _cut(value: Any) -> Any:
    if isinstance(value, str) and "RES" not in value:
        return value[:_MAX_TEXT]
    if isinstance(value, list):
        return [_cut(element) for element in value]
    if isinstance(value, dict):
        return {key: _cut(member) for key, member in value.items() if key != "description"}
    return value

"""Reads the accepted and refused values of each field from the compatibility tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "fields.md"


def quoted(text: str, field: str) -> list[dict]:
    """Returns the values in backticks as members of a body."""
    values = [json.loads(value) for value in re.findall(r"`([^`]+)`", text)]
    return [
        value if isinstance(value, dict) and field in value else {field: value} for value in values
    ]


def examples(cell: str, field: str) -> tuple[list[dict], list[dict]]:
    found = re.search(r"[Tt]akes (.+?)(?:, refuses (.+))?$", cell)
    assert found is not None, f"{field}: a cell says what it takes and refuses: {cell}"
    taken, refused = (quoted(values or "", field) for values in found.groups())
    assert taken, field
    assert refused or cell.startswith("ignored. "), field
    return taken, refused


def section_of(title: str) -> str:
    """Returns the text from a heading to the next one."""
    text = re.split(rf"\n##+ {title}\b", DOCUMENT.read_text())[1]
    return re.split(r"\n##+ ", text)[0]


def of_files_and_batches() -> dict[str, tuple[list[dict], list[dict]]]:
    """Returns the accepted and refused values of each field of a form or of a batch, but `file`."""
    found = {}
    for line in section_of("Files and batches").splitlines():
        if line.startswith("| `") and not line.startswith("| `file` "):
            name, _, cell = (cell.strip() for cell in line.strip("|").split(" | "))
            field = name.strip("` |")
            found[field] = examples(cell.strip(" |"), field)
    return found

"""Tests of the files at the root of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fastovms import __version__
from tests.paths import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))


def test_the_changelog_describes_the_version_of_the_package() -> None:
    found = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", CHANGELOG, re.MULTILINE)
    assert found[0] == ("Unreleased", "")
    assert found[1][0] == __version__
    dates = [date for _, date in found[1:]]
    assert all(dates)
    assert dates == sorted(dates, reverse=True)


def test_the_workflow_runs_what_has_to_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    [job] = workflow["jobs"].values()
    assert {"run": ".ci/run"} in job["steps"]
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_have_the_form_of_github(path: Path) -> None:
    template = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= template.keys()
    fields = [field for field in template["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)

"""Tests of the README for a package index."""

from __future__ import annotations

import re

import pytest

from docs.package_readme import README, absolute


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md#b)", "[a](https://h/o/r/blob/v1/docs/a.md#b)"),
        ('<img src="docs/a.png">', '<img src="https://h/o/r/raw/v1/docs/a.png">'),
        ("[a](https://x/y) [b](#c)", "[a](https://x/y) [b](#c)"),
    ],
)
def test_relative_links_become_absolute(text: str, expected: str):
    assert absolute(text, "https://h/o/r/", "v1") == expected


def test_no_relative_link_is_left_in_the_readme():
    text = absolute(README.read_text(), "https://h/o/r", "v1")
    targets = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', text)
    assert len(targets) > 20
    assert all((link or picture).startswith(("https://", "#")) for link, picture in targets)

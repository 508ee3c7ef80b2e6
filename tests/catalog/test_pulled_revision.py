"""What is kept of a pull."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastovms.backends.model_files.fingerprint import fingerprint_of
from fastovms.catalog.pulled_revision import (
    PulledRevision,
    forget_pulled,
    note_pulled,
    read_pulled,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("v1", True),
        (COMMIT, True),
        (COMMIT[:7], True),
        (COMMIT[:6], False),
        (COMMIT[::-1], False),
        ("v2", False),
        ("main", False),
    ],
)
def test_what_names_it(revision: str, expected: bool) -> None:
    assert PulledRevision("v1", COMMIT).is_named(revision) is expected
    assert PulledRevision("v1", "").is_named(revision) is (revision == "v1")


@pytest.mark.parametrize("name", ["m", "q4.gguf"])
def test_it_goes_with_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    forget_pulled(path)
    path.write_text("x") if "." in name else path.mkdir()
    forget_pulled(path)
    assert read_pulled(path) is None
    pulled = PulledRevision("v1", COMMIT)
    note_pulled(path, pulled)
    assert read_pulled(path) == pulled
    assert read_pulled(tmp_path / "other") is None
    forget_pulled(path)
    assert read_pulled(path) is None
    assert os.listdir(tmp_path) == [name]


def test_it_makes_no_other_model_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = fingerprint_of(tmp_path)
    note_pulled(tmp_path, PulledRevision("v1", COMMIT))
    assert fingerprint_of(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"revision": 5, "commit": ""}', "{}"])
def test_what_cannot_be_read_is_not_known(text: str, tmp_path: Path) -> None:
    note_pulled(tmp_path, PulledRevision("v1", ""))
    [note] = tmp_path.iterdir()
    note.write_text(text)
    assert read_pulled(tmp_path) is None


@pytest.mark.parametrize(("commit", "expected"), [(COMMIT, f"v1 (commit {COMMIT})"), ("", "v1")])
def test_its_words(commit: str, expected: str) -> None:
    assert str(PulledRevision("v1", commit)) == expected

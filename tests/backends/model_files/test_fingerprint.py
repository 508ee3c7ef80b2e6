"""Equal files are one model, and others are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastovms.backends.model_files.fingerprint import fingerprint_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "openvino_model.bin").write_bytes(bytes(range(256)) * 32 * 1024)
    return directory


def test_a_copy_is_the_same_model(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "README.md").write_text("a copy")
    assert fingerprint_of(copy) == fingerprint_of(model)


@pytest.mark.parametrize("name", ["config.json", "openvino_model.bin"])
def test_other_files_are_another_model(model: Path, name: str) -> None:
    before = fingerprint_of(model)
    data = (model / name).read_bytes()
    (model / name).write_bytes(data.translate(bytes([*range(1, 256), 0])))
    assert fingerprint_of(model) != before
    (model / name).write_bytes(data + b"\0")
    assert fingerprint_of(model) != before
    (model / name).write_bytes(data)
    assert fingerprint_of(model) == before


def test_the_end_of_large_weights_counts(model: Path) -> None:
    before = fingerprint_of(model)
    with (model / "openvino_model.bin").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0")
    assert fingerprint_of(model) != before

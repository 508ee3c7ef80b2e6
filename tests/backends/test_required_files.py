"""Which directories are models."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.backends.model_task import REQUIRED_FILES, check_files
from fastovms.errors import ConfigurationError


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    for name in REQUIRED_FILES:
        (directory / name).write_text('<?xml version="1.0"?>\n<net name="x" version="11">')
    return directory


@pytest.mark.parametrize("missing", REQUIRED_FILES)
def test_missing_required_file_is_named(model_dir, missing):
    (model_dir / missing).unlink()
    with pytest.raises(ConfigurationError, match=f"has no {missing}$"):
        check_files(model_dir)


def test_path_other_than_a_model_directory_is_refused(model_dir):
    with pytest.raises(ConfigurationError, match=r"nowhere does not exist$"):
        check_files(model_dir / "nowhere")
    with pytest.raises(
        ConfigurationError, match=r"config\.json is neither a directory of a model nor a GGUF file$"
    ):
        check_files(model_dir / "config.json")


@pytest.mark.parametrize("name", [name for name in REQUIRED_FILES if name.endswith(".xml")])
@pytest.mark.parametrize("content", [b"", b"<net/>", b"version https://git-lfs", b"\xff" * 5000])
def test_no_openvino_model(model_dir, name, content):
    (model_dir / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{name} is not an OpenVINO model$"):
        check_files(model_dir)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("openvino_encoder_model.xml", "it is an encoder-decoder model"),
        ("adapter_config.json", r"it is an adapter \(LoRA\)"),
        ("model-00001-of-00002.safetensors", "it is a PyTorch model; export it"),
        ("model.onnx", "it is an ONNX model"),
    ],
)
def test_a_directory_of_another_kind_is_named(model_dir, file, reason):
    (model_dir / "openvino_model.xml").unlink()
    (model_dir / file).write_text("")
    with pytest.raises(ConfigurationError, match=reason):
        check_files(model_dir)

"""Says which files a model's directory must have, refuses one that lacks some or is of another
kind, and finds its graph and weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fastovms.errors import ConfigurationError

REQUIRED_FILES: Final = (
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "openvino_detokenizer.xml",
    "config.json",
)

ENCODER_FILES: Final = (
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "config.json",
)
"""Files of a model of embeddings, or of a reranker: they write no text, and often lack what others
write it with."""

VISION_FILES: Final = (
    "openvino_language_model.xml",
    "openvino_language_model.bin",
    "openvino_text_embeddings_model.xml",
    "openvino_text_embeddings_model.bin",
    "openvino_vision_embeddings_model.xml",
    "openvino_vision_embeddings_model.bin",
    "openvino_tokenizer.xml",
    "openvino_detokenizer.xml",
    "config.json",
)
"""Files of a model that takes images. Some have more."""

_FOREIGN_FILES: Final[Mapping[str, str]] = {
    "openvino_language_model.xml": "the language part of a larger model",
    "openvino_encoder_model.xml": "an encoder-decoder model",
    "openvino_decoder_model.xml": "an encoder-decoder model",
    "*unet*": "an image model",
    "adapter_config.json": "an adapter (LoRA), not a model",
    "*.onnx": "an ONNX model; export it with optimum-cli export openvino",
    "*.safetensors": "a PyTorch model; export it with optimum-cli export openvino",
    "pytorch_model*.bin": "a PyTorch model; export it with optimum-cli export openvino",
}
"""What directories without an openvino_model.xml may hold instead."""


def check_files(model_dir: Path) -> None:
    """Raises ConfigurationError when `model_dir` is no directory of an exported model."""
    _check(model_dir, VISION_FILES if takes_images(model_dir) else REQUIRED_FILES)


def check_encoder_files(model_dir: Path) -> None:
    """Raises ConfigurationError when `model_dir` is no directory of an exported encoder."""
    _check(model_dir, ENCODER_FILES)


def _check(model_dir: Path, required: Sequence[str]) -> None:
    if not model_dir.is_dir():
        reason = "is not a directory" if model_dir.exists() else "does not exist"
        raise ConfigurationError(f"model directory {model_dir} {reason}")
    missing = [name for name in required if not (model_dir / name).is_file()]
    for pattern, kind in _FOREIGN_FILES.items():
        if "openvino_model.xml" in missing and any(model_dir.glob(pattern)):
            raise ConfigurationError(f"{model_dir} cannot be served: it is {kind}")
    if missing:
        raise ConfigurationError(
            f"{model_dir} is not a model exported by optimum-intel: it has no {', '.join(missing)}"
        )
    for name in required:
        if name.endswith(".xml") and not is_openvino_ir(model_dir / name):
            raise ConfigurationError(f"{model_dir / name} is not an OpenVINO model")


def takes_images(model_dir: Path) -> bool:
    """Returns whether it is the directory of a vision model, as far as the names of its files
    say."""
    return (model_dir / "openvino_vision_embeddings_model.xml").is_file()


def graph_file(model_dir: Path) -> Path:
    """Returns the file with the graph of what generates the text."""
    part = "language_" if takes_images(model_dir) else ""
    return model_dir / f"openvino_{part}model.xml"


def weights_file(model_dir: Path) -> Path:
    """Returns the file with the weights of what generates the text."""
    return graph_file(model_dir).with_suffix(".bin")


def is_openvino_ir(path: Path) -> bool:
    """Returns whether a file begins like a graph of OpenVINO, which would try its other formats on
    anything else, and complain about each of them on stderr."""
    with path.open("rb") as file:
        return re.search(rb"<net\s[^>]*\bversion=", file.read(4096)) is not None

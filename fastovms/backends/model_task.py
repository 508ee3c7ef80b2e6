"""Checks a model's files, and finds its task."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fastovms.errors import ConfigurationError
from fastovms.params import Task


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file. Raises ConfigurationError if the file cannot be read, or
    is not a JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is not a JSON object")
    return value


def read_optional(path: Path) -> Any:
    """Returns the JSON value in a file; None = missing or invalid."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def is_integer(value: object) -> bool:
    """Returns whether a JSON value is an integer; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def first_integer(scopes: Sequence[dict[str, Any]], keys: Sequence[str]) -> int | None:
    """Returns the first integer at one of `keys`, searching the objects in order; None = not
    found."""
    values = (scope.get(key) for scope in scopes for key in keys)
    return next((value for value in values if is_integer(value)), None)


REQUIRED_FILES: Final = (
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "openvino_detokenizer.xml",
    "config.json",
)

DRAFT_HEAD_FILES: Final = ("openvino_model.xml", "openvino_model.bin", "config.json")

OWN_HEAD_FILE: Final = "openvino_mtp_model.xml"
"""The graph of a model's own draft head (multi-token prediction), next to the model's files."""

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
"""The files that every vision model has."""

IMAGE_INDEX: Final = "model_index.json"
"""The file that names the parts of an image generation model."""

_FOREIGN_FILES: Final[Mapping[str, str]] = {
    "openvino_language_model.xml": "the language part of a larger model",
    "openvino_encoder_model.xml": "an encoder-decoder model",
    "openvino_decoder_model.xml": "an encoder-decoder model",
    "*unet*": "an image model whose model_index.json is missing",
    "adapter_config.json": "an adapter (LoRA), not a model",
    "*.onnx": "an ONNX model; export it with optimum-cli export openvino",
    "*.safetensors": "a PyTorch model; export it with optimum-cli export openvino",
    "pytorch_model*.bin": "a PyTorch model; export it with optimum-cli export openvino",
}
"""Descriptions of well-known directories without an openvino_model.xml, by a file in them."""


def check_files(model_dir: Path) -> None:
    """Raises ConfigurationError if `model_dir` is not the directory of an exported model."""
    check_required(model_dir, VISION_FILES if takes_images(model_dir) else REQUIRED_FILES)


def check_draft_head_files(model_dir: Path) -> None:
    """Raises ConfigurationError if `model_dir` is not the directory of an exported draft head. A
    head needs no tokenizer."""
    own = (OWN_HEAD_FILE, own_head_weights(model_dir).name, "config.json")
    check_required(model_dir, own if has_own_head(model_dir) else DRAFT_HEAD_FILES)


def own_head_weights(model_dir: Path) -> Path:
    """Returns the file of the weights of a draft head of a model's own."""
    return (model_dir / OWN_HEAD_FILE).with_suffix(".bin")


def has_own_head(model_dir: Path) -> bool:
    """Returns whether a directory holds a draft head of a model's own."""
    return (model_dir / OWN_HEAD_FILE).is_file()


def check_required(model_dir: Path, required: Sequence[str]) -> None:
    """Raises ConfigurationError if `model_dir` lacks one of these files of an exported model."""
    if not model_dir.is_dir():
        if model_dir.exists():
            raise ConfigurationError(
                f"{model_dir} is neither a directory of a model nor a GGUF file"
            )
        what = "file" if model_dir.suffix == ".gguf" else "model directory"
        raise ConfigurationError(f"{what} {model_dir} does not exist")
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
    """Returns whether a directory has a vision model, by its file names."""
    return (model_dir / "openvino_vision_embeddings_model.xml").is_file()


SPEECH_TASKS: Final[Mapping[str, Task]] = {
    "whisper": Task.SPEECH,
    "qwen3_asr": Task.SPEECH,
    "speecht5": Task.SPEECH_OUT,
    "kokoro": Task.SPEECH_OUT,
}
"""The tasks of speech models, by `model_type`."""


def speech_type(model_dir: Path) -> str:
    """Returns the type of a speech model, a key of `SPEECH_TASKS`, by its config.json; "" = not a
    speech model."""
    config = read_optional(model_dir / "config.json")
    if not isinstance(config, dict):
        return ""
    kind = config.get("model_type")
    if kind in SPEECH_TASKS:
        return str(kind)
    # Kokoro's config.json has no model_type: OpenVINO GenAI recognizes it by its phoneme table.
    return "kokoro" if isinstance(config.get("vocab"), dict) else ""


def makes_images(model_dir: Path) -> bool:
    """Returns whether a directory has an image generation model, whose parts are in
    subdirectories."""
    return (model_dir / IMAGE_INDEX).is_file()


def graph_files(model_dir: Path) -> set[Path]:
    """Returns the graph files of all parts of a model."""
    pattern = "*/openvino_model.xml" if makes_images(model_dir) else "openvino_*model.xml"
    return {graph_file(model_dir), *model_dir.glob(pattern)}


def graph_file(model_dir: Path) -> Path:
    """Returns the graph file of the main part: the one that generates text or speech, or denoises
    images."""
    if makes_images(model_dir):
        folders = (model_dir / name for name in ("transformer", "unet"))
        folder = next(filter(Path.is_dir, folders), model_dir / "unet")
        return folder / "openvino_model.xml"
    part = ""
    if takes_images(model_dir):
        part = "language_"
    elif speech_type(model_dir) in ("whisper", "qwen3_asr", "speecht5"):
        part = "decoder_"
    return model_dir / f"openvino_{part}model.xml"


def weights_file(model_dir: Path) -> Path:
    """Returns the weights file of the main part; see `graph_file`."""
    return graph_file(model_dir).with_suffix(".bin")


def is_openvino_ir(path: Path) -> bool:
    """Returns whether a file begins like an OpenVINO graph. With other files, OpenVINO would try
    all its formats and print an error for each."""
    with path.open("rb") as file:
        return re.search(rb"<net\s[^>]*\bversion=", file.read(4096)) is not None


CLASSIFIER: Final = "ForSequenceClassification"
"""The suffix of the architectures of rerankers."""

LOGIT_SCORE: Final = Path("1_LogitScore", "config.json")
"""sentence_transformers' file with the tokens whose logits are a reranker's score."""

STATES: Final = ("last_hidden_state", "token_embeddings", "sentence_embedding")
"""The names of outputs from which embeddings are computed."""

LOGITS: Final = "logits"
_NAMES: Final = re.compile(rb'names="([^"]*)"')


_REFUSED: Final[Mapping[str, str]] = {
    r"qwen\d+(_\d+)?_omni": "an Omni model ({}), which hears and speaks. Serve a vision model for "
    "images, and a Whisper or Qwen3-ASR model for speech",
}
"""Descriptions of models that no backend can run although their files look supported, by
`model_type` (a regular expression)."""


def _check_kind(model_dir: Path) -> None:
    """Raises ConfigurationError for a kind of model that no backend can run."""
    config = read_optional(model_dir / "config.json")
    kind = str(config.get("model_type", "")) if isinstance(config, dict) else ""
    for pattern, what in _REFUSED.items():
        if re.match(pattern, kind):
            raise ConfigurationError(f"{model_dir} cannot be served: it is {what.format(kind)}")


def find_task(model_dir: Path, wanted: str = "auto") -> Task:
    """Returns the operator's task, or the task that the model's files imply.

    Rerankers that generate text, such as Qwen3's, look like generative models, so the operator must
    set their task unless sentence_transformers' score settings are there. Raises ConfigurationError
    if the graph does not fit the chosen task, or any task.
    """
    _check_kind(model_dir)
    graph = graph_file(model_dir)
    if not graph.is_file() or not is_openvino_ir(graph):
        # The code that loads the model reports missing or invalid files.
        found = Task.IMAGES if makes_images(model_dir) else Task.TEXT_GENERATION
        return found if wanted == "auto" else Task(wanted)
    kind = speech_type(model_dir)
    if makes_images(model_dir):
        found = Task.IMAGES
        possible = {found}
    elif kind or takes_images(model_dir):
        found = SPEECH_TASKS.get(kind, Task.TEXT_GENERATION)
        if not kind and _gives_states(model_dir, graph):
            found = Task.EMBEDDINGS
        possible = {found}
    else:
        names = _value_names(graph)
        possible = _possible(names)
        if not possible:
            raise ConfigurationError(
                f"{model_dir} cannot be served: its graph has none of the outputs "
                f"{', '.join((*STATES, LOGITS))}"
            )
        found = _likely(model_dir, possible)
    if wanted == "auto":
        return found
    task = Task(wanted)
    if task not in possible:
        raise ConfigurationError(
            f"--task {wanted} is not possible for {model_dir}: its graph is for {found.value}"
        )
    return task


_LOGITS_PORT: Final = re.compile(
    rb'type="Result"[^>]*output_names="(?:[^"]*,)?logits[",].*?<port[^>]*>(.*?)</port>', re.DOTALL
)


def _gives_states(model_dir: Path, graph: Path) -> bool:
    """Returns whether the output of a vision model has the width of a hidden state: exports of
    embedding models name that output like logits."""
    config = read_optional(model_dir / "config.json")
    if not isinstance(config, dict) or (port := _LOGITS_PORT.search(graph.read_bytes())) is None:
        return False
    text = config.get("text_config")
    width = first_integer([text if isinstance(text, dict) else {}, config], ("hidden_size",))
    return re.findall(rb"<dim>(-?\d+)</dim>", port[1])[-1:] == [str(width).encode()]


def _possible(names: set[str]) -> set[Task]:
    if names & set(STATES):
        return {Task.EMBEDDINGS}
    if LOGITS not in names:
        return set()
    return {Task.RERANK, Task.TEXT_GENERATION} if "beam_idx" in names else {Task.RERANK}


def _likely(model_dir: Path, possible: set[Task]) -> Task:
    if len(possible) == 1:
        [task] = possible
        return task
    config = read_optional(model_dir / "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    names = architectures if isinstance(architectures, list) else []
    scores = any(str(name).endswith(CLASSIFIER) for name in names)
    scores |= (model_dir / LOGIT_SCORE).is_file()
    return Task.RERANK if scores else Task.TEXT_GENERATION


def _value_names(graph: Path) -> set[str]:
    """Returns the names of a graph's inputs, outputs and other values."""
    try:
        text = graph.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {graph}: {error.strerror}") from None
    found = {name for names in _NAMES.findall(text) for name in names.decode().split(",")}
    return found & {*STATES, LOGITS, "beam_idx"}

"""Converts a GGUF file into a model directory."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import openvino as ov

from fastovms.errors import ConfigurationError
from fastovms.gguf.hyperparameters import Hyperparameters, read_hyperparameters
from fastovms.gguf.model_directory import NOT_WRITTEN, REFUSED
from fastovms.gguf.reader import GgufFile, Metadata, read_gguf
from fastovms.gguf.tokenizer import TokenizerFields, make_tokenizer_json
from fastovms.params import SamplingFields
from fastovms.request_fields import rows_by_name

_TEMPLATE: Final = "tokenizer.chat_template"
_TEMPLATE_NAME: Final = re.compile(r"[\w-]+")

_SAMPLING: Final = rows_by_name(SamplingFields, "gguf")
"""The sampling parameters that the keys `general.sampling.*` set. The defaults are llama.cpp's:
with temperature 1 and no top_k or top_p, a small model soon writes nonsense."""


def named_ids(fields: TokenizerFields) -> dict[str, int]:
    """Returns the ids of the special tokens by role, such as "bos" or "eos"."""
    ids = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    found = {name: fields.token_id(field) for name, field in ids.items()}
    return {name: token_id for name, token_id in found.items() if token_id is not None}


def text_files(
    metadata: Metadata, parameters: Hyperparameters, fields: TokenizerFields, vocab_size: int
) -> dict[str, str]:
    """Returns the contents of the model's text files by file name, in the format of optimum-intel's
    exports. `vocab_size` is the number of logits."""
    files = {
        "config.json": json.dumps(_config(parameters, fields, vocab_size)),
        "tokenizer_config.json": json.dumps(
            {f"{name}_token": fields.tokens[i] for name, i in named_ids(fields).items()}
        ),
    }
    sampling = {}
    for key, row in _SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}", row.field.defaults.get("gguf"))
        if value is not None:
            sampling[row.name] = value
    files["generation_config.json"] = json.dumps(sampling)
    return {**files, **_templates(metadata)}


def _config(
    parameters: Hyperparameters, fields: TokenizerFields, vocab_size: int
) -> dict[str, Any]:
    return {
        "model_type": parameters.name,
        "vocab_size": vocab_size,
        "max_position_embeddings": parameters.context_length,
        "sliding_window": parameters.window or None,
        "bos_token_id": fields.token_id("bos"),
        "eos_token_id": sorted(fields.end_ids()),
    }


def _templates(metadata: Metadata) -> dict[str, str]:
    """Returns the chat template and other templates, by name."""
    files: dict[str, str] = {}
    for key, value in metadata.items():
        if not isinstance(value, str) or not key.startswith(_TEMPLATE):
            continue
        name = key.removeprefix(_TEMPLATE).removeprefix(".")
        if not name:
            files["chat_template.jinja"] = value
        elif _TEMPLATE_NAME.fullmatch(name):
            files[f"additional_chat_templates/{name}.jinja"] = value
    return files


class FileHead(NamedTuple):
    """A model's metadata, hyperparameters and tokenizer fields, read without the tensors' data."""

    file: GgufFile
    parameters: Hyperparameters
    fields: TokenizerFields


def read_contents(path: Path) -> FileHead:
    """Reads the metadata of a GGUF file; takes milliseconds. Raises ConfigurationError if the file
    is broken, or its model or tokenizer is not supported."""
    file = read_gguf(path)
    try:
        return FileHead(file, read_hyperparameters(file.metadata), TokenizerFields(file.metadata))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from None


def convert(path: Path, directory: Path) -> None:
    """Writes the converted model to `directory`. Raises ConfigurationError if the file is not
    supported, and OSError if the directory cannot be written."""
    # Imported here because it loads a native library, which is not needed for reading metadata.
    from fastovms.gguf.graph import build_decoder
    from fastovms.gguf.tokenizer import build_tokenizer

    file, parameters, fields = read_contents(path)
    try:
        tokenizer_json = make_tokenizer_json(fields)
        with ThreadPoolExecutor(1) as beside:
            tokenizers = beside.submit(build_tokenizer, tokenizer_json, named_ids(fields))
            model = build_decoder(file, parameters)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from None
    vocab_size = model.output("logits").get_partial_shape()[-1].get_length()
    tokenizer, detokenizer = tokenizers.result()
    _save(tokenizer, directory / "openvino_tokenizer.xml")
    _save(detokenizer, directory / "openvino_detokenizer.xml")
    contents = text_files(file.metadata, parameters, fields, vocab_size)
    for name, content in {**contents, "tokenizer.json": json.dumps(tokenizer_json)}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    # compress_to_fp16 would round scales and norms.
    _save(model, directory / "openvino_model.xml", compress_to_fp16=False)


def _save(model: ov.Model, path: Path, **options: bool) -> None:
    """Writes a graph and its weights. Raises OSError if the disk is full or fails: OpenVINO's
    exception does not say so."""
    try:
        ov.save_model(model, path, **options)
    except RuntimeError as error:
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            errno.EIO, f"{path.name} cannot be written, {free / 1e6:.3g} MB are free: {error}"
        ) from None


def main(path: str, directory: str) -> int:
    """Converts a GGUF file in its own process and prints errors to stderr. Returns the exit status:
    0, REFUSED if the file cannot be converted, or NOT_WRITTEN."""
    try:
        convert(Path(path), Path(directory))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(" ".join(str(error.strerror or error).split()), file=sys.stderr)
        return NOT_WRITTEN
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Makes the directory of an OpenVINO model of a GGUF file: `python -m fastovms.gguf.converter FILE
DIRECTORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final, NamedTuple

import openvino as ov

from fastovms.errors import ConfigurationError
from fastovms.gguf.config_files import named_ids, text_files
from fastovms.gguf.file_reader import GgufFile, read_gguf
from fastovms.gguf.hyperparameters import Hyperparameters, read_hyperparameters
from fastovms.gguf.tokenizer_json import TokenizerFields, make_tokenizer_json

REFUSED: Final = 3
"""The exit status when the file is not taken; the last line on stderr says why."""


class FileHead(NamedTuple):
    """What a file's head says of the model in it."""

    file: GgufFile
    parameters: Hyperparameters
    fields: TokenizerFields


def read_contents(path: Path) -> FileHead:
    """Reads the head of a file, which is quick.

    Raises:
        ConfigurationError: it is broken, or holds a model or a tokenizer that is not taken.
    """
    file = read_gguf(path)
    try:
        return FileHead(file, read_hyperparameters(file.metadata), TokenizerFields(file.metadata))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from None


def convert(path: Path, directory: Path) -> None:
    """Fills `directory`.

    Raises:
        ConfigurationError: the file is not taken.
    """
    # Loads a native library, which a process that only reads heads can do without.
    from fastovms.gguf.decoder_graph import build_decoder
    from fastovms.gguf.tokenizer_graph import build_tokenizer

    file, parameters, fields = read_contents(path)
    try:
        tokenizer_json = make_tokenizer_json(fields)
        model = build_decoder(file, parameters)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from None
    vocab_size = model.output("logits").get_partial_shape()[-1].get_length()
    tokenizer, detokenizer = build_tokenizer(tokenizer_json, named_ids(fields))
    ov.save_model(tokenizer, directory / "openvino_tokenizer.xml")
    ov.save_model(detokenizer, directory / "openvino_detokenizer.xml")
    contents = text_files(file.metadata, parameters, fields, vocab_size)
    for name, content in {**contents, "tokenizer.json": json.dumps(tokenizer_json)}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    # f16 would round scales and norms.
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)


def main(path: str, directory: str) -> int:
    try:
        convert(Path(path), Path(directory))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

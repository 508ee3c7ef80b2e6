"""Creates complete model directories with random weights, of real and of tiny shapes, without
torch."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
from numpy.typing import NDArray

from bench.random_models.draft_head_graph import DraftHeadGraph, OwnHeadGraph
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES, Shape
from bench.random_models.weights import WEIGHT_FORMATS, WeightFormat
from fastovms.server_config import DEMO_MODEL

TOKENIZER_FILES = (
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def write_model(shape: Shape, directory: Path, tokenizer: Path = DEMO_MODEL, seed: int = 0) -> None:
    """Writes a complete model directory, as optimum-intel lays one out.

    The tokenizer and the end-of-text ids are those of the model directory `tokenizer`; the
    vocabulary grows when the tokenizer's is larger than the shape's. Ids that the tokenizer does
    not know are never generated, nor are parts of characters: a stream shows their text with a
    later token's, which would look like a pause. Raises FileNotFoundError when `tokenizer` lacks
    one of `TOKENIZER_FILES`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    num_tokens = _tokenizer_size(directory / "tokenizer.json")
    shape = replace(shape, vocab_size=max(shape.vocab_size, num_tokens))
    generation = json.loads((directory / "generation_config.json").read_text())
    config = _config(shape, generation["eos_token_id"], generation.get("bos_token_id"))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ov.save_model(
        LlamaGraph(shape, num_tokens, seed, _parts_of_characters(directory, num_tokens)).build(),
        directory / "openvino_model.xml",
        compress_to_fp16=WeightFormat(shape.weight_format).compress_to_fp16,
    )


def write_draft_head(
    shape: Shape,
    directory: Path,
    token_ids: NDArray[np.int64],
    *,
    config: Mapping[str, object] | None = None,
    **options: Any,
) -> None:
    """Writes an EAGLE-3 draft head, as optimum-intel lays one out, without a tokenizer.

    Args:
        shape: of the head; `vocab_size` is the target's.
        token_ids: the target's id of each token of the head's own vocabulary.
        config: further members of `config.json`.
        options: see `DraftHeadGraph`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    architecture = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(token_ids),
    }
    members = {**_config(shape, 0, 0), **architecture, **(config or {})}
    (directory / "config.json").write_text(json.dumps(members, indent=2) + "\n")
    head = DraftHeadGraph(shape, token_ids, **options).build()
    ov.save_model(head, directory / "openvino_model.xml", compress_to_fp16=False)


def write_own_head(shape: Shape, directory: Path, **options: Any) -> None:
    """Writes the draft head of a model's own (MTP) beside the files of the model, of this shape;
    for options see `OwnHeadGraph`."""
    head = OwnHeadGraph(replace(shape, convolutions=()), **options).build()
    ov.save_model(head, directory / "openvino_mtp_model.xml", compress_to_fp16=False)


def _tokenizer_size(path: Path) -> int:
    """One more than the highest id in a Hugging Face `tokenizer.json`."""
    tokenizer = json.loads(path.read_text())
    added: list[int] = [token["id"] for token in tokenizer["added_tokens"]]
    return max(len(tokenizer["model"]["vocab"]) - 1, *added) + 1


def _parts_of_characters(directory: Path, num_tokens: int) -> list[int]:
    """Returns the ids of tokens that are no text without others."""
    tokenizer = openvino_genai.Tokenizer(str(directory))
    texts = tokenizer.decode([[token_id] for token_id in range(num_tokens)])
    return [token_id for token_id, text in enumerate(texts) if "\N{REPLACEMENT CHARACTER}" in text]


def _config(shape: Shape, eos: int | list[int], bos: int | None) -> dict[str, object]:
    members = asdict(shape)
    if not shape.num_experts:
        members = {name: value for name, value in members.items() if "num_experts" not in name}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **members,
        "hidden_act": "silu",
        "bos_token_id": bos,
        "eos_token_id": eos,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.models", description=__doc__)
    parser.add_argument("name", choices=SHAPES, help="the shape")
    parser.add_argument(
        "directory", nargs="?", type=Path, help="where to write (default: bench/models/NAME)"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=DEMO_MODEL,
        metavar="DIR",
        help="model directory to take the tokenizer from (default: %(default)s)",
    )
    parser.add_argument(
        "--weights", choices=WEIGHT_FORMATS, help="their format (default: that of the shape)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    directory = options.directory or Path(__file__).with_suffix("") / options.name
    shape = SHAPES[options.name]
    if options.weights is not None:
        shape = replace(shape, weight_format=options.weights)
    start = time.perf_counter()
    try:
        write_model(shape, directory, options.tokenizer, options.seed)
    except FileNotFoundError as error:
        parser.error(f"--tokenizer: no such file: {error.filename}")
    size = (directory / "openvino_model.bin").stat().st_size / 1e6
    print(f"{directory}: {size:.0f} MB of weights in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

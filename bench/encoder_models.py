"""Creates directories of BERT-shaped models with random weights, without torch: embedding models
and rerankers with a WordPiece tokenizer."""

from __future__ import annotations

import argparse
import json
import string
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import openvino as ov
from openvino_tokenizers import tokenizer_pipeline as pipeline
from openvino_tokenizers.constants import PROCESSED_POST_PROCESSOR_NAME
from openvino_tokenizers.utils import change_outputs_type, update_rt_info_with_environment

from bench.random_models.encoder_graph import ENCODER_SHAPES, BertGraph, EncoderShape
from bench.random_models.weights import WeightFormat

PAD, UNKNOWN, CLS, SEP = range(4)
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_WORDS: Final = (
    *("the", "of", "and", "to", "in", "is", "was", "for", "on", "with", "as", "by", "at", "from"),
    *("model", "server", "text", "token", "vector", "query", "document", "answer", "question"),
    *("house", "river", "city", "light", "water", "open", "fast", "slow", "small", "large", "red"),
    *("green", "blue", "old", "new", "good", "first", "last", "people", "time", "year", "day"),
)


def write_encoder(shape: EncoderShape, directory: Path, seed: int = 0, pooling: str = "") -> None:
    """Writes a complete model directory in the format of optimum-intel.

    Args:
        pooling: "cls", "mean" or "lasttoken", written as sentence-transformers does; "" = none.
    """
    directory.mkdir(parents=True, exist_ok=True)
    kind = "SequenceClassification" if shape.num_labels else "Model"
    fields = asdict(shape)
    if shape.num_labels:
        fields["id2label"] = {str(i): f"LABEL_{i}" for i in range(shape.num_labels)}
    config = {
        "architectures": [f"BertFor{kind}" if shape.num_labels else "BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "pad_token_id": PAD,
        **fields,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if pooling:
        (directory / "1_Pooling").mkdir(exist_ok=True)
        modes = ("cls_token", "mean_tokens", "lasttoken")
        flags = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in modes}
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    ov.save_model(
        BertGraph(shape, seed).build(),
        directory / "openvino_model.xml",
        compress_to_fp16=WeightFormat(shape.weight_format).compress_to_fp16,
    )
    tokenizer = word_piece_tokenizer(shape.vocab_size, shape.max_position_embeddings)
    ov.save_model(tokenizer, directory / "openvino_tokenizer.xml", compress_to_fp16=False)


def vocabulary(size: int) -> list[str]:
    """Returns the vocabulary: special tokens, then words, letters and word pieces."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = [*_SPECIAL, *letters, *(f"##{letter}" for letter in letters), *_WORDS]
    return [*pieces, *(f"[unused{i}]" for i in range(size - len(pieces)))]


def word_piece_tokenizer(vocab_size: int, max_length: int) -> ov.Model:
    """Returns BERT's tokenizer for single texts; openvino_genai derives the one for pairs."""
    steps = pipeline.TokenizerPipeline()
    steps.add_steps(
        [
            pipeline.SpecialTokensSplit([pipeline.SpecialToken(text) for text in _SPECIAL]),
            pipeline.NormalizeUnicode("NFD"),
            pipeline.CaseFoldStep(),
            *pipeline.RegexSplitStep.bert_splitter(),
            pipeline.WordPieceTokenizationStep(vocabulary(vocab_size)),
        ]
    )
    steps.vocab = vocabulary(vocab_size)
    added = {SEP: 1, CLS: 1}
    steps.add_steps(
        [
            pipeline.TruncationStep(max_length - sum(added.values())),
            pipeline.CombineSegmentsStep(
                [
                    pipeline.AddToken(token="[CLS]", _token_id=CLS, token_type_id=0),
                    pipeline.Sequence(token_type_id=0),
                    pipeline.AddToken(token="[SEP]", _token_id=SEP, token_type_id=0),
                ]
            ),
        ]
    )
    padding = pipeline.PaddingStep()
    padding.token_id = PAD
    steps.add_steps([padding])
    subgraph = steps.get_tokenizer_ov_subgraph()
    names = ("input_ids", "token_type_ids", "attention_mask")
    outputs = [subgraph.output(name) for name in names if _has_output(subgraph, name)]
    model = ov.Model(outputs, subgraph.get_sinks(), subgraph.get_parameters(), "tokenizer")
    model = change_outputs_type(model, ov.Type.i64)
    update_rt_info_with_environment(model)
    model.set_rt_info(PAD, "pad_token_id")
    template = {
        "single": {"ids": [CLS, -1, SEP], "type_ids": [0, 0, 0]},
        "pair": {"ids": [CLS, -1, SEP, -2, SEP], "type_ids": [0, 0, 0, 1, 1]},
    }
    model.set_rt_info(json.dumps(template), PROCESSED_POST_PROCESSOR_NAME)
    return model


def _has_output(model: ov.Model, name: str) -> bool:
    return any(name in output.get_names() for output in model.outputs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.encoder_models", description=__doc__)
    parser.add_argument("name", choices=ENCODER_SHAPES, help="the shape")
    parser.add_argument("directory", type=Path, help="where to write")
    parser.add_argument("--labels", type=int, default=0, help="of a classifier (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    shape = replace(ENCODER_SHAPES[options.name], num_labels=options.labels)
    write_encoder(shape, options.directory, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

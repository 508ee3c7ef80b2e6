"""Builds OpenVINO's tokenizer and detokenizer of a tokenizer.json.

`openvino_tokenizers` reads such files only by way of transformers, whose tokenizer classes change
them. Its steps are used here one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import openvino as ov
from openvino_tokenizers import tokenizer_pipeline as pipeline
from openvino_tokenizers.constants import UTF8ReplaceMode
from openvino_tokenizers.utils import (
    change_inputs_type,
    change_outputs_type,
    update_rt_info_with_environment,
)

Json = Mapping[str, Any]


_LONGEST: Final = 2**31 - 65
"""The most tokens of a text."""


class TokenizerModels(NamedTuple):
    """Two models of text: text to token ids [batch, tokens] i64, and back."""

    tokenizer: ov.Model
    detokenizer: ov.Model


def build_tokenizer(tokenizer: Json, ids: Mapping[str, int]) -> TokenizerModels:
    """Builds the tokenizer and the detokenizer.

    Args:
        tokenizer: as `make_tokenizer_json` makes it.
        ids: those of tokens that the tokenizer's user may ask for: "bos", "eos" and "pad".
    """
    steps = pipeline.TokenizerPipeline()
    steps.add_steps(
        [
            pipeline.SpecialTokensSplit(
                [
                    pipeline.SpecialToken(each["content"], each["lstrip"], each["rstrip"])
                    for each in tokenizer["added_tokens"]
                ]
            ),
            *_normalization(tokenizer["normalizer"]),
            *_splits(tokenizer["pre_tokenizer"]),
            pipeline.BPETokenizationStep.from_hf_json(dict(tokenizer)),
        ]
    )
    steps.vocab = steps[-1].vocab
    steps.add_steps(
        [
            # Truncates nothing by itself: openvino_genai looks for it to change the length.
            pipeline.TruncationStep(_LONGEST),
            _ends(tokenizer["post_processor"]),
            _padding(ids),
        ]
    )
    steps.add_steps(_decoding(tokenizer, steps))
    of_text, of_ids = steps.get_tokenizer_ov_subgraph(), steps.get_detokenizer_ov_subgraph()
    outputs = [of_text.output(name) for name in ("input_ids", "attention_mask")]
    of_text = ov.Model(outputs, of_text.get_sinks(), of_text.get_parameters(), "tokenizer")
    models = TokenizerModels(
        change_outputs_type(of_text, ov.Type.i64), change_inputs_type(of_ids, ov.Type.i64)
    )
    for model in models:
        update_rt_info_with_environment(model)
        for name, token_id in ids.items():
            model.set_rt_info(token_id, f"{name}_token_id")
    return models


def _normalization(normalizer: Json | None) -> list[Any]:
    if normalizer is None:
        return []
    match normalizer["type"]:
        case "Sequence":
            return [step for each in normalizer["normalizers"] for step in _normalization(each)]
        case "Prepend":
            return [pipeline.RegexNormalizationStep.prepend_regex(normalizer["prepend"])]
        case "Replace":
            pattern = normalizer["pattern"]["String"]
            return [pipeline.RegexNormalizationStep(pattern, normalizer["content"])]
        case form:
            return [pipeline.NormalizeUnicode(form)]


def _splits(pre_tokenizer: Json | None) -> list[Any]:
    if pre_tokenizer is None:
        return []
    *splits, _ = pre_tokenizer["pretokenizers"]
    patterns = [each["pattern"]["Regex"] for each in splits]
    # Merged into one step, all expressions would look at the whole text.
    return [
        *(pipeline.RegexSplitStep(each, behaviour="isolate", mergeable=False) for each in patterns),
        pipeline.BytesToCharsStep(),
    ]


def _ends(post_processor: Json | None) -> Any:
    if post_processor is None:
        return pipeline.CombineSegmentsStep([pipeline.Sequence()])
    return pipeline.CombineSegmentsStep.from_hf_json_template_postprocessor(dict(post_processor))


def _padding(ids: Mapping[str, int]) -> Any:
    step = pipeline.PaddingStep()
    step.token_id = ids.get("pad", ids.get("eos", 0))
    return step


def _decoding(tokenizer: Json, steps: pipeline.TokenizerPipeline) -> list[Any]:
    added = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    special = [each["id"] for each in tokenizer["added_tokens"] if each["special"]]
    vocabulary = pipeline.VocabDecoderStep.from_hf_json(
        tokenizer_json=dict(tokenizer),
        pipeline_vocab=steps.vocab,
        added_tokens=added,
        skip_tokens=special,
        is_byte_level=steps.is_byte_level,
    )
    of_invalid = pipeline.UTF8ValidateStep(mode=UTF8ReplaceMode.REPLACE)
    if steps.is_byte_level:
        return [vocabulary, pipeline.CharsToBytesStep(), of_invalid]
    decoders = [_decoder(each) for each in tokenizer["decoder"]["decoders"]]
    return [vocabulary, *decoders, of_invalid]


def _decoder(decoder: Json) -> Any:
    match decoder["type"]:
        case "Replace":
            return pipeline.RegexDecodingStep.parse_replace_dict(dict(decoder))
        case "Strip":
            return pipeline.RegexDecodingStep.parse_strip_dict(dict(decoder))
        case "ByteFallback":
            return pipeline.ByteFallbackStep()
        case _:
            return pipeline.FuseStep()

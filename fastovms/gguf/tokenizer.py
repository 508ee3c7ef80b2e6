"""Builds the tokenizer and the detokenizer from a GGUF file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import openvino as ov
from openvino_tokenizers import tokenizer_pipeline as pipeline
from openvino_tokenizers.constants import UTF8ReplaceMode
from openvino_tokenizers.utils import (
    change_inputs_type,
    change_outputs_type,
    update_rt_info_with_environment,
)

from fastovms.errors import ConfigurationError
from fastovms.gguf.reader import Metadata, Value


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules by which a byte-pair tokenizer splits text into words.

    The regular expressions are those of the models' tokenizer.json files, as `llm_tokenizer_bpe`
    quotes them in src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp. Each is applied to
    the pieces of the previous one; text between matches is a word as well.

    Attributes:
        patterns: regular expressions, in the common syntax of PCRE and Oniguruma.
        adds_bos: whether BOS is prepended, if the file does not say.
        ignores_merges: whether a word that is in the vocabulary is one token, whatever the merges.
        normalizer: Unicode's normalization form, by its name in tokenizer.json; None = none.
    """

    patterns: tuple[str, ...]
    adds_bos: bool = False
    ignores_merges: bool = False
    normalizer: str | None = None


_SUFFIXES: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CASES: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*",
)

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2: Final = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35: Final = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN: Final = "|".join([*_CASES, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES])
_GPT4O: Final = "|".join(
    [
        *(f"{each}{_SUFFIXES}?" for each in _CASES),
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _SPACES,
    ]
)
_SEED_CODER: Final = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_DEFAULT: Final = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)

_BYTES: Final = PreTokenizer((_GPT2,))
_DIGITS: Final = PreTokenizer((r"\p{N}", _GPT2))
_TRIPLES: Final = PreTokenizer((_LLAMA3,))
_FAMILY_OF_LLAMA3: Final = replace(_TRIPLES, adds_bos=True, ignores_merges=True)
_SINGLES: Final = PreTokenizer((_QWEN2,))
_FAMILY_OF_GPT4O: Final = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    "default": PreTokenizer(_DEFAULT),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "pixtral", "midm-2.0"),
        _FAMILY_OF_LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _TRIPLES),
    "tekken": PreTokenizer((_TEKKEN,), adds_bos=True, ignores_merges=True),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "trillion", "exaone4", "a.x-4.0", "mellum"), _BYTES
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS
    ),
    "qwen2": replace(_SINGLES, normalizer="NFC"),
    "qwen35": PreTokenizer((_QWEN35,), normalizer="NFC"),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2", "kormo", "hunyuan"), _SINGLES),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _FAMILY_OF_GPT4O),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
}
"""Pre-tokenizers by name. Unlike llama.cpp, those of Qwen 2 and 3.5 apply NFC first, as the models'
own tokenizers do."""


def find_pre_tokenizer(name: object) -> PreTokenizer:
    """Returns the pre-tokenizer of this name. Raises ConfigurationError if the name is unknown."""
    if name is None:
        raise ConfigurationError(
            "tokenizer.ggml.pre is missing, as in files of before May 2024: how texts are "
            "split into words is not known"
        )
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise ConfigurationError(
            f"the pre-tokenizer {name} is not supported; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


_NORMAL: Final = 1
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_BYTE: Final = 6
"""The value of byte tokens in `tokenizer.ggml.token_type`."""

_ENDS: Final = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"}
    | {"<|return|>", "<|call|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]"}
    | {"<\uff5cend\u2581of\u2581sentence\uff5c>"}
)
"""Tokens that always end generation, as in llama.cpp, whatever the file's settings."""

_ENDS_OF_HARMONY: Final = frozenset({"<|return|>", "<|call|>"})
"""The tokens that end generation in gpt-oss's Harmony format."""

_MARKUP: Final = re.compile(r"<\|\w+\|>|<start_of_turn>|" + "|".join(map(re.escape, sorted(_ENDS))))
"""Tokens that are treated as control tokens, whatever their type in the file."""

_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character that SentencePiece uses for a space."""

_PHI3: Final = re.compile(r"phi-?3")
_KEEPS_SPACES_BEHIND: Final = ("<unk>", "<s>", "<|endoftext|>")
"""Tokens of Phi 3 that keep the spaces after them. Files do not say so; llama.cpp decides by the
model's name, too."""


class TokenizerFields:
    """The metadata `tokenizer.ggml.*` of a file. Raises ConfigurationError if the file has no
    tokenizer, or an unsupported one.

    Attributes:
        model: "gpt2" (byte-pair) or "llama" (SentencePiece).
        tokens: the tokens' strings, by id.
        kinds: the values of `tokenizer.ggml.token_type`, by id.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.model = self._field("model")
        if self.model not in ("gpt2", "llama"):
            raise ConfigurationError(
                "the file has no tokenizer"
                if self.model is None
                else f"the tokenizer {self.model} is not supported; supported are gpt2 and llama"
            )
        tokens = strings(self._field("tokens"))
        if not tokens:
            raise ConfigurationError("tokenizer.ggml.tokens is missing")
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]  # as llama.cpp
        if len(set(self.tokens)) < len(tokens):
            ((twice, _),) = Counter(self.tokens).most_common(1)
            raise ConfigurationError(f"two tokens have the text {twice!r}")
        kinds = self._field("token_type")
        self.kinds = list(kinds) if isinstance(kinds, list) else [_NORMAL] * len(tokens)
        self.scores = self._field("scores")
        for name, values in {"token_type": self.kinds, "scores": self.scores}.items():
            if isinstance(values, list) and len(values) != len(tokens):
                raise ConfigurationError(
                    f"tokenizer.ggml.{name} has {len(values)} values for {len(tokens)} tokens"
                )
        # Some files mark chat templates' special tokens as normal; they would not be recognized in
        # text.
        named = self._named_ends()
        for i, token in enumerate(self.tokens):
            if self.kinds[i] == _NORMAL and (i in named or _MARKUP.fullmatch(token)):
                self.kinds[i] = _CONTROL
        self.merges = strings(self._field("merges"))
        self.pre = self._field("pre")
        self.is_phi3 = bool(_PHI3.search(str(metadata.get("general.name", "")).lower()))

    def token_id(self, name: str) -> int | None:
        """Returns the id of the special token "bos", "eos", "unknown" etc.; None = not set."""
        value = self._field(f"{name}_token_id")
        if isinstance(value, int) and 0 <= value < len(self.tokens):
            return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean field, or `default` if it is missing."""
        value = self._field(name)
        return value if isinstance(value, bool) else default

    def ids_of(self, *kinds: int) -> list[int]:
        """Returns the ids of the tokens of these types."""
        return [i for i, kind in enumerate(self.kinds) if kind in kinds]

    def special_ids(self) -> frozenset[int]:
        """Returns the ids of tokens that are not part of the output text."""
        return frozenset(self.ids_of(_CONTROL, _UNKNOWN))

    def end_ids(self) -> frozenset[int]:
        """Returns the ids of the tokens that end generation."""
        special = {self.tokens[i]: i for i in self.ids_of(_CONTROL, _USER_DEFINED)}
        ends = _ENDS & special.keys()
        if ends >= _ENDS_OF_HARMONY:
            ends -= {"<|end|>"}  # <|end|> ends a message; the answer may have more messages
        return self._named_ends() | {special[token] for token in ends}

    def _named_ends(self) -> frozenset[int]:
        ids = (self.token_id(name) for name in ("eos", "eot", "eom"))
        return frozenset(i for i in ids if i is not None)

    def _field(self, name: str) -> Value | None:
        return self._metadata.get(f"tokenizer.ggml.{name}")


def make_tokenizer_json(fields: TokenizerFields) -> dict[str, Any]:
    """Returns the content of a tokenizer.json. Raises ConfigurationError if the metadata is broken,
    or the pre-tokenizer is unknown. The merges of byte-pair tokenizers ("gpt2") are in the file.
    SentencePiece ("llama") has scores instead: pairs that form the token with the best score are
    merged first, so the merges are the tokens in the order of their scores."""
    make = _byte_pairs if fields.model == "gpt2" else _sentencepiece
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": _added_tokens(fields), **make(fields)}  # fmt: skip


def _added_tokens(fields: TokenizerFields) -> list[dict[str, Any]]:
    special = fields.special_ids()
    added = fields.ids_of(_CONTROL, _UNKNOWN, _USER_DEFINED)
    if not added:  # OpenVINO's tokenizer requires a special token
        raise ConfigurationError("the vocabulary has no special token (tokenizer.ggml.token_type)")
    return [
        {
            "id": i,
            "content": fields.tokens[i],
            "special": i in special,
            "single_word": False,
            "lstrip": False,
            "rstrip": fields.is_phi3
            and fields.tokens[i] not in _KEEPS_SPACES_BEHIND
            and (fields.kinds[i] == _CONTROL or fields.tokens[i] == "</s>"),
            "normalized": False,
        }
        for i in added
    ]


def _byte_pairs(fields: TokenizerFields) -> dict[str, Any]:
    pre = find_pre_tokenizer(fields.pre)
    if not fields.merges:
        raise ConfigurationError("tokenizer.ggml.merges is missing")
    for merge in fields.merges:
        if " " not in merge[1:]:
            raise ConfigurationError(f"tokenizer.ggml.merges has {merge!r}, which is not a pair")
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in pre.patterns
    ]
    return {
        "normalizer": None if pre.normalizer is None else {"type": pre.normalizer},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {**_byte_level(), "use_regex": False}],
        },
        "post_processor": _ends(fields, adds_bos=pre.adds_bos),
        "decoder": _byte_level(),
        "model": {
            **_model(fields, fields.merges),
            "ignore_merges": pre.ignores_merges,
        },
    }


def _sentencepiece(fields: TokenizerFields) -> dict[str, Any]:
    if not isinstance(fields.scores, list):
        raise ConfigurationError("tokenizer.ggml.scores is missing")
    begins_with_space = fields.flag("add_space_prefix", True)
    if fields.flag("remove_extra_whitespaces", False):
        raise ConfigurationError("a tokenizer that removes spaces is not supported")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    restore = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * begins_with_space
    prepend = [{"type": "Prepend", "prepend": _SPACE}] * begins_with_space
    has_bytes = len(fields.ids_of(_BYTE)) == 256
    unknown = fields.token_id("unknown")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "post_processor": _ends(fields, adds_bos=True),
        "decoder": {
            "type": "Sequence",
            "decoders": [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            **_model(fields, _merges_of_scores(fields)),
            "unk_token": None if unknown is None else fields.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": has_bytes,
        },
    }


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def _model(fields: TokenizerFields, merges: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(fields.tokens)},
        "merges": list(merges),
    }


def _merges_of_scores(fields: TokenizerFields) -> list[str]:
    """Returns the merges of a SentencePiece tokenizer, best score first, as transformers does."""
    assert isinstance(fields.scores, list)
    scored: dict[str, Any] = {}
    for i in fields.ids_of(_NORMAL):
        scored[fields.tokens[i]] = fields.scores[i]
    ids = {token: i for i, token in enumerate(fields.tokens) if token in scored}
    merges: list[tuple[Any, int, int, str]] = []
    for token, score in scored.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        merges += [
            (-score, ids[left], ids[right], f"{left} {right}")
            for left, right in pairs
            if left in ids and right in ids
        ]
    return [merge for *_, merge in sorted(merges)]


def _ends(fields: TokenizerFields, *, adds_bos: bool) -> dict[str, Any] | None:
    """Returns the post-processor that adds special tokens around text; None = no tokens are
    added."""
    bos = _end(fields, "bos", adds_bos)
    eos = _end(fields, "eos", False)
    if not bos and not eos:
        return None
    parts = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": [*_templates(bos), *parts, *_templates(eos)],
        "pair": [*_templates(bos), *parts, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            token: {"id": token, "ids": [token_id], "tokens": [token]}
            for token, token_id in {**bos, **eos}.items()
        },
    }


def _end(fields: TokenizerFields, name: str, default: bool) -> dict[str, int]:
    token_id = fields.token_id(name)
    if not fields.flag(f"add_{name}_token", default):
        return {}
    if token_id is None:
        raise ConfigurationError(
            f"tokenizer.ggml.{name}_token_id is missing, but texts get this token"
        )
    return {fields.tokens[token_id]: token_id}


def _templates(tokens: Mapping[str, int]) -> Iterable[dict[str, Any]]:
    return [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]


def strings(value: Value | None) -> list[str]:
    """Returns the strings of a metadata list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


Json = Mapping[str, Any]


_LONGEST: Final = 2**31 - 65
"""The maximum number of tokens that the tokenizer returns."""


class TokenizerModels(NamedTuple):
    """The tokenizer, from strings to token ids [batch, tokens] i64, and the detokenizer."""

    tokenizer: ov.Model
    detokenizer: ov.Model


def build_tokenizer(tokenizer: Json, ids: Mapping[str, int]) -> TokenizerModels:
    """Builds the tokenizer and the detokenizer. `openvino_tokenizers` reads such files only with
    transformers, whose tokenizer classes change them; therefore its steps are added one by one
    here.

    Args:
        tokenizer: the result of `make_tokenizer_json`.
        ids: the ids of "bos", "eos" and "pad".
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
            # Does not truncate here: openvino_genai needs this step to set a maximum length.
            pipeline.TruncationStep(_LONGEST),
            _special_ends(tokenizer["post_processor"]),
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
    # One step per regular expression: each applies to the pieces of the previous one.
    return [
        *(pipeline.RegexSplitStep(each, behaviour="isolate", mergeable=False) for each in patterns),
        pipeline.BytesToCharsStep(),
    ]


def _special_ends(post_processor: Json | None) -> Any:
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

"""Makes a Hugging Face tokenizer.json of the tokenizer in a GGUF file.

Byte-pair tokenizers ("gpt2") have their merges in the file. Those of SentencePiece ("llama") have
scores instead: whichever two neighbours make the token with the best score are joined first, which
makes merges of the tokens in the order of their scores.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fastovms.errors import ConfigurationError
from fastovms.gguf.file_reader import Metadata, Value
from fastovms.gguf.pre_tokenizers import find_pre_tokenizer

_NORMAL: Final = 1
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_BYTE: Final = 6
"""The kind of tokens that stand for a byte in `tokenizer.ggml.token_type`."""

_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

_PHI3: Final = re.compile(r"phi-?3")
_KEEPS_SPACES_BEHIND: Final = ("<unk>", "<s>", "<|endoftext|>")
"""Tokens of Phi 3 that do not swallow the spaces behind them. In a file nothing says it: as in
llama.cpp, which goes by the model's name."""


class TokenizerFields:
    """The fields `tokenizer.ggml.` of a file.

    Attributes:
        model: "gpt2" or "llama".
        tokens: the texts of tokens, by id.
        kinds: the kinds of tokens, by id.

    Raises:
        ConfigurationError: there is no tokenizer, or one of a kind that is not taken.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.model = self._field("model")
        if self.model not in ("gpt2", "llama"):
            raise ConfigurationError(
                "it holds no tokenizer"
                if self.model is None
                else f"the tokenizer {self.model} is not taken; those taken are gpt2 and llama"
            )
        tokens = strings(self._field("tokens"))
        if not tokens:
            raise ConfigurationError("it holds no tokenizer.ggml.tokens")
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]  # as llama.cpp
        if len(set(self.tokens)) < len(tokens):
            ((twice, _),) = Counter(self.tokens).most_common(1)
            raise ConfigurationError(f"two of its tokens are {twice!r}")
        kinds = self._field("token_type")
        self.kinds = kinds if isinstance(kinds, list) else [_NORMAL] * len(tokens)
        self.scores = self._field("scores")
        for name, values in {"token_type": self.kinds, "scores": self.scores}.items():
            if isinstance(values, list) and len(values) != len(tokens):
                raise ConfigurationError(
                    f"tokenizer.ggml.{name} has {len(values)} values for {len(tokens)} tokens"
                )
        self.merges = strings(self._field("merges"))
        self.pre = self._field("pre")
        self.is_phi3 = bool(_PHI3.search(str(metadata.get("general.name", "")).lower()))

    def token_id(self, name: str) -> int | None:
        """Returns the id of the token for "bos", "eos", "unknown" and the like, if there is one."""
        value = self._field(f"{name}_token_id")
        if isinstance(value, int) and 0 <= value < len(self.tokens):
            return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        value = self._field(name)
        return value if isinstance(value, bool) else default

    def ids_of(self, *kinds: int) -> list[int]:
        return [i for i, kind in enumerate(self.kinds) if kind in kinds]

    def special_ids(self) -> frozenset[int]:
        """Returns the ids of tokens that are no text."""
        return frozenset(self.ids_of(_CONTROL, _UNKNOWN))

    def _field(self, name: str) -> Value | None:
        return self._metadata.get(f"tokenizer.ggml.{name}")


def make_tokenizer_json(fields: TokenizerFields) -> dict[str, Any]:
    """Returns the tokenizer.

    Raises:
        ConfigurationError: the fields are broken, or texts are cut in a way that is not known.
    """
    make = _byte_pairs if fields.model == "gpt2" else _sentencepiece
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": _added_tokens(fields), **make(fields)}  # fmt: skip


def _added_tokens(fields: TokenizerFields) -> list[dict[str, Any]]:
    special = fields.special_ids()
    added = fields.ids_of(_CONTROL, _UNKNOWN, _USER_DEFINED)
    if not added:  # which OpenVINO's tokenizer cannot do without
        raise ConfigurationError("none of its tokens is special (tokenizer.ggml.token_type)")
    return [
        {
            "id": i,
            "content": fields.tokens[i],
            "special": i in special,
            "single_word": False,
            "lstrip": False,
            "rstrip": fields.is_phi3 and _swallows_spaces(fields.tokens[i], fields.kinds[i]),
            "normalized": False,
        }
        for i in added
    ]


def _swallows_spaces(token: str, kind: Value) -> bool:
    return token not in _KEEPS_SPACES_BEHIND and (kind == _CONTROL or token == "</s>")


def _byte_pairs(fields: TokenizerFields) -> dict[str, Any]:
    pre = find_pre_tokenizer(fields.pre)
    if not fields.merges:
        raise ConfigurationError("it holds no tokenizer.ggml.merges")
    for merge in fields.merges:
        if " " not in merge[1:]:
            raise ConfigurationError(f"tokenizer.ggml.merges has {merge!r}, which is no pair")
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
        raise ConfigurationError("it holds no tokenizer.ggml.scores")
    begins_with_space = fields.flag("add_space_prefix", True)
    if fields.flag("remove_extra_whitespaces", False):
        raise ConfigurationError("a tokenizer that removes spaces is not taken")
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
    """Returns the pairs of tokens that make a token, those with the best score first, as
    transformers makes them."""
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
    """Returns what is put around texts."""
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
        raise ConfigurationError(f"texts get a token that is missing, {name}_token_id")
    return {fields.tokens[token_id]: token_id}


def _templates(tokens: Mapping[str, int]) -> Iterable[dict[str, Any]]:
    return [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]


def strings(value: Value | None) -> list[str]:
    """Returns the texts of a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

"""The tokenizer of an embedding model or reranker, for texts and pairs of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino_genai
from numpy.typing import NDArray

from fastovms.errors import ConfigurationError
from fastovms.text.tokenizer import check_characters

TOKENIZER_FILE: Final = "openvino_tokenizer.xml"
_DETOKENIZER_FILE: Final = "openvino_detokenizer.xml"
_TEMPLATES: Final = "processed_post_processor_template"
"""The names, in the tokenizer's file, of the templates for one text and for two texts."""

_PROBE: Final = "a"
FIRST, SECOND = -1, -2
"""The ids that represent the two texts in a template of pairs."""

_WORDS: Final = ("of the night", "the river")
"""Texts for testing whether a text may be cut at a space."""

TokenIds = NDArray[np.int64]


@dataclass(frozen=True)
class PairTemplate:
    """The tokens before, between and after two texts.

    Attributes:
        ids: tokens; -1 = the first text, -2 = the second.
        type_ids: the index of the text of each token.
    """

    ids: Sequence[int]
    type_ids: Sequence[int]

    @property
    def num_added(self) -> int:
        """The number of special tokens."""
        return len(self.ids) - 2

    def join(self, first: TokenIds, second: TokenIds) -> tuple[TokenIds, TokenIds]:
        """Returns the tokens of a pair, and the text index (type id) of each token."""
        parts, lengths, kinds = self._constants
        first_place, second_place = self._places
        parts, lengths = parts.copy(), lengths.copy()
        parts[first_place], lengths[first_place] = first, len(first)
        parts[second_place], lengths[second_place] = second, len(second)
        return np.concatenate(parts), np.repeat(kinds, lengths)

    @cached_property
    def _places(self) -> tuple[int, int]:
        return self.ids.index(FIRST), self.ids.index(SECOND)

    @cached_property
    def _constants(self) -> tuple[list[TokenIds], TokenIds, TokenIds]:
        """The inputs of `join` without the texts: the token, the number of tokens, and the type id
        at each place of the template."""
        parts = [np.array([each], np.int64) for each in self.ids]
        return parts, np.ones(len(parts), np.int64), np.array(self.type_ids, np.int64)


class TextEncoder:
    """Wraps the tokenizer of an embedding model or reranker. Thread-safe.

    Attributes:
        before, behind: the special tokens around a text.
        pair: the template of pairs; None = not supported.
        pad_token_id: the token for padding the texts of a batch.
        has_detokenizer: whether it can decode tokens.
        keeps_spaces: whether a text can be tokenized in slices that begin with the space at a cut;
            otherwise slices begin after the space.
    """

    def __init__(
        self,
        tokenizer: openvino_genai.Tokenizer,
        pair: PairTemplate | None,
        *,
        has_detokenizer: bool,
    ) -> None:
        """Raises RuntimeError if the tokenizer does not work."""
        self._tokenizer = tokenizer
        self.pair = pair
        self.has_detokenizer = has_detokenizer
        self.pad_token_id: int = max(tokenizer.get_pad_token_id(), 0)
        self.before, self.behind = self._ends()
        self.keeps_spaces = self._keeps_spaces()

    @classmethod
    def load(cls, model_dir: Path) -> TextEncoder:
        """Loads the tokenizer of a model's directory. Raises ConfigurationError if the tokenizer is
        missing or broken."""
        path = model_dir / TOKENIZER_FILE
        try:
            return cls(
                openvino_genai.Tokenizer(model_dir),
                _pair_template(path),
                has_detokenizer=(model_dir / _DETOKENIZER_FILE).is_file(),
            )
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigurationError(
                f"{model_dir}: the tokenizer cannot be loaded: {reason}"
            ) from error

    def vocabulary(self) -> Mapping[bytes, int]:
        """Returns token ids by the bytes of the tokens. Raises RuntimeError without a
        detokenizer."""
        vocabulary: dict[bytes, int] = self._tokenizer.get_vocab()
        return vocabulary

    @property
    def num_added(self) -> int:
        """The number of special tokens around a text."""
        return len(self.before) + len(self.behind)

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Returns the tokens of each text, without special tokens around it. Raises RequestError if
        a text has a lone surrogate, which is not a character."""
        for text in texts:
            check_characters(text)
        return self._encode(texts, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Returns the text of tokens. Ids outside the vocabulary contribute nothing. Raises
        RuntimeError without a detokenizer."""
        texts: list[str] = self._tokenizer.decode(
            [list(token_ids)], skip_special_tokens=skip_special_tokens
        )
        return texts[0]

    def enclosed(self, token_ids: TokenIds) -> TokenIds:
        """Returns the tokens of a text with special tokens around it."""
        return np.concatenate([self.before, token_ids, self.behind])

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        encoded = self._tokenizer.encode(list(texts), add_special_tokens=add_special_tokens)
        rows, masks = encoded.input_ids.data, encoded.attention_mask.data
        return [row[mask != 0].astype(np.int64) for row, mask in zip(rows, masks, strict=True)]

    def _ends(self) -> tuple[TokenIds, TokenIds]:
        [bare] = self._encode([_PROBE], add_special_tokens=False)
        [whole] = self._encode([_PROBE], add_special_tokens=True)
        for start in range(len(whole) - len(bare) + 1):
            end = start + len(bare)
            if len(bare) and np.array_equal(whole[start:end], bare):
                return whole[:start], whole[end:]
        return whole[:0], whole[:0]

    def _keeps_spaces(self) -> bool:
        # A tokenizer that adds a space before each text would add a second one here.
        first, second = _WORDS
        whole, *parts = self.encode([f"{first} {second}", first, second])
        return not np.array_equal(np.concatenate(parts), whole)


def _pair_template(path: Path) -> PairTemplate | None:
    info = ov.Core().read_model(path).get_rt_info()
    if _TEMPLATES not in info:
        return None
    try:
        found: Any = json.loads(str(info[_TEMPLATES].value))["pair"]
        ids, type_ids = [int(each) for each in found["ids"]], found["type_ids"]
    except (ValueError, KeyError, TypeError):
        return None
    # If no tokens separate the texts, they are joined before encoding, which gives other tokens.
    if sorted(ids)[:2] != [SECOND, FIRST] or len(ids) < 3 or len(type_ids) != len(ids):
        return None
    return PairTemplate(ids, [int(each) for each in type_ids])

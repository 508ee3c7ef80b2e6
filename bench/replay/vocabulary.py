"""Encodes texts with a tokenizer that is trained on the packages.

The demo model's tokenizer has only 1,536 tokens. Models of 2026 have ten to a hundred times as
many, and therefore fewer tokens per line, which are harder to predict.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

END_TOKEN_ID: Final = 0
NUM_TOKEN_IDS: Final = 32_000

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regular expression with which Llama 3 and Qwen split texts before bytes are merged."""


class Vocabulary:
    """A tokenizer.

    Attributes:
        tokenizer_json: the tokenizer in Hugging Face's format.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokenizer_json: str = tokenizer.to_str()

    @classmethod
    def trained(cls, texts: Iterable[str], num_token_ids: int = NUM_TOKEN_IDS) -> Vocabulary:
        """Trains a byte-level BPE with at most the given number of tokens."""
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = Sequence(
            [Split(Regex(_WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        tokenizer.decoder = ByteLevelDecoder()
        trainer = BpeTrainer(
            vocab_size=num_token_ids,
            special_tokens=["<|end|>"],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def kept(cls, path: Path, texts: Iterable[str]) -> Vocabulary:
        """Reads the tokenizer at `path`, which is trained and written first if it is missing."""
        if not path.exists():
            path.write_text(cls.trained(texts).tokenizer_json)
        return cls(Tokenizer.from_file(str(path)))

    @property
    def num_token_ids(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)

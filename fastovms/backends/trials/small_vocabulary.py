"""Makes the vocabulary with which grammars are tried: few texts, since a mask takes time in
proportion to them, but all ids and special tokens of the model, which a grammar may name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import orjson

from fastovms.config.model_config import DEMO_MODEL

_TOKENIZER: Final = DEMO_MODEL / "tokenizer.json"


@dataclass(frozen=True, slots=True)
class SmallVocabulary:
    """The ids and special tokens of a model, from which a tokenizer with few texts is made.

    Attributes:
        vocab_size: the model's.
        eos_token_ids: the model's, ascending.
        special_tokens: ids of the model's by their texts.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_tokens: dict[str, int]

    def tokenizer_json(self) -> str:
        """Returns a Hugging Face tokenizer.json with the texts of the demo model, as far as there
        are ids for them."""
        tokenizer = orjson.loads(_TOKENIZER.read_bytes())
        texts = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
        own = {token["content"] for token in tokenizer["added_tokens"]}
        texts = [text for text in texts if text not in own and text not in self.special_tokens]
        texts.sort(key=len)  # stable; single bytes are needed most
        taken = {*self.special_tokens.values(), *self.eos_token_ids}
        free = islice(_without(range(self.vocab_size), taken), len(texts))
        tokenizer["model"] |= {"vocab": dict(zip(texts, free, strict=False)), "merges": []}
        form = tokenizer["added_tokens"][0]
        tokenizer["added_tokens"] = [
            {**form, "id": token_id, "content": text, "special": True}
            for text, token_id in self.special_tokens.items()
        ]
        tokenizer["post_processor"] = None
        return orjson.dumps(tokenizer).decode()


def _without(numbers: Iterable[int], taken: set[int]) -> Iterable[int]:
    return (number for number in numbers if number not in taken)

"""Tokenizers of GGUF files whose tokens show where texts are split: they are trained on these
texts, across words, numbers and lines."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

from bench.random_models.gguf_decoder import byte_tokens

TEXTS = [
    "hello there, hello world",
    "  two spaces   and three",
    "I'll DON'T we've They'RE it's 12345 67 1 22 333 4444 55555",
    "a\n\n b \t\r\n c  \n   d\n\n\n",
    "Grüße aus Köln, 東京 は 日本 の 首都 です 。 😀 👍🏽 мир !",
    "x=1;// foo\n\treturn $y+3.14 <= a_b[c] /path/to/it/",
    "<|im_end|>hello <|begin_of_text|> there",
    "e\u0301 café ẛ̣ naïve",
    "ALLCaps camelCase HTMLParser2Go McDonald",
    "",
    " ",
    "\n",
    "...!!!???\n\n\n ,, ;; (( ))",
    "١٢٣٤ ½ ² 一二三 संस्कृत",
]
SPECIAL = ["<|end_of_text|>", "<|begin_of_text|>", "<|im_end|>"]
NUM_MERGES = 250


@cache
def byte_pairs() -> dict[str, Any]:
    """Returns a byte-pair tokenizer without its `tokenizer.ggml.pre`."""
    shown = byte_tokens()
    words = [[shown[byte] for byte in text.encode()] for text in TEXTS]
    merges = []
    for _ in range(NUM_MERGES):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        pair, _ = pairs.most_common(1)[0]
        merges.append(" ".join(pair))
        words = [_merged(word, pair) for word in words]
    joined = [merge.replace(" ", "") for merge in merges]
    tokens = list(dict.fromkeys([*SPECIAL, *shown, *joined]))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
    }


@cache
def sentencepiece() -> dict[str, Any]:
    """Returns a SentencePiece tokenizer without tokens for some characters."""
    texts = [text.replace(" ", "\u2581") for text in TEXTS[:7]]
    characters = sorted(set("".join(texts)) - set("\u00fcQ\u6771"))
    pieces = Counter(
        text[start : start + size]
        for text in texts
        for size in (2, 3, 4, 6)
        for start in range(len(text) - size)
        if set(text[start : start + size]) <= set(characters)
    )
    joined = [piece for piece, _ in pieces.most_common(400)]
    special = ["<unk>", "<s>", "</s>", "<start_of_turn>", "[multimodal]", "<body>"]
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *of_bytes, *joined, *characters]
    num_texts = len(joined) + len(characters)
    scores = [0.0] * (len(special) + 256) + [-float(i) for i in range(num_texts)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, 3, 4, 4] + [6] * 256 + [1] * num_texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for symbol in word:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged

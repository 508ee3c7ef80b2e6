"""The tokenizer of a model, and fill-in-the-middle tokens."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import openvino_genai

from fastovms.errors import ConfigurationError, RequestError
from fastovms.text.detokenizer import LocatingDetokenizer, TableDetokenizer, WindowDetokenizer

logger = logging.getLogger(__name__)


class _Format(NamedTuple):
    """The names of fill-in-the-middle tokens, in order. If `middle` is None, the prompt comes last,
    after the suffix, and the model continues it."""

    prefix: str
    suffix: str
    middle: str | None


_FORMATS: Final = (
    _Format("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    _Format("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite, SmolLM
    _Format("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Format("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    _Format(
        "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"
    ),  # DeepSeek Coder
    _Format("[PREFIX]", "[SUFFIX]", None),  # Codestral
)


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The fill-in-the-middle token ids of one model."""

    prefix: int
    suffix: int
    middle: int | None

    def join(self, prompt: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """Returns the token ids that the model continues with the middle."""
        if self.middle is None:
            return [self.suffix, *suffix, self.prefix, *prompt]
        return [self.prefix, *prompt, self.suffix, *suffix, self.middle]


def find_fim_tokens(find: Callable[[Sequence[str]], list[int | None]]) -> FimTokens | None:
    """Returns the tokens of the first known format in a vocabulary; None = none. `find` returns the
    ids of tokens by their names."""
    ids = iter(find([piece for names in _FORMATS for piece in names if piece]))
    for names in _FORMATS:
        prefix, suffix = next(ids), next(ids)
        middle = None if names.middle is None else next(ids)
        if prefix is None or suffix is None or (names.middle is not None and middle is None):
            continue
        return FimTokens(prefix, suffix, middle)
    return None


MIN_NUM_SEQUENCES = 64
SEQUENCE_LENGTH = 64

PROBE_TEXTS = (
    "  two spaces before, two behind  ",
    " one before, one behind ",
    "He did n't , he 's , I 'm ; we 've . They 're ! Wo n't ? ' no '",
    "a  b   c\n\n d\t e ( f ) [ g ] : h ## i @@ j </w> k",
    "Grüße aus Köln, 東京 は 日本 の 首都 です 。 😀 👍🏽 мир !",
)
"""Texts that detokenizers with rules for several tokens change, such as clean-up of spaces or word
prefixes and suffixes. Random sequences rarely trigger such rules."""

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")

_MISREAD_TOKEN = re.compile(rb"<(?!0x[0-9A-Fa-f]{2}>).{4}>", re.DOTALL)
"""Tokens such as `<body>` in the vocabularies of Gemma: OpenVINO treats tokens with the length of a
byte token as byte tokens, and returns U+FFFD."""

DecodeBatch = Callable[[list[list[int]], bool], list[str]]
"""Decodes several sequences of one length; the flag says whether special tokens are skipped."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of each token's text.

    Attributes:
        token_bytes: the bytes of each id; empty where the vocabulary has a gap.
        special_token_ids: ids without text when special tokens are skipped.
        strip_leading_space: whether one space is dropped from the beginning of a text.
    """

    token_bytes: Sequence[bytes]
    special_token_ids: frozenset[int]
    strip_leading_space: bool = False

    def skipping_special_tokens(self, keep: Collection[bytes] = ()) -> TokenTable:
        """Returns the table with special tokens skipped, except those that are, or begin, a string
        in `keep`."""
        token_bytes = list(self.token_bytes)
        for token_id in self.special_token_ids:
            if not any(text.startswith(token_bytes[token_id]) for text in keep):
                token_bytes[token_id] = b""
        return replace(self, token_bytes=token_bytes)

    def detokenizer(self, *, continues: bool = False) -> TableDetokenizer:
        """Returns a detokenizer for one sample. `continues` is whether the tokens continue a
        text."""
        strip = self.strip_leading_space and not continues
        return TableDetokenizer(self.token_bytes, strip_leading_space=strip)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens."""
        detokenizer = self.detokenizer()
        return detokenizer.push(token_ids) + detokenizer.flush()


def find_special_tokens(vocab_size: int, decode: DecodeBatch) -> frozenset[int]:
    """Returns the ids whose text disappears when special tokens are skipped."""
    texts = decode([[token_id] for token_id in range(vocab_size)], True)
    silent = [token_id for token_id, text in enumerate(texts) if not text]
    shown = decode([[token_id] for token_id in silent], False) if silent else []
    return frozenset(token_id for token_id, text in zip(silent, shown, strict=True) if text)


def build_token_table(
    vocab: Mapping[bytes, int],
    special_token_ids: frozenset[int],
    probes: Sequence[list[int]],
    decode: DecodeBatch,
) -> TokenTable | None:
    """Returns the table that reproduces `decode`; None = unknown kind of vocabulary.

    Every token is tested, in random sequences, in which characters are split and bytes are invalid,
    and so is each of the probes, the tokens of `PROBE_TEXTS`. SentencePiece tokens that OpenVINO
    treats as byte tokens are not tested: the table has their text.
    """
    raw = [b""] * (max(vocab.values()) + 1)
    for data, token_id in vocab.items():
        raw[token_id] = data
    pieces = [_sentencepiece_bytes(data) for data in raw]
    misread = {i for i, data in enumerate(raw) if _MISREAD_TOKEN.fullmatch(data)}
    samples = _all_samples(probes, range(len(raw)), decode)
    if _is_correct(table := TokenTable(raw, special_token_ids), samples):
        return table  # byte-level BPE: the vocabulary holds the bytes themselves
    if misread:
        probes = [[i for i in token_ids if i not in misread] for token_ids in probes]
        tried = [i for i in range(len(raw)) if i not in misread]
        samples = _all_samples(probes, tried, decode)
    for strip_leading_space in (True, False):  # Llama 2 and Mistral 7B; Gemma
        table = TokenTable(pieces, special_token_ids, strip_leading_space)
        if _is_correct(table, samples):
            return table
    return None


def _is_correct(table: TokenTable, samples: Iterable[_DecodedText]) -> bool:
    skipping = table.skipping_special_tokens()
    return all(
        table.decode(sample.token_ids) == sample.text
        and skipping.decode(sample.token_ids) == sample.text_without_special_tokens
        for sample in samples
    )


def _sentencepiece_bytes(piece: bytes) -> bytes:
    """Returns the bytes of a piece: a byte token is one byte, U+2581 is a space."""
    if match := _BYTE_TOKEN.fullmatch(piece):
        return bytes.fromhex(match[1].decode())
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}".encode(), b" ")


class _DecodedText(NamedTuple):
    token_ids: list[int]
    text: str
    text_without_special_tokens: str


def _samples(batches: list[list[list[int]]], decode: DecodeBatch) -> list[_DecodedText]:
    return [
        _DecodedText(*sample)
        for batch in batches
        for sample in zip(batch, decode(batch, False), decode(batch, True), strict=True)
    ]


def _all_samples(
    probes: Sequence[list[int]], vocab: Sequence[int], decode: DecodeBatch
) -> list[_DecodedText]:
    return _samples([*([token_ids] for token_ids in probes), _random_sequences(vocab)], decode)


def _random_sequences(vocab: Sequence[int]) -> list[list[int]]:
    """Returns sequences of equal length that together contain every token."""
    rng = random.Random(0)
    num_sequences = max(MIN_NUM_SEQUENCES, math.ceil(len(vocab) / SEQUENCE_LENGTH))
    token_ids = rng.sample(vocab, k=len(vocab))
    token_ids += rng.choices(vocab, k=num_sequences * SEQUENCE_LENGTH - len(vocab))
    return [
        token_ids[start : start + SEQUENCE_LENGTH]
        for start in range(0, len(token_ids), SEQUENCE_LENGTH)
    ]


def check_characters(text: str) -> None:
    """Raises RequestError if a text has a lone surrogate, which is not a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X}"
            f" at position {error.start}"
        ) from None


MODEL_FILES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


class Tokenizer:
    """Wraps `openvino_genai.Tokenizer`. Thread-safe.

    Encoding holds the GIL for most of its time, about 1 ms per 1000 tokens.

    Attributes:
        vocab_size: token ids are 0 <= id < vocab_size; the model may have more logits than that.
        special_token_ids: ids that `decode` leaves out when it skips special tokens.
        pad_token_id: the token for padding the texts of a batch; 0 if the model has none.
        has_detokenizer: whether it can decode tokens.
    """

    has_detokenizer: ClassVar[bool] = True

    def __init__(self, tokenizer: openvino_genai.Tokenizer) -> None:
        """Raises ConfigurationError if the tokenizer cannot name its tokens."""
        self._tokenizer = tokenizer
        vocab: dict[bytes, int] = tokenizer.get_vocab()
        if not vocab:
            raise ConfigurationError("the tokenizer has no vocabulary")
        self.vocab_size = max(vocab.values()) + 1
        self.pad_token_id: int = max(tokenizer.get_pad_token_id(), 0)
        self.special_token_ids = find_special_tokens(self.vocab_size, self._decode_batch)
        self._table = build_token_table(
            vocab,
            self.special_token_ids,
            [self.encode(text, add_special_tokens=False) for text in PROBE_TEXTS],
            self._decode_batch,
        )
        self._skipping_tables: dict[frozenset[str], TokenTable] = {}
        if self._table is None:
            logger.warning(
                "the kind of the model's detokenizer is unknown: streaming its text takes more time"
            )

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Loads the tokenizer of a model's directory. Raises ConfigurationError if a file is
        missing or broken."""
        for name in MODEL_FILES:
            if not (model_dir / name).is_file():
                raise ConfigurationError(f"{model_dir} has no {name}")
        try:
            return cls(openvino_genai.Tokenizer(model_dir))
        except ConfigurationError as error:
            raise ConfigurationError(f"{model_dir}: {error}") from None
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigurationError(
                f"{model_dir}: the tokenizer cannot be loaded: {reason}"
            ) from error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text. Special tokens written out in the text are recognised.
        Raises RequestError if the text has a lone surrogate, which is not a character."""
        check_characters(text)
        encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        token_ids: list[int] = encoded.input_ids.data[0].tolist()
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of a whole sequence. Ids outside the vocabulary contribute nothing."""
        table = self._skipping_table(frozenset()) if skip_special_tokens else self._table
        if table is not None:  # the table is exact, while OpenVINO decodes some tokens wrongly
            return table.decode(token_ids)
        return self._decode_batch([list(token_ids)], skip_special_tokens)[0]

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        keep: frozenset[str] = frozenset(),
    ) -> LocatingDetokenizer:
        """Returns an incremental decoder for one sample.

        Args:
            continues: whether the sample continues a text. A leading space of the first token is
                then kept, if the kind of vocabulary is known.
            keep: special tokens that are not skipped, by their text. There is one table for each
                set, so use few sets. For an unknown kind of vocabulary, none is skipped then.
        """
        table = self._skipping_table(keep) if skip_special_tokens else self._table
        if table is not None:
            return table.detokenizer(continues=continues)
        skip = skip_special_tokens and not keep
        return WindowDetokenizer(lambda token_ids: self.decode(token_ids, skip_special_tokens=skip))

    def _skipping_table(self, keep: frozenset[str]) -> TokenTable | None:
        if self._table is None:
            return None
        table = self._skipping_tables.get(keep)
        if table is None:
            table = self._table.skipping_special_tokens({text.encode() for text in keep})
            self._skipping_tables[keep] = table
        return table

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token's text, including special tokens. They may be incomplete
        characters. Ids outside the vocabulary contribute nothing."""
        if token_id >= self.vocab_size:
            return b""
        if self._table is not None:
            return self._table.token_bytes[token_id]
        return self.decode([token_id], skip_special_tokens=False).encode()

    @cached_property
    def all_token_bytes(self) -> Sequence[bytes]:
        """The bytes of each token's text by id, as `token_bytes` returns them."""
        if self._table is not None:
            return self._table.token_bytes
        texts = self._decode_batch([[token_id] for token_id in range(self.vocab_size)], False)
        return [text.encode() for text in texts]

    def find_tokens(self, pieces: Sequence[str]) -> list[int | None]:
        """Returns the ids of tokens by their names in the vocabulary; None = not in the vocabulary.
        Takes about 10 ms, because it reads the whole vocabulary."""
        vocab: dict[bytes, int] = self._tokenizer.get_vocab()
        return [vocab.get(piece.encode()) for piece in pieces]

    @cached_property
    def fim_tokens(self) -> FimTokens | None:
        """The tokens of fill-in-the-middle prompts; None = the vocabulary has none."""
        return find_fim_tokens(self.find_tokens)

    def _decode_batch(self, sequences: list[list[int]], skip_special_tokens: bool) -> list[str]:
        # Sequences of different lengths would be padded, and the padding shown.
        texts: list[str] = self._tokenizer.decode(
            sequences, skip_special_tokens=skip_special_tokens
        )
        return texts

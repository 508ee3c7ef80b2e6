"""Encodes texts and decodes token ids with the model's own tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import openvino_genai

from fastovms.errors import ConfigurationError, RequestError
from fastovms.text.tokens.detokenizer import LocatingDetokenizer, WindowDetokenizer
from fastovms.text.tokens.token_table import (
    PROBE_TEXTS,
    TokenTable,
    build_token_table,
    find_special_tokens,
)

logger = logging.getLogger(__name__)

MODEL_FILES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


class Tokenizer:
    """Wraps `openvino_genai.Tokenizer`, whose methods may be called from several threads at once.

    Encoding holds the GIL for most of its length: about 1 ms for every thousand tokens.

    Attributes:
        vocab_size: token ids are 0 <= id < vocab_size; the model may have more logits than that.
        special_token_ids: ids that `decode` leaves out when it skips special tokens.
        pad_token_id: what texts of one batch are filled up with; 0 where the model names none.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer) -> None:
        """
        Raises:
            ConfigurationError: the tokenizer cannot name its tokens.
        """
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
                "The model's detokenizer is of an unknown kind: streaming its text costs more time"
            )

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Loads the tokenizer of a model's directory.

        Raises:
            ConfigurationError: a file is missing or broken.
        """
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

        Raises:
            RequestError: the text has a lone surrogate, which is no character.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has a lone surrogate U+{ord(text[error.start]):04X}"
                f" at position {error.start}"
            ) from None
        encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        token_ids: list[int] = encoded.input_ids.data[0].tolist()
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of a whole sequence. Ids outside the vocabulary contribute nothing."""
        return self._decode_batch([list(token_ids)], skip_special_tokens)[0]

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        keep: frozenset[str] = frozenset(),
    ) -> LocatingDetokenizer:
        """Returns an incremental `decode` for one sample.

        Args:
            continues: whether the sample goes on with a text. A space that the vocabulary's first
                token brings is then kept, where the kind of the detokenizer is known.
            keep: special tokens that are not skipped, by their text. There is one table for each
                set, so that sets must be few. A detokenizer of an unknown kind then skips none.
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
        """Returns what one token contributes to a text, special tokens as they are written. It need
        not be whole characters. Ids outside the vocabulary contribute nothing."""
        if token_id >= self.vocab_size:
            return b""
        if self._table is not None:
            return self._table.token_bytes[token_id]
        return self.decode([token_id], skip_special_tokens=False).encode()

    def find_tokens(self, pieces: Sequence[str]) -> list[int | None]:
        """Returns the ids of tokens by their names in the vocabulary; None for those it does not
        have. It reads the whole vocabulary, which takes some ten milliseconds."""
        vocab: dict[bytes, int] = self._tokenizer.get_vocab()
        return [vocab.get(piece.encode()) for piece in pieces]

    def _decode_batch(self, sequences: list[list[int]], skip_special_tokens: bool) -> list[str]:
        # Sequences of different lengths would be padded, and the padding shown.
        texts: list[str] = self._tokenizer.decode(
            sequences, skip_special_tokens=skip_special_tokens
        )
        return texts

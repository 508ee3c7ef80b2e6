"""Corrects `vocab_size` and the end tokens to the weights, and loads the grammar compiler of a
tokenizer.json."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)


def fit_vocabulary(model: ModelInfo, vocab_size: int | None) -> ModelInfo:
    """Returns the model with the vocabulary of its weights, which goes before config.json: ids
    beyond them must not reach the engine."""
    if vocab_size is None:
        return model
    if vocab_size != model.vocab_size:
        logger.warning(
            "config.json says vocab_size %d, the model has %d", model.vocab_size, vocab_size
        )
    eos_token_ids = frozenset(i for i in model.eos_token_ids if i < vocab_size)
    if eos_token_ids != model.eos_token_ids:
        logger.warning("end-of-text ids beyond the vocabulary of %d are ignored", vocab_size)
    return replace(model, vocab_size=vocab_size, eos_token_ids=eos_token_ids)


def load_grammar_compiler(model_dir: Path, model: ModelInfo) -> GrammarCompiler | None:
    """Returns the compiler for the model's tokenizer.json, or None, with a warning, if there is no
    use in one."""
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        logger.warning("structured outputs are off: %s is missing", path)
        return None
    try:
        return GrammarCompiler(
            path.read_text(encoding="utf-8"),
            vocab_size=model.vocab_size,
            eos_token_ids=sorted(model.eos_token_ids),
        )
    except ValueError as error:
        logger.warning("structured outputs are off: %s: %s", path, error)
        return None

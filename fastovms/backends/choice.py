"""Chooses which backend runs a model, and compiles the model with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import openvino as ov

from fastovms.backend import GenerationBackend
from fastovms.backends.genai.genai_backend import GenaiBackend
from fastovms.backends.genai.grammars import guard_pipeline
from fastovms.backends.model_files.export_gaps import log_gaps
from fastovms.backends.model_files.vocabulary import load_grammar_compiler
from fastovms.backends.paged.draft_backend import read_draft_info
from fastovms.backends.paged.paged_backend import PagedBackend
from fastovms.backends.paged.window import fit_length
from fastovms.backends.trials.guarded_grammars import trial_starter
from fastovms.config import EngineConfig
from fastovms.disk_cache import DiskCache
from fastovms.engine.model.paging import read_max_transformed_len
from fastovms.errors import ConfigurationError, UnsupportedModel
from fastovms.params import ModelInfo

logger = logging.getLogger(__name__)

Reserve = Callable[[int], GenerationBackend]
"""Reserves the KV cache, given how many bytes of free memory the model may count as its own, which
is known when all models are in memory. Raises ConfigurationError when nothing fits."""


def compile_backend(
    model_dir: Path, model: ModelInfo, config: EngineConfig, cache: DiskCache | None = None
) -> Reserve:
    """Compiles a model, which takes seconds: call it off the loop. Returns what reserves its cache.

    Args:
        cache: knows and keeps how a model runs best here; None = nobody does.

    Raises:
        ConfigurationError: no backend that the operator allows can run the model, or the device
            cannot.
    """
    log_gaps(model)
    if config.backend == "genai" or (config.backend == "auto" and model.takes_images):
        return _genai(model_dir, model, config)
    if model.takes_images:
        raise ConfigurationError(
            f"{model.name} takes images, which the paged backend does not: --backend genai"
        )
    try:
        return PagedBackend.compile(model_dir, model, config, cache)
    except UnsupportedModel as error:
        if config.backend == "paged":
            raise
        logger.warning("%s; trying the genai backend", error)
        return _genai(model_dir, model, config, instead=error)


def _check_drafts(model_dir: Path, model: ModelInfo, config: EngineConfig) -> None:
    """Raises ConfigurationError for drafts that the pipeline would refuse in words of its own."""
    if config.draft_model is None:
        return
    if config.enable_prompt_lookup:
        raise ConfigurationError(
            "--draft-model and --enable-prompt-lookup exclude each other in the genai backend"
        )
    if model.takes_images:
        raise ConfigurationError(
            f"--draft-model cannot be used for {model.name}, which takes images"
        )
    read_draft_info(config.draft_model, model_dir)


def _genai(
    model_dir: Path,
    model: ModelInfo,
    config: EngineConfig,
    *,
    instead: UnsupportedModel | None = None,
) -> Reserve:
    """Loads the genai backend. `instead` is why the paged backend does not run the model."""
    _check_drafts(model_dir, model, config)
    if not model.takes_images:
        model = fit_length(
            model, read_max_transformed_len(ov.Core(), model_dir, model.max_model_len)
        )
    compiler = load_grammar_compiler(model_dir, model)
    grammars = guard_pipeline(None if compiler is None else trial_starter(compiler))

    def reserve(available: int) -> GenerationBackend:
        try:
            return GenaiBackend.load(model_dir, model, config, grammars, available=available)
        except ConfigurationError as error:
            if instead is None:
                raise
            raise ConfigurationError(_both(instead, error)) from error

    return reserve


def _both(paged: Exception, genai: Exception) -> str:
    """Returns what two backends say of a model; they may say the same."""
    reason = str(genai).rpartition(": ")[2]
    if str(paged).endswith(reason):
        return f"{paged}; the genai backend cannot run it either"
    return f"{paged}; and {genai}"

"""Chooses the backend for a model and compiles the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import openvino as ov

from fastovms.app.paged import TunedCores, compile_paged
from fastovms.backend import GenerationBackend
from fastovms.backends.model_files import check_graph, fit_length, log_gaps
from fastovms.backends.model_task import graph_file
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import is_npu
from fastovms.engine.model.paging import read_transformed
from fastovms.errors import ConfigurationError, UnsupportedModel
from fastovms.params import ModelInfo
from fastovms.system.disk import DiskCache

if TYPE_CHECKING:
    from fastovms.parts.prefix_cache.engine import PrefixDirectory

logger = logging.getLogger(__name__)


Reserve = Callable[[int, "PrefixDirectory | None", TunedCores | None], GenerationBackend]
"""Reserves the KV cache of a compiled model. The arguments: the free memory for this model in
bytes, known once all models are loaded; the prefix cache on disk, for the paged backend (None =
none); and the cores shared with other models (None = not shared). Raises ConfigurationError if no
cache fits."""


def compile_backend(
    model_dir: Path,
    model: ModelInfo,
    config: EngineConfig,
    cache: DiskCache | None = None,
) -> Reserve:
    """Compiles a model; takes seconds, so call it in a thread. Returns a function that reserves the
    KV cache. Raises ConfigurationError if no allowed backend, or not the device, can run the model.
    `cache` stores tuning results for this machine; None = not stored."""
    log_gaps(model)
    needs_genai = model.takes_images or is_npu(config.device.upper())
    if config.backend == "genai" or (config.backend == "auto" and needs_genai):
        return _genai(model_dir, model, config, cache)
    if model.takes_images:
        raise ConfigurationError(
            f"{model.name} takes images, which --backend paged does not support: use "
            "--backend genai"
        )
    try:
        return compile_paged(model_dir, model, config, cache)
    except UnsupportedModel as error:
        if config.backend == "paged":
            raise
        logger.warning("%s; trying the genai backend", error)
        paged = error
    try:
        reserve = _genai(model_dir, model, config, cache)
    except ConfigurationError as error:
        raise _refusal(paged, error) from error

    def reserve_instead(
        available: int, prefixes: PrefixDirectory | None, cores: TunedCores | None
    ) -> GenerationBackend:
        try:
            return reserve(available, prefixes, cores)
        except ConfigurationError as error:
            raise _refusal(paged, error) from error

    return reserve_instead


def _check_drafts(model_dir: Path, model: ModelInfo, config: EngineConfig) -> None:
    """Raises ConfigurationError for draft settings that openvino_genai would refuse with an unclear
    message."""
    if config.draft_model is None:
        return
    if config.enable_prompt_lookup:
        raise ConfigurationError(
            "--draft-model and --enable-prompt-lookup cannot be used together with the "
            "genai backend"
        )
    if model.takes_images:
        raise ConfigurationError(
            f"--draft-model cannot be used for {model.name}, which takes images"
        )
    from fastovms.parts.drafts.files import read_draft_files

    if read_draft_files(config.draft_model, model_dir, model).info is None:
        raise ConfigurationError(
            f"--draft-model {config.draft_model} is a draft head, which the genai backend does "
            "not support: leave it out"
        )


def _genai(
    model_dir: Path, model: ModelInfo, config: EngineConfig, cache: DiskCache | None
) -> Reserve:
    # Imported here because most servers do not use the genai backend.
    from fastovms.parts.genai.backend import GenaiBackend, guard_pipeline, pipeline_comparison
    from fastovms.parts.grammars.trials import load_grammar_compiler, trial_starter

    if config.serves_adapters:
        raise ConfigurationError(
            f"{model.name} runs with the genai backend, which serves no adapters: leave out "
            "--enable-lora and --lora-modules"
        )
    is_on_npu = is_npu(config.device.upper())
    if is_on_npu:
        if model.takes_images:
            raise ConfigurationError(f"{model.name} takes images, and cannot run on an NPU")
        logger.warning(
            "%s runs on an NPU: one request at a time, without a prefix cache", model.name
        )
        config = replace(config, max_num_seqs=1, enable_prefix_caching=False)
    _check_drafts(model_dir, model, config)
    graph = read_transformed(ov.Core(), graph_file(model_dir), model.max_model_len)
    if graph.has_other_state and config.draft_model is not None:
        raise ConfigurationError(
            f"--draft-model cannot be used for {model.name}, a recurrent or hybrid model: "
            "the genai backend does not support it"
        )
    model = fit_length(model, graph.max_exact_len)
    if not is_on_npu:
        check_graph(pipeline_comparison(model_dir, model), cache or DiskCache(None))
    compiler = load_grammar_compiler(model_dir, model)
    grammars = guard_pipeline(None if compiler is None else trial_starter(compiler))

    def reserve(available: int, *_: object) -> GenerationBackend:
        return GenaiBackend.load(model_dir, model, config, grammars, available=available)

    return reserve


def _refusal(paged: Exception, genai: Exception) -> ConfigurationError:
    """Combines the errors of both backends about a model into one; they may be equal."""
    reason = str(genai).rpartition(": ")[2]
    if str(paged).endswith(reason):
        return ConfigurationError(f"{paged}; the genai backend cannot run it either")
    return ConfigurationError(f"{paged}; and {genai}")

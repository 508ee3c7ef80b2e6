"""Compiles a model for the paged engine, with the extensions that the operator has enabled."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastovms import __version__
from fastovms.backend_stats import BackendStats
from fastovms.backends.model_files import (
    Comparison,
    check_graph,
    fit_attention,
    fit_vocabulary,
)
from fastovms.backends.paged.backend import (
    AdditionalCache,
    BackendExtension,
    BackendParts,
    Grammars,
    PagedBackend,
    SharedCores,
    WaitForRequests,
)
from fastovms.backends.paged.preparing import run_preparation
from fastovms.backends.processes import WorkerFailed
from fastovms.config import EngineConfig
from fastovms.engine.extensions import BeamSearches, EngineExtensions
from fastovms.engine.model.compilation import (
    ExportedModel,
    compile_single_rows,
    why_no_kernels,
)
from fastovms.engine.model.devices import available_memory, reason_of
from fastovms.engine.model.model import Model, PagedModel, Precisions
from fastovms.engine.row_functions import (
    load_kernels_in_thread,
    try_to_load_kernels,
    use_numpy_for_now,
)
from fastovms.params import ModelInfo
from fastovms.parts.drafts.drafting import SuffixKernels, drafting_of
from fastovms.parts.drafts.suffix_index import SuffixFunctions
from fastovms.parts.tuning.idle import (
    IdleTuning,
    Measurement,
    TunedBackend,
    load_tuned,
    read_files,
)
from fastovms.system.deferred import Deferred
from fastovms.system.disk import DiskCache, key_of, user_directory

if TYPE_CHECKING:
    from fastovms.grammar.compiler import GrammarCompiler
    from fastovms.parts.decode_kernels.prepare import CachedKernels
    from fastovms.parts.drafts.draft_model import DraftModel
    from fastovms.parts.prefix_cache.engine import PrefixDirectory

logger = logging.getLogger(__name__)

_ROOM_FOR_BOTH: Final = 4
"""A model is compiled and compared with its export at the same time if the free memory is at least
this multiple of the weights."""


@dataclass(frozen=True)
class TunedCores(SharedCores):
    """The cores that the models of one process share.

    Attributes:
        idle_tuning: measures the fastest settings of models while no engine works.
    """

    idle_tuning: IdleTuning

    @classmethod
    def share(cls) -> TunedCores:
        """Creates the cores that all models of this process share."""
        cores = SharedCores.create()
        return cls(cores.engines, cores.turn, IdleTuning(cores.engines))


_COMPILER: Final = "fastovms.app.kernel_process"
_KERNELS: Final = ("fastovms.engine.sampling_kernels", "fastovms.parts.drafts.suffix_kernels")
_COMPILED: Final = "compiled"
"""The kind of the cache entry that records that the sampling kernels are compiled."""

_DELAY: Final = 2.0
"""Seconds to wait before the compilation, so that it does not slow down a first request."""


_largest_difference: Final[Deferred[[ExportedModel], float]] = Deferred(
    "parts.comparison.graph_comparison:largest_difference"
)
_load_grammar_compiler: Final[Deferred[[Path, ModelInfo], GrammarCompiler | None]] = Deferred(
    "parts.grammars.trials:load_grammar_compiler"
)
_guard_compiler: Final[Deferred[[GrammarCompiler], Grammars]] = Deferred(
    "parts.grammars.trials:guard_compiler"
)
_beam_searches: Final[Deferred[[], BeamSearches]] = Deferred("parts.beams:BeamSearches")


class SamplingKernels(BackendExtension):
    """Samples with NumPy until the compiled sampling kernels are loaded. At the very first start, a
    separate process compiles them and those of prompt lookup; `cache` records that this is done."""

    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache

    def start(self, backend: PagedBackend) -> None:
        use_numpy_for_now()

    def prepare(self, may_go_on: WaitForRequests) -> None:
        if not may_go_on(_DELAY):
            return
        if self._cache.find(_COMPILED, self._key()) is None:
            logger.info(
                "first start: compiling the sampling code in a separate process, which takes about "
                "10 s of a core; requests are already answered, a little more slowly"
            )
            result = run_preparation(_COMPILER, *_KERNELS, may_go_on=may_go_on)
            if result is None:
                return
            if isinstance(result, WorkerFailed):
                logger.warning(
                    "sampling: the process that compiles the sampling code %s", result.reason
                )
            else:
                self._cache.put(_COMPILED, self._key(), lambda entry: (entry / "all").touch())
        try_to_load_kernels()

    @staticmethod
    def _key() -> str:
        directories = os.environ.get("NUMBA_CACHE_DIR"), user_directory("cache", os.environ)
        return key_of(__version__, version("numba"), *map(str, directories))


class LaterGraphs(BackendExtension):
    """Compiles the graphs that are not needed at first, because kernels or another graph compute
    their steps: OpenVINO's graph of the whole model, unless weights are stored only once, and the
    graph for steps of one token, unless kernels compute these steps."""

    def __init__(self, model: PagedModel, *, keeps_weights_once: bool = False) -> None:
        self._model = model
        self._keeps_weights_once = keeps_weights_once

    def prepare(self, may_go_on: WaitForRequests) -> None:
        model = self._model
        if not model.is_compiled and not self._keeps_weights_once and may_go_on(0.0):
            try:
                model.compile()
            except RuntimeError as error:
                logger.warning(
                    "OpenVINO's graph could not be compiled; decode kernels compute all steps: %s",
                    reason_of(error),
                )
        is_once = self._keeps_weights_once and model.max_few_rows > 0
        if model.awaits_single_rows and not is_once and may_go_on(0.0):
            try:
                compile_single_rows(model)
            except RuntimeError as error:
                reason = reason_of(error)
                logger.warning("no separate graph is compiled for steps of one token: %s", reason)
        model.forget_files()


def paging_comparison(files: ExportedModel) -> Comparison:
    """Returns the comparison of the paged model's results with the exported graph's."""
    return Comparison(
        "graph",
        "OpenVINO's paged attention",
        (files.model_dir / "openvino_model.xml", files.model_dir / "openvino_model.bin"),
        partial(_largest_difference, files),
        weights_size=files.weights_size,
    )


def engine_extensions(
    model: Model,
    config: EngineConfig,
    grammars: GrammarCompiler | None = None,
    draft_model: DraftModel | None = None,
    suffix_functions: SuffixFunctions | None = None,
) -> EngineExtensions:
    """Returns the extensions that enabled parts add to the engine of a model.

    Args:
        grammars: compiles grammars; None = grammars are not supported.
        draft_model: the draft model, with its cache reserved; None = no draft model.
        suffix_functions: see `SuffixIndex`.
    """
    return EngineExtensions(
        drafting_of(model, config, draft_model, suffix_functions),
        _beam_searches,
        None if grammars is None else grammars.starter,
    )


def load_paged(model_dir: Path, model: ModelInfo, config: EngineConfig) -> PagedBackend:
    """Loads a model that does not share the machine with other models; see `compile_paged`."""
    return compile_paged(model_dir, model, config)(available_memory())


def compile_paged(
    model_dir: Path, model: ModelInfo, config: EngineConfig, cache: DiskCache | None = None
) -> Callable[..., PagedBackend]:
    """Compiles the model and its draft model, if any; takes seconds, so call it in a thread. Raises
    ConfigurationError if the device cannot run the model.

    Args:
        cache: stores the tuning results; None = not stored.

    Returns:
        The function that reserves the caches; see `choice.Reserve`.
    """
    draft = None
    # Refuse an unsuitable draft model before the slow compilation.
    if config.draft_model is not None:
        from fastovms.parts.drafts import files as drafts

        draft = drafts.read_draft_files(config.draft_model, model_dir, model)
    kernels = None
    if config.precision == "exact":  # NumPy rounds sums differently and could draw another token
        kernels = load_kernels_in_thread()
    cache = cache or DiskCache(None)
    files = read_files(model_dir, config, model.max_model_len)
    model = fit_attention(model, files.graph)
    model = fit_vocabulary(model, files.vocab_size)
    with ThreadPoolExecutor(2) as beside:  # compilation uses one core for most of its time
        checked = beside.submit(check_graph, paging_comparison(files), cache)
        if draft is not None or files.available_memory() < _ROOM_FOR_BOTH * files.weights_size:
            checked.result()
        if draft is not None:  # a draft head adds outputs to the model's graph
            draft = drafts.fit_draft_files(draft, files.graph, model.max_model_len)
        kept = beside.submit(_read_kept, files, config, cache)
        compiler = beside.submit(_load_grammar_compiler, model_dir, model)
        try:
            compile_now = partial(_compile, files, config, kept)
            paged_model, token_budget, is_to_be_measured = load_tuned(
                files, config, cache, compile_now
            )
        finally:
            checked.result()
        grammars = compiler.result()
        kernels_before = kept.result()
    measurement = Measurement(model.name, model_dir, config, cache) if is_to_be_measured else None
    if config.max_num_batched_tokens is None:
        config = replace(config, max_num_batched_tokens=token_budget)
    of_model = _of_model(paged_model, files, config, cache, kernels_before)
    suffix_functions = SuffixFunctions()
    extensions = [SamplingKernels(cache), SuffixKernels(suffix_functions), *of_model]
    draft_model, further_cache = None, None
    if draft is not None:
        draft_model = drafts.load_draft_model(draft, model_dir, model, config)
        further_cache = AdditionalCache(draft_model.bytes_per_token, draft_model.allocate_cache)
    if kernels is not None:
        kernels.join()

    def reserve(
        available: int,
        prefixes: PrefixDirectory | None = None,
        cores: TunedCores | None = None,
    ) -> PagedBackend:
        further: list[BackendExtension] = []
        if prefixes is not None and config.enable_prefix_caching:
            from fastovms.parts.prefix_cache.engine import StoredPrefixes, prefix_files

            stored = prefix_files(prefixes, paged_model, model_dir, model)
            if stored is not None:
                further.append(StoredPrefixes(paged_model, stored))
        if measurement is not None:
            cores = cores or TunedCores.share()
            further.append(TunedBackend(cores.idle_tuning, measurement))
        if paged_model.is_on_gpu:
            available = paged_model.available_memory()
        return PagedBackend.from_model(
            paged_model,
            model,
            config,
            BackendParts(
                engine_extensions(paged_model, config, grammars, draft_model, suffix_functions),
                None if grammars is None else _guard_compiler(grammars),
                (*extensions, *further),
                further_cache,
                cores,
            ),
            available=available,
        )

    return reserve


class KernelsOff(BackendExtension):
    """Reports in the metrics why a model does not use the kernels."""

    def __init__(self, reason: str) -> None:
        self._status = f"not used: {reason}"

    def add_stats(self, stats: BackendStats) -> BackendStats:
        return replace(stats, decode_kernels=self._status)


def _compile(
    files: ExportedModel,
    config: EngineConfig,
    reading: Future[CachedKernels | None],
    choices: Sequence[Precisions],
) -> tuple[Precisions, PagedModel]:
    """Compiles a model, or defers that if kernels stored by an earlier start compute all steps.
    Models with adapters, drafts or states are never deferred: their other graphs derive from the
    compiled one."""
    first = files.choices[0]
    is_plain = config.draft_model is None and not config.serves_adapters
    if is_plain and choices[0] is first and not files.graph.has_states:
        kept = reading.result()
        if kept is not None and kept.layout is not None:
            logger.info("the model runs on the decode kernels stored by an earlier start")
            return first, files.compile_later(first, kept.layout)
    return files.compile(choices, single_rows_later=True)


def _read_kept(
    files: ExportedModel, config: EngineConfig, cache: DiskCache
) -> CachedKernels | None:
    """Reads the kernels stored by an earlier start, during the compilation; None = none."""
    if why_no_kernels(files, config) is not None:
        return None
    from fastovms.parts.decode_kernels.prepare import kernels_key, read_kept

    precisions = files.choices[0]
    key = kernels_key(files.graph, files.device, precisions)
    return read_kept(key, files.graph, files.device, precisions, cache, config.serves_adapters)


def _of_model(
    model: PagedModel,
    files: ExportedModel,
    config: EngineConfig,
    cache: DiskCache,
    kept: CachedKernels | None,
) -> list[BackendExtension]:
    """Returns the extensions that change how a model's steps are computed. Raises
    ConfigurationError if an adapter cannot be served."""
    extensions: list[BackendExtension] = []
    keeps_weights_once = config.memory_profile == "once"
    why_not = why_no_kernels(files, config)
    if why_not is None:
        from fastovms.parts.decode_kernels.prepare import DecodeKernels

        kernels = DecodeKernels(
            model,
            cache,
            max_model_len=files.max_model_len,
            has_adapters=config.serves_adapters,
            keeps_weights_once=keeps_weights_once,
        )
        kernels.restore(kept)
        extensions.append(kernels)
    else:
        extensions.append(KernelsOff(why_not))
    if config.serves_adapters:
        from fastovms.parts.adapters.table import AdapterTable

        adapters = AdapterTable(
            model,
            max_adapters=config.max_loras,
            max_rank=config.max_lora_rank,
            has_kernels=why_not is None,
        )
        adapters.load_first(config.lora_modules)
        extensions.append(adapters)
    return [*extensions, LaterGraphs(model, keeps_weights_once=keeps_weights_once)]

"""Loads models from their directories, with everything needed to answer requests."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fastovms.api.image_parts import ImageInput
from fastovms.api.rendering import load_chat
from fastovms.api.served import AnyServed, ChatModel, ServedModel, ServedModels, TextTokens
from fastovms.app.compiling import (
    EarlyCompilation,
    begin_loading,
    cache_of,
    check_cache_size,
    compile_model,
    convert_gguf_files,
    identified,
    load_on_device,
    part_of,
    read_info,
    task_of,
)
from fastovms.app.paged import TunedCores
from fastovms.backend import GenerationBackend
from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.model_task import read_optional, takes_images
from fastovms.backends.paged.backend import PagedBackend
from fastovms.config import EngineConfig
from fastovms.engine.model.cache_precision import check_cpu_cache
from fastovms.engine.model.compilation import check_exact
from fastovms.engine.model.devices import available_memory, is_gpu, share_memory
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import find_gguf, is_converted
from fastovms.params import ModelInfo, Task
from fastovms.server_config import MediaConfig, ModelConfig
from fastovms.system.disk import DiskCache
from fastovms.system.memory import make_binding_tables
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fastovms.parts.adapters.table import AdapterTable
    from fastovms.parts.media.loader import ImageLoader
    from fastovms.parts.prefix_cache.engine import PrefixDirectory

logger = logging.getLogger(__name__)


def check_models(models: Sequence[ModelConfig]) -> None:
    """Raises ConfigurationError for the most common configuration errors, without loading a
    model."""
    names = (name for model in models for name in (*model.names, *model.engine.lora_modules))
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigurationError(
                f"{count} models have the name {name}: give each model its own name"
            )
    for model in models:
        if model.engine.precision == "exact":
            check_exact(model.engine.plugin_config)
        if not is_gpu(model.engine.device.upper()):
            check_cpu_cache(model.engine.plugin_config)
        check_cache_size(model)
        cache = cache_of(model)
        gguf = find_gguf(model.path)
        if gguf is None:
            read_info(model)
        else:
            _check_gguf(gguf, cache)
        if model.engine.draft_model is not None:
            _check_draft_model(model.engine.draft_model, cache)


def _check_draft_model(path: Path, cache: DiskCache) -> None:
    """Raises ConfigurationError if the draft model is missing. Its vocabulary is checked later."""
    from fastovms.parts.drafts.files import (
        check_draft_files,
    )  # imported here: most servers have no draft model

    gguf = find_gguf(path)
    try:
        if gguf is None:
            check_draft_files(path)
        else:
            _check_gguf(gguf, cache)
    except ConfigurationError as error:
        raise ConfigurationError(f"the draft model cannot be used: {error}") from None


def load_models(
    models: Sequence[ModelConfig],
    media: MediaConfig,
    prefixes: PrefixDirectory | None = None,
    *,
    cores: TunedCores | None = None,
    available: Callable[[], int] = available_memory,
    ahead: EarlyCompilation | None = None,
) -> ServedModels:
    """Loads models; takes seconds, so call it in a thread. KV caches are reserved after all weights
    are loaded, so that automatic sizes share the remaining memory. Raises ConfigurationError if a
    model cannot be loaded on its device, or its cache does not fit.

    Args:
        prefixes: the prefix cache on disk; None = none.
        cores: the cores shared with the other models; None = not shared.
        available: returns the free memory in bytes for the KV caches.
        ahead: a running compilation of one of the models; None = none.
    """
    cores = cores or TunedCores.share()
    with cores.idle_tuning.occupied():
        return _load(models, media, prefixes, cores, available, ahead)


def _load(
    models: Sequence[ModelConfig],
    media: MediaConfig,
    prefixes: PrefixDirectory | None,
    cores: TunedCores,
    available: Callable[[], int],
    ahead: EarlyCompilation | None,
) -> ServedModels:
    check_models(models)
    start = time.perf_counter()
    make_binding_tables()
    others: dict[str, AnyServed] = {}
    closes: list[Callable[[], None]] = []
    for model in models:
        task = task_of(model)
        if task is not Task.TEXT_GENERATION:
            load = partial(_other, model, task, cores.turn, closes)
            others[model.name] = load_on_device(model, load)[1]
    generating = [model for model in models if model.name not in others]
    loaded = []
    with TemporaryDirectory(prefix="fastovms-") as scratch, ThreadPoolExecutor(1) as thread:
        for model in generating:
            cache = cache_of(model)
            begun = None if ahead is None else ahead.take(model)
            if begun is None:
                begin_loading(model)
            model = begun or convert_gguf_files(model, cache, Path(scratch))
            # Compilation uses one core for most of its time, so the tokenizer is loaded at the
            # same time.
            tokenizer = thread.submit(Tokenizer.load, model.path)
            chat = thread.submit(load_chat, model.path, model.chat, cache)
            compiled = begun and ahead and ahead.compiled()
            model, reserve = compiled or compile_model(model, cache)
            loaded.append((model, tokenizer.result(), chat.result(), reserve))
            closes.append(chat.result().close)
        has_vision = any(takes_images(model.path) for model in models)
        loader = _image_loader(media) if has_vision else None
        sizes = [model.engine.cache_size for model in generating]
        shares = share_memory(sizes, available(), available_memory())
        found: dict[str, AnyServed] = {
            model.name: _served(model, tokenizer, chat, reserve(share, prefixes, cores), loader)
            for (model, tokenizer, chat, reserve), share in zip(loaded, shares, strict=True)
        }
        if loader is not None:
            closes.append(loader.close)
            for model in models:
                if model.name in others and takes_images(model.path):
                    others[model.name] = _with_images(model, others[model.name], loader)
        found |= others
        served = ServedModels(
            [found[model.name] for model in models], close=partial(_close_all, closes)
        )
    logger.info("models loaded in %.1f s", time.perf_counter() - start)
    return served


def _close_all(closes: Sequence[Callable[[], None]]) -> None:
    for close in closes:
        close()


def _other(
    model: ModelConfig,
    task: Task,
    turn: ComputeTurn,
    closes: list[Callable[[], None]],
    engine: EngineConfig,
) -> AnyServed:
    """Loads a model that does not generate text."""
    model = replace(model, engine=engine)
    begin_loading(model)
    served: AnyServed = part_of(task).load(model, identified(model), turn, closes)
    return served


def _image_loader(config: MediaConfig) -> ImageLoader:
    """Returns a loader that decodes in separate processes."""
    from fastovms.parts.media.image_decoder import ImageDecoder  # few models take images
    from fastovms.parts.media.loader import ImageLoader

    decoder = ImageDecoder()
    return ImageLoader(config, decode=decoder.decode, close_decoder=decoder.close)


def _with_images(model: ModelConfig, served: Any, loader: ImageLoader) -> AnyServed:
    """Returns an embedding model with the loader of its images."""
    images = _images_of(model, served.info, served.tokens, loader)
    embedding: AnyServed = replace(served, images=images)
    return embedding


def _images_of(
    model: ModelConfig, info: ModelInfo, tokens: TextTokens, loader: ImageLoader
) -> ImageInput:
    processor = read_optional(model.path / "preprocessor_config.json")
    return loader.input_of(info, tokens, processor if isinstance(processor, dict) else {})


def _served(
    model: ModelConfig,
    tokenizer: Tokenizer,
    chat: ChatModel,
    backend: GenerationBackend,
    loader: ImageLoader | None,
) -> ServedModel:
    info = backend.model
    metrics = GenerationMetrics(
        info.name,
        backend.stats,
        labels={"max_model_len": str(info.max_model_len), "device": model.engine.device},
    )
    images = None
    if info.takes_images:
        assert loader is not None
        images = _images_of(model, info, tokenizer, loader)
    tokenizer.detokenizer(keep=chat.tags)  # builds its lookup table now, not at the first request
    return ServedModel(
        backend,
        tokenizer,
        metrics,
        model.limits,
        chat,
        model.names[1:],
        images,
        adapters=_adapters_of(backend) if model.engine.serves_adapters else None,
    )


def _adapters_of(backend: GenerationBackend) -> AdapterTable | None:
    from fastovms.parts.adapters.table import AdapterTable  # most servers serve no adapters

    extensions = backend.extensions if isinstance(backend, PagedBackend) else ()
    return next((one for one in extensions if isinstance(one, AdapterTable)), None)


def _check_gguf(path: Path, cache: DiskCache) -> None:
    """Raises ConfigurationError if a GGUF file cannot be served."""
    if is_converted(path, cache):  # reading a large vocabulary takes half a second
        return
    from fastovms.gguf.converter import read_contents  # most models are not GGUF files

    read_contents(path)

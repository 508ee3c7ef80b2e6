"""Compiles models from their directories or GGUF files. Does not import the API, so that a model
can be compiled while the rest of the server is imported."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import openvino as ov

from fastovms.app.choice import Reserve, compile_backend
from fastovms.backends.model_files import (
    count_weights,
    fingerprint_of,
    limit_context,
    log_missing,
    read_model_info,
)
from fastovms.backends.model_task import find_task, has_own_head, makes_images, own_head_weights
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import (
    AUTO,
    GIB,
    MAX_MEMORY_SHARE,
    available_memory,
    choose_device,
    format_size,
    is_cpu,
    read_devices,
)
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import NotStored, find_gguf, gguf_size, model_directory
from fastovms.params import ModelInfo, Task
from fastovms.server_config import ModelConfig
from fastovms.system.disk import DiskCache, cache_root
from fastovms.system.memory import make_binding_tables, memory_left, memory_limit

logger = logging.getLogger(__name__)


T = TypeVar("T")


_WEIGHTS: Final = "*.bin"


_FIXED: Final = (Task.SPEECH, Task.SPEECH_OUT, Task.IMAGES)
"""The tasks whose models have a fixed context length."""

_PARTS: Final[Mapping[Task, str]] = {
    Task.EMBEDDINGS: "fastovms.parts.embeddings.served",
    Task.RERANK: "fastovms.parts.embeddings.served",
    Task.SPEECH: "fastovms.parts.speech.served",
    Task.IMAGES: "fastovms.parts.images.served",
    Task.SPEECH_OUT: "fastovms.parts.speech_out.served",
}
"""The modules that read and load models that do not generate text: `read_info` and `load`."""


def part_of(task: Task) -> Any:
    """Returns the module for models of a task other than generating text."""
    return import_module(_PARTS[task])


def task_of(model: ModelConfig) -> Task:
    """Returns the task of a model. Raises ConfigurationError if its graph fits no task."""
    if find_gguf(model.path) is not None:
        return Task.TEXT_GENERATION
    return find_task(model.path, model.encoder.task)


def read_info(model: ModelConfig) -> ModelInfo:
    """Returns a model's properties from its files and the operator's settings. Takes milliseconds.
    Raises ConfigurationError if a file is missing or broken."""
    task = task_of(model)
    if task is not Task.TEXT_GENERATION:
        info: ModelInfo = part_of(task).read_info(model.path, name=model.name)
        return info if task in _FIXED else limit_context(info, model.engine.max_model_len)
    info = read_model_info(
        model.path,
        name=model.name,
        generation_config=model.generation_config,
        override_generation_config=model.override_generation_config,
        has_defaults=model.has_defaults,
    )
    return limit_context(info, model.engine.max_model_len)


def identified(model: ModelConfig) -> ModelInfo:
    """Like `read_info`, and adds a hash of the files of the loaded model."""
    return replace(
        read_info(model),
        fingerprint=fingerprint_of(model.path),
        weights=count_weights(model.path),
    )


def cache_of(model: ModelConfig) -> DiskCache:
    """Returns the disk cache for a model's compiled code and measurements."""
    return DiskCache(cache_root(model.engine.cache_dir, os.environ))


def on_device(model: ModelConfig, core: ov.Core | None = None) -> ModelConfig:
    """Returns the configuration with the device that AUTO chooses, and logs the choice. A device
    named by the operator is not changed. `core` is OpenVINO's; None = a new one."""
    engine = model.engine
    if engine.device.upper() != AUTO:
        return model
    choice = choose_device(read_devices(core or ov.Core()), engine.why_cpu)
    logger.info("model %s: --device AUTO chooses %s: %s", model.name, choice.name, choice.reason)
    return replace(model, engine=replace(engine, device=choice.name))


def load_on_device(model: ModelConfig, load: Callable[[EngineConfig], T]) -> tuple[ModelConfig, T]:
    """Loads a model on its device, or on the CPU if AUTO has chosen a device that refuses it.
    Returns the configuration with the device, and the result of `load`."""
    chosen = on_device(model)
    try:
        return chosen, load(chosen.engine)
    except ConfigurationError as error:
        if chosen.engine.device in ("CPU", model.engine.device):
            raise
        logger.warning("model %s: --device AUTO takes the CPU, because %s", model.name, error)
    chosen = replace(model, engine=replace(model.engine, device="CPU"))
    return chosen, load(chosen.engine)


def convert_gguf_files(model: ModelConfig, cache: DiskCache, scratch: Path | None) -> ModelConfig:
    """Returns the configuration with GGUF files replaced by their converted model directories. See
    `model_directory`. Raises ConfigurationError if a file is to draft for itself and has no
    head."""
    engine, path = model.engine, model_directory(model.path, cache, scratch)
    draft = engine.draft_model
    if draft is not None:
        if draft == model.path != path and not has_own_head(path):
            raise ConfigurationError(f"{draft} has no MTP head that can be read")
        draft = path if draft == model.path else model_directory(draft, cache, scratch)
        engine = replace(engine, draft_model=draft)
    return replace(model, path=path, engine=engine)


class CompiledModel(NamedTuple):
    """A compiled model.

    Attributes:
        config: the configuration of the model, with its device.
        reserve: the function that reserves its KV cache.
    """

    config: ModelConfig
    reserve: Reserve


def compile_model(model: ModelConfig, cache: DiskCache) -> CompiledModel:
    """Compiles a generative model; takes seconds. Raises ConfigurationError if the model cannot be
    compiled on its device."""
    info = identified(model)
    log_missing(info, model.override_generation_config)
    return CompiledModel(
        *load_on_device(model, partial(compile_backend, model.path, info, cache=cache))
    )


class EarlyCompilation:
    """Compiles a model in a thread, while the rest of the server is imported.

    Attributes:
        model: the configuration of the model.
    """

    def __init__(self, model: ModelConfig) -> None:
        self.model = model
        self._converted: Future[ModelConfig | None] | None = Future()
        self._compiled: Future[CompiledModel] = Future()
        threading.Thread(
            target=self._run, args=(self._converted,), name="compile", daemon=True
        ).start()

    def take(self, model: ModelConfig) -> ModelConfig | None:
        """Waits for the conversion of the model, and returns the result of `convert_gguf_files`;
        call `compiled` afterwards. Returns None if this is another model, an earlier call took it,
        or its conversion cannot be stored. Raises ConfigurationError like `begin_loading` and
        `convert_gguf_files`."""
        if self._converted is None or model != self.model:
            return None
        converted, self._converted = self._converted, None
        return converted.result()

    def compiled(self) -> CompiledModel:
        """Waits for the compiled model, and returns it. Raises ConfigurationError like
        `compile_model`."""
        return self._compiled.result()

    def _run(self, converted: Future[ModelConfig | None]) -> None:
        try:
            make_binding_tables()
            cache = cache_of(self.model)
            begin_loading(self.model)
            model = convert_gguf_files(self.model, cache, None)
        except NotStored:
            converted.set_result(None)
            return
        except BaseException as error:
            converted.set_exception(error)
            return
        converted.set_result(model)
        try:
            self._compiled.set_result(compile_model(model, cache))
        except BaseException as error:
            self._compiled.set_exception(error)


def compile_ahead(model: ModelConfig) -> EarlyCompilation | None:
    """Starts to compile a model. Returns None if it is not generative, or its conversion cannot be
    stored."""
    with suppress(ConfigurationError):  # the server reports the error later
        if task_of(model) is Task.TEXT_GENERATION and cache_of(model).is_kept:
            return EarlyCompilation(model)
    return None


def begin_loading(model: ModelConfig) -> None:
    """Logs that a model is being loaded, and a warning if its weights leave little free memory.
    Raises ConfigurationError if the weights need more memory than there is."""
    logger.info("loading %s from %s", model.name, model.path)
    weights, free = weights_size(model), available_memory()
    if weights <= MAX_MEMORY_SHARE * free or not _runs_on_cpu(model):
        return
    limited = ", as far as its limits go (cgroup, ulimit -v)" if memory_left() <= free else ""
    text = (
        f"{model.name} has {format_size(weights)} of weights, but {format_size(free)} of memory "
        f"are free for this process{limited}"
    )
    if weights > available_memory(with_swap=True):
        raise ConfigurationError(f"{text}: use weights in 4 bits, a smaller model, or more memory")
    logger.warning("%s: the system may end this process", text)


def check_cache_size(model: ModelConfig) -> None:
    """Raises ConfigurationError if the KV cache is larger than the memory limit of this process."""
    size, most = model.engine.cache_size, memory_limit() / GIB
    if size > most and _runs_on_cpu(model):
        raise ConfigurationError(
            f"--cache-size {size:g} GiB is more than the memory that this process may use: at most "
            f"{math.floor(most * 10) / 10:g} GiB"
        )


def weights_size(model: ModelConfig) -> int:
    """Returns the size of a model's weights in bytes, including its draft model."""
    draft = model.engine.draft_model
    if draft is None or draft == model.path:
        return _file_sizes(model.path)
    if has_own_head(draft):
        return _file_sizes(model.path) + own_head_weights(draft).stat().st_size
    return _file_sizes(model.path) + _file_sizes(draft)


def _file_sizes(path: Path) -> int:
    gguf = find_gguf(path)
    if gguf is not None:
        return gguf_size(gguf)
    pattern = f"*/{_WEIGHTS}" if makes_images(path) else _WEIGHTS
    return sum(file.stat().st_size for file in path.glob(pattern))


def _runs_on_cpu(model: ModelConfig) -> bool:
    device = model.engine.device.upper()
    if device == AUTO:
        device = choose_device(read_devices(ov.Core()), model.engine.why_cpu).name
    return is_cpu(device)

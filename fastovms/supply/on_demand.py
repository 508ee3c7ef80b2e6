"""Says which models there are, in memory or not, and what each takes; loads one at a time."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from fastovms.api.serving.model_pool import ModelPlan
from fastovms.api.serving.served import KnownModel, ServedModels
from fastovms.api.serving.served_encoder import CAPABILITIES
from fastovms.app.loading import check_models, encodes, read_info
from fastovms.backends.model_files.fingerprint import fingerprint_of
from fastovms.backends.model_files.model_task import find_task
from fastovms.backends.paged.prefix_fingerprint import PrefixDirectory
from fastovms.config.model_config import ModelConfig
from fastovms.config.residency_config import ResidencyConfig
from fastovms.config.settings import ModelSource
from fastovms.engine.model.machine.device_memory import FREE_MEMORY_SHARE, GIB, available_memory
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import find_gguf
from fastovms.system.daemon_thread import in_daemon_thread

_WEIGHTS: Final = "*.bin"


class FoundModels(NamedTuple):
    """What a list of models leads to.

    Attributes:
        configs: the models that can be served, as far as that is seen without loading them.
        faults: what is wrong with the others.
    """

    configs: list[ModelConfig]
    faults: list[str]


def find_each(
    sources: Sequence[ModelSource],
    find: Callable[[ModelSource], ModelConfig],
    present: Sequence[ModelConfig],
    residency: ResidencyConfig,
) -> FoundModels:
    """Finds models one by one, so that one at fault, or one that is too large, leaves the rest. In
    its place stays the one of `present` that has its name.

    Raises:
        ConfigurationError: two have one name.
    """
    configs: list[ModelConfig] = []
    faults: list[str] = []
    for source in sources:
        try:
            config = find(source)
            check_models([config])
            _memory_size(config, residency, 1)
            configs.append(config)
        except ConfigurationError as error:
            name = source.names[0] if source.names else source.location
            faults.append(f"{name}: {error}")
            configs += [config for config in present if config.name == name]
    counts = Counter(name for config in configs for name in config.names)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ConfigurationError(f"several models have the name {twice[0]}")
    return FoundModels(configs, faults)


def plan_models(configs: Sequence[ModelConfig], residency: ResidencyConfig) -> list[ModelPlan]:
    """Says what is known of models that are not loaded, and how much memory each takes.

    Raises:
        ConfigurationError: one takes more than all together may.
    """
    plans = []
    for config in configs:
        size = _memory_size(config, residency, len(configs))
        plans.append(ModelPlan(config, _known(config), size, weights_size(config)))
    return plans


def _memory_size(config: ModelConfig, residency: ResidencyConfig, num_models: int) -> int:
    """Returns the bytes that a model takes, one of so many. Raises as `plan_models` does."""
    memory = residency.model_memory
    weights = weights_size(config)
    has_cache = not encodes(config)
    cache = config.engine.cache_size * GIB * has_cache
    if has_cache and not cache and memory is not None:
        cache = FREE_MEMORY_SHARE * _room(residency, memory - weights, num_models)
    size = int(weights + cache)
    if memory is not None and size >= memory:
        cached = " with its KV cache" if has_cache else ""
        raise ConfigurationError(
            f"{config.name} takes about {size / GIB:.1f} GB{cached}: --model-memory must be more "
            f"than that, not {memory / GIB:.1f} GB"
        )
    return size


def weights_size(config: ModelConfig) -> int:
    """Returns the bytes of a model's weights, those of its draft model included."""
    paths = [config.path, *filter(None, [config.engine.draft_model])]
    return sum(_file_sizes(path) for path in paths)


def _file_sizes(path: Path) -> int:
    gguf = find_gguf(path)
    files = path.glob(_WEIGHTS) if gguf is None else [gguf]
    return sum(file.stat().st_size for file in files)


def _known(config: ModelConfig) -> KnownModel:
    gguf = find_gguf(config.path)
    if gguf is not None:  # it says more once it is converted
        return KnownModel(config.name, config.names[1:], int(gguf.stat().st_mtime))
    info = read_info(config)
    task = find_task(config.path, config.encoder.task)
    return KnownModel(
        config.name,
        config.names[1:],
        info.created,
        info.max_model_len,
        info.takes_images,
        task,
        CAPABILITIES.get(task),  # those of models that generate are seen as they are loaded
        fingerprint=fingerprint_of(config.path),
        info=info,
    )


def _room(residency: ResidencyConfig, available: int, num_models: int) -> int:
    """Returns the share of free memory of one of the models that may be in memory together."""
    return max(0, available) // (residency.max_loaded_models or max(1, num_models))


class LoadModels(Protocol):
    """Loads models. Raises ConfigurationError: one cannot be loaded."""

    def __call__(
        self,
        models: Sequence[ModelConfig],
        *,
        prefixes: PrefixDirectory | None,
        available: Callable[[], int] = available_memory,
    ) -> ServedModels: ...


@dataclass(frozen=True, slots=True)
class OneModelLoader:
    """Implements `ModelLoader`: loads each model in a thread of its own.

    Attributes:
        load_models: loads them, in the thread that it is called in.
        num_models: returns how many there are, in memory or not.
        trim: gives what malloc keeps back to the system.
        prefixes: where computed prompts are kept on disk, of all models; None = nowhere.
    """

    load_models: LoadModels
    residency: ResidencyConfig
    num_models: Callable[[], int]
    trim: Callable[[], None]
    prefixes: PrefixDirectory | None = None

    async def load(self, config: ModelConfig, num_loaded: int) -> ServedModels:
        def load() -> ServedModels:
            available = partial(self._available, num_loaded, weights_size(config))
            models = self.load_models([config], prefixes=self.prefixes, available=available)
            settle_memory()
            return models

        return await in_daemon_thread("load", load)

    async def reclaim(self) -> None:
        def reclaim() -> None:
            gc.unfreeze()  # what a model leaves may refer to itself
            settle_memory()
            self.trim()

        await in_daemon_thread("reclaim", reclaim)

    def _available(self, num_loaded: int, weights: int) -> int:
        """Returns how much of the free memory the model may count as its own."""
        memory, num_models = self.residency.model_memory, self.num_models()
        num_further = (self.residency.max_loaded_models or num_models) - num_loaded
        free = available_memory() // max(1, num_further)
        return (
            free
            if memory is None
            else min(free, _room(self.residency, memory - weights, num_models))
        )


def settle_memory() -> None:
    """Has the collector of garbage look no more at what is there now, which mostly stays."""
    gc.collect()
    gc.freeze()

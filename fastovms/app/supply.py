"""Finds, loads and unloads models: on demand, and when the list of models changes."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fastovms.api.admin import ReloadOutcome
from fastovms.api.served import CAPABILITIES, KnownModel, ServedModels
from fastovms.app.compiling import read_info, task_of, weights_size
from fastovms.app.loading import check_models
from fastovms.app.paged import TunedCores
from fastovms.backends.model_files import fingerprint_of
from fastovms.engine.model.devices import FREE_MEMORY_SHARE, GIB, available_memory
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import find_gguf
from fastovms.params import Task
from fastovms.parts.several_models.model_pool import ModelPlan, ModelPool
from fastovms.parts.several_models.residency import Residency
from fastovms.server_config import ModelConfig, ModelSource, ResidencyConfig
from fastovms.service.lifecycle import FileWatch
from fastovms.system.memory import find_trim
from fastovms.system.threads import in_daemon_thread

if TYPE_CHECKING:
    from fastovms.parts.prefix_cache.directory import BlockDirectory
    from fastovms.parts.prefix_cache.engine import PrefixDirectory

logger = logging.getLogger(__name__)


class FoundModels(NamedTuple):
    """The result of applying a list of models.

    Attributes:
        configs: the models that can be served, as far as can be checked without loading.
        faults: the error messages of the other models.
    """

    configs: list[ModelConfig]
    faults: list[str]


def find_each(
    sources: Sequence[ModelSource],
    find: Callable[[ModelSource], ModelConfig],
    present: Sequence[ModelConfig],
    residency: ResidencyConfig,
) -> FoundModels:
    """Finds models one by one, so that an invalid or too large model does not affect the others. If
    a model is invalid, the model of the same name in `present` stays. Raises ConfigurationError if
    two models have the same name."""
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
    """Returns the description and memory size of each model, without loading it. Raises
    ConfigurationError if a model needs more than the memory limit."""
    plans, num_together = [], _num_together(configs)
    for config in configs:
        size = _memory_size(config, residency, num_together)
        plans.append(ModelPlan(config, _known(config), size, weights_size(config)))
    return plans


def _memory_size(config: ModelConfig, residency: ResidencyConfig, num_models: int) -> int:
    """Returns a model's memory in bytes if `num_models` models share the memory. Raises
    ConfigurationError like `plan_models`."""
    memory = residency.model_memory
    weights = weights_size(config)
    has_cache = task_of(config) is Task.TEXT_GENERATION
    cache = config.engine.cache_size * GIB * has_cache
    if has_cache and not cache and memory is not None:
        cache = FREE_MEMORY_SHARE * _room(residency, memory - weights, num_models)
    size = int(weights + cache)
    if memory is not None and size >= memory:
        cached = " with its KV cache" if has_cache else ""
        raise ConfigurationError(
            f"{config.name} takes about {size / GIB:.1f} GiB{cached}: --model-memory must be more "
            f"than that, not {memory / GIB:.1f} GiB"
        )
    return size


def _num_together(configs: Iterable[ModelConfig]) -> int:
    """Returns the maximum number of models that are in memory at the same time, by their groups."""
    policies = [config.residency for config in configs]
    groups = Counter(policy.group for policy in policies if policy.is_exclusive)
    return len(policies) - groups.total() + max(groups.values(), default=0)


def _known(config: ModelConfig) -> KnownModel:
    gguf = find_gguf(config.path)
    if gguf is not None:  # its conversion provides the other facts
        return KnownModel(config.name, config.names[1:], int(gguf.stat().st_mtime))
    info = read_info(config)
    task = task_of(config)
    return KnownModel(
        config.name,
        config.names[1:],
        info.created,
        info.max_model_len,
        info.takes_images,
        task,
        CAPABILITIES.get(task),  # capabilities of generating models are known once they are loaded
        fingerprint=fingerprint_of(config.path),
        info=info,
    )


def _room(residency: ResidencyConfig, available: int, num_models: int) -> int:
    """Returns the share of free memory, in bytes, for one of `num_models` loaded models."""
    return max(0, available) // (residency.max_loaded_models or max(1, num_models))


class LoadModels(Protocol):
    """The type of a function that loads models. Raises ConfigurationError if a model cannot be
    loaded."""

    def __call__(
        self,
        models: Sequence[ModelConfig],
        *,
        prefixes: PrefixDirectory | None,
        available: Callable[[], int] = available_memory,
    ) -> ServedModels: ...


@dataclass(frozen=True, slots=True)
class OneModelLoader:
    """Implements `ModelLoader`: loads each model in a separate thread.

    Attributes:
        load_models: loads models in the calling thread.
        num_models: returns the maximum number of models that are in memory at the same time.
        trim: returns malloc's free memory to the operating system.
        prefixes: the prefix cache on disk, for all models; None = none.
        wait_until_left: waits for threads that still use a closed model.
    """

    load_models: LoadModels
    residency: ResidencyConfig
    num_models: Callable[[], int]
    trim: Callable[[], None]
    prefixes: PrefixDirectory | None = None
    wait_until_left: Callable[[], None] = lambda: None

    async def load(self, config: ModelConfig, num_loaded: int) -> ServedModels:
        """Loads a model in addition to `num_loaded` others. Raises ConfigurationError if it cannot
        be loaded."""

        def load() -> ServedModels:
            available = partial(self._available, num_loaded, weights_size(config))
            models = self.load_models([config], prefixes=self.prefixes, available=available)
            freeze_objects()
            return models

        return await in_daemon_thread("load", load)

    async def reclaim(self) -> None:
        """Returns the memory of unloaded models to the operating system."""

        def reclaim() -> None:
            self.wait_until_left()
            gc.unfreeze()  # an unloaded model may be part of reference cycles
            freeze_objects()
            self.trim()

        await in_daemon_thread("reclaim", reclaim)

    def _available(self, num_loaded: int, weights: int) -> int:
        """Returns the share of free memory for the model, in bytes."""
        memory, num_models = self.residency.model_memory, self.num_models()
        num_further = (self.residency.max_loaded_models or num_models) - num_loaded
        free = available_memory() // max(1, num_further)
        return (
            free
            if memory is None
            else min(free, _room(self.residency, memory - weights, num_models))
        )


def freeze_objects() -> None:
    """Excludes all current objects from garbage collection, since most of them live as long as the
    process."""
    gc.collect()
    gc.freeze()


ReadList = Callable[[], Sequence[ModelSource]]
"""Reads the list of models again. Raises ConfigurationError if the list is broken."""


class ModelSupply:
    """Finds, loads and reloads the models of one server.

    Args:
        find: finds a model, and downloads it if needed.
        load_models: loads models in the calling thread.
        open_blocks: opens the prefix cache on disk; None = none.
        keeps_salted: whether prompts with a `cache_salt` are stored in that cache.
        list_path: the file with the list of models; None = no list.
        read_list: reads the list again.
        cores: the cores that models share; None = each model has its own.
    """

    def __init__(
        self,
        sources: Sequence[ModelSource],
        find: Callable[[ModelSource], ModelConfig],
        load_models: LoadModels,
        residency: ResidencyConfig,
        *,
        open_blocks: Callable[[], BlockDirectory | None],
        keeps_salted: bool = False,
        list_path: Path | None = None,
        read_list: ReadList | None = None,
        cores: TunedCores | None = None,
    ) -> None:
        self._sources = sources
        self._find = find
        self._config = residency
        self._load_models = load_models
        self._open_blocks = open_blocks
        self._keeps_salted = keeps_salted
        self._prefixes: PrefixDirectory | None = None
        self._read_list = read_list
        self._cores = cores or TunedCores.share()
        self._residency = Residency(residency)
        self._configs: list[ModelConfig] | None = None
        self._plans: list[ModelPlan] = []
        self._pool: ModelPool | None = None
        self._watch: FileWatch | None = None
        if list_path is not None:  # watch the list from now on, because loading may take minutes
            self._watch = FileWatch(list_path, residency.poll_interval, self.reload_soon)
        self._is_outdated = False
        self._reading = asyncio.Lock()
        self._next_reload: asyncio.Task[ReloadOutcome] | None = None
        self._reloads: set[asyncio.Task[ReloadOutcome]] = set()
        self._loads: list[asyncio.Future[None]] = []

    def find(self, found: Sequence[ModelConfig] | None = None) -> None:
        """Finds the models and checks their files; takes long if a model must be downloaded. Raises
        ConfigurationError if a model is missing or broken. `found` are the models, if they have
        been found already."""
        if found is None:
            found = [self._find(source) for source in self._sources]
        self._configs = list(found)
        check_models(self._configs)

    def load(self) -> ServedModels:
        """Loads the initial models in a thread. Only reads the files' metadata of models that are
        loaded on demand. Raises ConfigurationError if a model cannot be loaded."""
        if self._configs is None:
            self.find()
        assert self._configs is not None
        self._plans = plan_models(self._configs, self._config)
        blocks = self._open_blocks()
        if blocks is not None:
            from fastovms.parts.prefix_cache.engine import PrefixDirectory

            self._prefixes = PrefixDirectory(blocks, self._keeps_salted)
        policies = [config.residency for config in self._configs]
        if self._config.loads_on_demand(policies) or not self._configs:
            models = ServedModels()
            models.set_known([plan.known for plan in self._plans])
        else:
            models = self._load_models(self._configs, prefixes=self._prefixes)
        models.close = partial(_close, models.close, blocks)
        return models

    def start(self, models: ServedModels) -> ModelPool:
        """Returns the pool that from now on loads and unloads models, by requests and by the list
        of models."""
        plans = [
            plan._replace(known=known)
            for plan, known in zip(self._plans, models.known, strict=True)
        ]
        pool: ModelPool
        loader = OneModelLoader(
            self._load_models,
            self._config,
            lambda: _num_together(pool.configs.values()),
            find_trim(),
            self._prefixes,
            self._cores.wait_until_left,
        )
        self._pool = pool = ModelPool(
            models,
            self._residency,
            loader,
            clock=time.monotonic,
            wait_timeout=self._config.wait_timeout,
            occupied=self._cores.idle_tuning.occupied,
        )
        pool.start(plans)
        if self._watch is not None:
            self._watch.start(asyncio.get_running_loop())
        if self._is_outdated:
            self.reload_soon()
        return pool

    @property
    def has_list(self) -> bool:
        """Whether the server has a list of models that may change."""
        return self._read_list is not None

    def reload_soon(self) -> None:
        """Reads the list of models again, once the initial models are loaded, and logs the
        result."""
        if self._pool is None:
            self._is_outdated = True
        elif self.has_list:
            asyncio.ensure_future(self._reload_and_log())  # noqa: RUF006

    async def reload(self) -> ReloadOutcome:
        """Reads the list of models again, and returns once new models are loaded. Calls that arrive
        before the reading begins share its result. Raises ConfigurationError if the list cannot be
        read; then nothing changes."""
        if self._next_reload is None:
            self._next_reload = asyncio.ensure_future(self._reload())
            self._reloads.add(self._next_reload)
            self._next_reload.add_done_callback(self._reloads.discard)
        return await asyncio.shield(self._next_reload)

    async def _reload_and_log(self) -> None:
        try:
            for fault in (await self.reload()).faults:
                logger.error("list of models: a model cannot be served: %s", fault)
        except ConfigurationError as error:
            logger.error("list of models: cannot be reloaded: %s", error)

    async def _reload(self) -> ReloadOutcome:
        pool, read_list = self._pool, self._read_list
        assert pool is not None
        assert read_list is not None

        def plan() -> tuple[list[ModelPlan], list[str]]:
            found = find_each(read_list(), self._find, present, self._config)
            if found.faults and not found.configs:
                raise ConfigurationError("; ".join(found.faults))
            return plan_models(found.configs, self._config), found.faults

        async with self._reading:
            self._next_reload = None
            present = list(pool.configs.values())
            plans, faults = await asyncio.to_thread(plan)
            changes = pool.apply(plans)
            # Include unfinished loads of earlier reloads, because the caller waits for all new
            # models.
            earlier = [load for load in self._loads if not load.done()]
            loads = self._loads = [*earlier, *changes.loads]
        if loads:
            await asyncio.wait(loads)
        faults += [str(load.exception()) for load in loads if load.exception() is not None]
        return ReloadOutcome(changes.is_any or bool(earlier), faults)

    async def close(self) -> None:
        """Stops loading and unloading models; does not close loaded models."""
        if self._watch is not None:
            self._watch.stop()
        for reload in self._reloads:
            reload.cancel()
        if self._pool is not None:
            await self._pool.close()


def _close(close: Callable[[], None], blocks: BlockDirectory | None) -> None:
    """Closes the models' shared resources. The prefix cache is closed last, because models write to
    it until they are closed."""
    close()
    if blocks is not None:
        blocks.close()

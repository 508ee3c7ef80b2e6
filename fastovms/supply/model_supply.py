"""Brings a server its models: those of the start, those that requests ask for, and those of a list
that has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fastovms.api.admin.servables import ReloadOutcome
from fastovms.api.serving.model_pool import ModelPlan, ModelPool
from fastovms.api.serving.residency import Residency
from fastovms.api.serving.served import ServedModels
from fastovms.app.loading import check_models
from fastovms.backends.paged.prefix_fingerprint import PrefixDirectory
from fastovms.config.model_config import ModelConfig
from fastovms.config.residency_config import ResidencyConfig
from fastovms.config.settings import ModelSource
from fastovms.errors import ConfigurationError
from fastovms.prefix_cache.block_directory import BlockDirectory
from fastovms.service.file_watch import FileWatch
from fastovms.supply.on_demand import LoadModels, OneModelLoader, find_each, plan_models
from fastovms.system.free_memory import find_trim

logger = logging.getLogger(__name__)

ReadList = Callable[[], Sequence[ModelSource]]
"""Reads the list of models again. Raises ConfigurationError: it is broken."""


class ModelSupply:
    """The models of one server.

    Args:
        find: finds a model, if need be by pulling it.
        load_models: loads some, in the thread that it is called in.
        open_blocks: opens the directory in which computed prompts are kept; None = there is none.
        keeps_salted: whether prompts with a `cache_salt` are kept there.
        list_path: the file that lists the models; None = there is none.
        read_list: reads it again.
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
    ) -> None:
        self._sources = sources
        self._find = find
        self._config = residency
        self._load_models = load_models
        self._open_blocks = open_blocks
        self._keeps_salted = keeps_salted
        self._prefixes: PrefixDirectory | None = None
        self._list_path = list_path
        self._read_list = read_list
        self._residency = Residency(residency)
        self._configs: list[ModelConfig] | None = None
        self._plans: list[ModelPlan] = []
        self._pool: ModelPool | None = None
        self._watch: FileWatch | None = None
        self._reading = asyncio.Lock()
        self._next_reload: asyncio.Task[ReloadOutcome] | None = None
        self._reloads: set[asyncio.Task[ReloadOutcome]] = set()
        self._loads: list[asyncio.Future[None]] = []

    def find(self) -> None:
        """Finds the models and checks their files, which takes long where one is to be pulled.

        Raises:
            ConfigurationError: one is not there, or is broken.
        """
        self._configs = [self._find(source) for source in self._sources]
        check_models(self._configs)

    def load(self) -> ServedModels:
        """Loads the models of the start, in a thread. Those that are loaded on demand are only
        looked at.

        Raises:
            ConfigurationError: one cannot be loaded.
        """
        if self._configs is None:
            self.find()
        assert self._configs is not None
        self._plans = plan_models(self._configs, self._config)
        blocks = self._open_blocks()
        if blocks is not None:
            self._prefixes = PrefixDirectory(blocks, self._keeps_salted)
        if self._residency.loads_on_demand or not self._configs:
            models = ServedModels()
            models.set_known([plan.known for plan in self._plans])
        else:
            models = self._load_models(self._configs, prefixes=self._prefixes)
        models.close = partial(_close, models.close, blocks)
        return models

    def start(self, models: ServedModels) -> ModelPool:
        """Has models come and go from now on, as requests and the list of models want it."""
        plans = [
            plan._replace(known=known)
            for plan, known in zip(self._plans, models.known, strict=True)
        ]
        loader = OneModelLoader(
            self._load_models, self._config, lambda: len(models.known), find_trim(), self._prefixes
        )
        self._pool = pool = ModelPool(
            models,
            self._residency,
            loader,
            clock=time.monotonic,
            wait_timeout=self._config.wait_timeout,
        )
        pool.start(plans)
        if self._list_path is not None:
            self._watch = FileWatch(self._list_path, self._config.poll_interval, self.reload_soon)
            self._watch.start(asyncio.get_running_loop())
        return pool

    @property
    def has_list(self) -> bool:
        """Whether there is a list of models that may change."""
        return self._read_list is not None

    def reload_soon(self) -> None:
        """Reads the list of models again; what comes of it is told in the log."""
        if self.has_list and self._pool is not None:
            asyncio.ensure_future(self._reload_and_tell())  # noqa: RUF006

    async def reload(self) -> ReloadOutcome:
        """Reads the list of models again, and returns when what is new is loaded. Those who come
        before the reading begins share it: it sees what the list has been until then.

        Raises:
            ConfigurationError: the list cannot be read; nothing has changed.
        """
        if self._next_reload is None:
            self._next_reload = asyncio.ensure_future(self._reload())
            self._reloads.add(self._next_reload)
            self._next_reload.add_done_callback(self._reloads.discard)
        return await asyncio.shield(self._next_reload)

    async def _reload_and_tell(self) -> None:
        try:
            for fault in (await self.reload()).faults:
                logger.error("list of models: %s", fault)
        except ConfigurationError as error:
            logger.error("the list of models is not reloaded: %s", error)

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
            # Those of an earlier reading count, too: their models are as new to whoever asks now.
            earlier = [load for load in self._loads if not load.done()]
            loads = self._loads = [*earlier, *changes.loads]
        if loads:
            await asyncio.wait(loads)
        faults += [str(load.exception()) for load in loads if load.exception() is not None]
        return ReloadOutcome(changes.is_any or bool(earlier), faults)

    async def close(self) -> None:
        """Ends what comes and goes, not the models that are there."""
        if self._watch is not None:
            self._watch.stop()
        for reload in self._reloads:
            reload.cancel()
        if self._pool is not None:
            await self._pool.close()


def _close(close: Callable[[], None], blocks: BlockDirectory | None) -> None:
    """Gives back what models share, the directory of prompts last: models write to it until they
    are closed."""
    close()
    if blocks is not None:
        blocks.close()

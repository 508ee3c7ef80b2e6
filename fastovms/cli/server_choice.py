"""Puts together what an operator has chosen for a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastovms.config.api_config import ApiConfig, MediaConfig
from fastovms.config.engine_config import PrefixCacheConfig
from fastovms.config.files_config import BatchConfig, FilesConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.residency_config import ResidencyConfig
from fastovms.config.service_config import ServiceConfig, StateConfig
from fastovms.config.settings import ModelSource, Settings

if TYPE_CHECKING:
    from fastovms.app.serve import ServerConfig
    from fastovms.supply.model_supply import ReadList


def server_config(
    models: Sequence[ModelSource],
    settings: Settings,
    model_list: Path | None = None,
    read_models: ReadList | None = None,
) -> ServerConfig:
    """Returns the configuration. The first call takes some seconds, which OpenVINO does."""
    from fastovms.app.serve import ServerConfig

    return ServerConfig(
        tuple(models),
        repository=settings.section(RepositoryConfig),
        http=settings.section(HttpConfig),
        api=settings.section(ApiConfig),
        security=settings.section(SecurityConfig),
        service=settings.section(ServiceConfig),
        state=settings.section(StateConfig),
        media=settings.section(MediaConfig),
        prefix_cache=settings.section(PrefixCacheConfig),
        residency=settings.section(ResidencyConfig),
        files=settings.section(FilesConfig),
        batches=settings.section(BatchConfig),
        model_list=model_list,
        read_models=read_models,
    )

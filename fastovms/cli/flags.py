"""The flags of `serve`, generated from the sections of the configuration."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Final

from fastovms.cli.flag import groups_of, settings_of
from fastovms.config import HttpConfig
from fastovms.server_config import HTTP, SECTIONS, Settings

HUB_GROUP: Final = "models of a hub"
ENGINE_GROUP: Final = "batching and memory"
BATCH_GROUP: Final = "batches"
PREFIX_CACHE_GROUP: Final = "prefix cache on disk"
COMMON_GROUP: Final = "most used"

_TITLES: Final = (
    HUB_GROUP,
    "network",
    "access",
    "several models",
    ENGINE_GROUP,
    "adapters (LoRA)",
    "chat",
    "embeddings and rerank",
    "speech",
    "images",
    "image generation",
    "limits",
    "operation",
    "stored responses",
    "files",
    BATCH_GROUP,
    PREFIX_CACHE_GROUP,
)


GROUPS: Final = groups_of(_TITLES, SECTIONS)
FLAGS: Final = tuple(flag for flags in GROUPS.values() for flag in flags)


def add_flags(
    parser: argparse.ArgumentParser,
    titles: Collection[str] = GROUPS,
    *,
    common: argparse._ArgumentGroup | None = None,
    shows_all: bool = True,
) -> None:
    """Adds the groups of flags with the given titles.

    Args:
        common: the group of the most used flags; None = all flags are in their own groups.
        shows_all: whether the help shows the flags outside `common`.
    """
    for title, flags in GROUPS.items():
        if title in titles:
            group = parser.add_argument_group(title)
            for flag in flags:
                if flag.common and common is not None:
                    flag.add_to(common)
                else:
                    flag.add_to(group, hidden=not shows_all)


def read_flags(arguments: argparse.Namespace) -> Settings:
    """Returns the settings from the flags."""
    settings = settings_of(FLAGS, arguments)
    return settings | _first_address(settings)


def _first_address(settings: Settings) -> Settings:
    """Moves all values of --host but the first to the addresses of --listen. Without --host and
    --port, only the addresses of --listen are used."""
    hosts, listen = (settings.given.get(field, ()) for field in (HTTP.host, HTTP.listen))
    if not hosts:
        is_alone = listen and HTTP.port not in settings.given
        return Settings.of(HttpConfig, host=None) if is_alone else Settings()
    port = settings.section(HttpConfig).port
    further = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts[1:]]
    return Settings.of(HttpConfig, host=hosts[0], listen=(*further, *listen))

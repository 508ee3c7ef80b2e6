"""Lists all flags that set the configuration, by the groups of `--help`, and tells what they
set."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Final

from fastovms.cli.flags.batch_flags import BATCH_FLAGS, FILE_FLAGS
from fastovms.cli.flags.flag import Flag, settings_of
from fastovms.cli.flags.model_flags import (
    CHAT_FLAGS,
    ENCODER_FLAGS,
    ENGINE_FLAGS,
    IMAGES_FLAGS,
    REPOSITORY_FLAGS,
    RESIDENCY_FLAGS,
)
from fastovms.cli.flags.server_flags import (
    ACCESS_FLAGS,
    LIMITS_FLAGS,
    NETWORK_FLAGS,
    OPERATION_FLAGS,
    PREFIX_CACHE_FLAGS,
    STATE_FLAGS,
)
from fastovms.config.http_config import HttpConfig
from fastovms.config.settings import HTTP, Settings

HUB_GROUP: Final = "models of a hub"
ENGINE_GROUP: Final = "batching and memory"
BATCH_GROUP: Final = "batches"
PREFIX_CACHE_GROUP: Final = "prefix cache on disk"

GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    HUB_GROUP: REPOSITORY_FLAGS,
    "network": NETWORK_FLAGS,
    "access": ACCESS_FLAGS,
    "several models": RESIDENCY_FLAGS,
    ENGINE_GROUP: ENGINE_FLAGS,
    "chat": CHAT_FLAGS,
    "embeddings and rerank": ENCODER_FLAGS,
    "images": IMAGES_FLAGS,
    "limits": LIMITS_FLAGS,
    "operation": OPERATION_FLAGS,
    "stored responses": STATE_FLAGS,
    "files": FILE_FLAGS,
    BATCH_GROUP: BATCH_FLAGS,
    PREFIX_CACHE_GROUP: PREFIX_CACHE_FLAGS,
}
FLAGS: Final = tuple(flag for flags in GROUPS.values() for flag in flags)


def add_flags(parser: argparse.ArgumentParser, titles: Collection[str] = GROUPS) -> None:
    """Adds the groups with the given titles."""
    for title, flags in GROUPS.items():
        if title in titles:
            group = parser.add_argument_group(title)
            for flag in flags:
                flag.add_to(group)


def read_flags(arguments: argparse.Namespace) -> Settings:
    """Returns what the flags set."""
    settings = settings_of(FLAGS, arguments)
    return settings | _first_address(settings)


def _first_address(settings: Settings) -> Settings:
    """Parts the first --host from the others, which are further addresses like those of --listen.
    Where there is neither --host nor --port, those of --listen are the only ones."""
    hosts, listen = (settings.given.get(field, ()) for field in (HTTP.host, HTTP.listen))
    if not hosts:
        is_alone = listen and HTTP.port not in settings.given
        return Settings.of(HttpConfig, host=None) if is_alone else Settings()
    port = settings.section(HttpConfig).port
    further = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts[1:]]
    return Settings.of(HttpConfig, host=hosts[0], listen=(*further, *listen))

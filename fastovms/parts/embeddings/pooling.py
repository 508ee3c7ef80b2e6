"""Finds the pooling of an embedding model from its files."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from fastovms.backends.model_task import read_optional, takes_images


class Pooling(Enum):
    """The method that reduces the states of all tokens to one vector."""

    CLS = "cls"
    MEAN = "mean"
    LAST = "last"


_MODES: Final = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_POOLING_MODULE: Final = "Pooling"


def find_pooling(model_dir: Path, wanted: str, config: Mapping[str, Any]) -> Pooling:
    """Returns the pooling that the operator chose (`wanted`), or else the one in the model's
    files."""
    if wanted != "auto":
        return Pooling(wanted)
    modules = read_optional(model_dir / "modules.json")
    folders = ["1_Pooling"]
    if isinstance(modules, list):
        folders = [
            str(module.get("path"))
            for module in modules
            if isinstance(module, dict) and str(module.get("type")).endswith(_POOLING_MODULE)
        ] or folders
    for folder in folders:
        modes = read_optional(model_dir / folder / "config.json")
        if isinstance(modes, dict):
            for key, pooling in _MODES.items():
                if modes.get(key) is True:
                    return pooling
    return Pooling.LAST if _is_decoder(config) or takes_images(model_dir) else Pooling.CLS


def _is_decoder(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and any("CausalLM" in str(name) for name in names)

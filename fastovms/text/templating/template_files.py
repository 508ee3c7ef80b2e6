"""Finds a model's chat templates, and the tokens that they name, in its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastovms.errors import ConfigurationError

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"

_SPECIAL_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def find_templates(model_dir: Path) -> dict[str, str]:
    """Returns the sources by name, `DEFAULT` among them where there is one; it looks for them as
    transformers does. Files of their own go before what JSON files hold.

    Raises:
        ConfigurationError: a file is broken.
    """
    templates: dict[str, str] = {}
    # A processor's template is that of a model with images; the tokenizer's goes before it.
    for name in ("processor_config.json", "chat_template.json", "tokenizer_config.json"):
        templates |= _named(read_json(model_dir / name).get("chat_template"))
    if (path := model_dir / "chat_template.jinja").is_file():
        templates[DEFAULT] = read_text(path)
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path)
    return templates


def _named(value: object) -> dict[str, str]:
    """Returns sources by name. `chat_template` is one source, or named ones: a list of objects, or
    an object."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        objects = [item for item in value if isinstance(item, dict)]
        items = [(item.get("name"), item.get("template")) for item in objects]
    elif isinstance(value, dict):
        items = list(value.items())
    else:
        return {}
    return {str(name): source for name, source in items if isinstance(source, str)}


def special_tokens(model_dir: Path) -> dict[str, Any]:
    """Returns what templates call `bos_token` and so on: tokenizer_config.json goes before
    special_tokens_map.json."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json(model_dir / name)
        for kind in _SPECIAL_TOKENS:
            token = _token(config.get(f"{kind}_token"))
            if token is not None:
                found[f"{kind}_token"] = token
        extra = config.get("extra_special_tokens")
        if isinstance(extra, dict):
            found |= {key: _token(value) for key, value in extra.items() if _token(value)}
        more = config.get("additional_special_tokens")
        if isinstance(more, list):
            found["additional_special_tokens"] = [t for t in map(_token, more) if t]
    return found


def _token(value: object) -> str | None:
    """Returns a token's text. A token is written as its text or as an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_text(path: Path) -> str:
    """Reads a file of UTF-8.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object; an empty one if there is no such file.

    Raises:
        ConfigurationError: the file cannot be read or holds no object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must hold an object")
    return value

"""Reads what the files of a tokenizer say: chat templates, special tokens, end tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import openvino_genai

from fastovms.errors import ConfigurationError

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"

_SPECIAL_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_END_TOKENS: Final = ("eos_token", "eot_token")
_TOKENIZER_XML: Final = "openvino_tokenizer.xml"


def find_templates(model_dir: Path) -> dict[str, str]:
    """Returns the sources by name, `DEFAULT` among them where there is one; it looks for them as
    transformers does, and then in openvino_tokenizer.xml, as OpenVINO GenAI does. Files of their
    own go before what JSON files hold.

    Raises:
        ConfigurationError: a file is broken.
    """
    templates = _named(_runtime_info(model_dir).get("chat_template"))
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
    special_tokens_map.json, and this before the ids in openvino_tokenizer.xml."""
    found: dict[str, Any] = {}
    info = _runtime_info(model_dir)
    ids = {kind: _id(info, f"{kind}_token_id") for kind in _SPECIAL_TOKENS}
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
    missing = {kind: i for kind, i in ids.items() if i is not None and f"{kind}_token" not in found}
    if missing:
        texts = {i: text for text, i in _token_ids(model_dir, ids=missing.values()).items()}
        found |= {f"{kind}_token": texts[i] for kind, i in missing.items() if i in texts}
    return found


def end_token_ids(model_dir: Path) -> frozenset[int]:
    """Returns the ids of the tokens that the tokenizer's files name as the end of a text or of a
    turn.

    Raises:
        ConfigurationError: a file is broken.
    """
    texts: set[str] = set()
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json(model_dir / name)
        texts.update(text for key in _END_TOKENS if (text := _token(config.get(key))))
    token_ids = _token_ids(model_dir, texts=texts) if texts else {}
    found = {token_ids[text] for text in texts if text in token_ids}
    of_graph = _id(_runtime_info(model_dir), "eos_token_id")
    return frozenset(found if of_graph is None else found | {of_graph})


def _token_ids(
    model_dir: Path, texts: Collection[str] = (), ids: Collection[int] = ()
) -> Mapping[str, int]:
    """Returns ids by the texts of tokens, the wanted ones among them if any file has them. Files
    that take longer to read are read only if the quicker ones have not all of them."""

    def is_complete() -> bool:
        return found.keys() >= set(texts) and set(found.values()) >= set(ids)

    added = read_json(model_dir / "tokenizer_config.json").get("added_tokens_decoder")
    pairs = added.items() if isinstance(added, dict) else ()
    found = {text: int(id) for id, token in pairs if (text := _token(token)) and id.isdecimal()}
    if not is_complete():
        tokenizer = read_json(model_dir / "tokenizer.json")
        for token in tokenizer.get("added_tokens") or ():
            found[str(token.get("content"))] = int(token.get("id", -1))
    if not is_complete() and (model_dir / _TOKENIZER_XML).is_file():
        try:
            vocab = openvino_genai.Tokenizer(model_dir).get_vocab()
        except RuntimeError as error:
            raise ConfigurationError(f"{model_dir}: the tokenizer cannot be loaded") from error
        found = {text.decode(errors="replace"): id for text, id in vocab.items()} | found
    return found


def _runtime_info(model_dir: Path) -> Mapping[str, str]:
    """Returns the members of `rt_info` in openvino_tokenizer.xml. A broken file has none: it is
    refused when the tokenizer is loaded."""
    path = model_dir / _TOKENIZER_XML
    if not path.is_file():
        return {}
    try:
        members = ElementTree.parse(path).getroot().find("rt_info")
    except (ElementTree.ParseError, OSError):
        return {}
    return {} if members is None else {each.tag: each.get("value", "") for each in members}


def _id(info: Mapping[str, str], name: str) -> int | None:
    value = info.get(name, "")
    return int(value) if value.isdecimal() else None


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

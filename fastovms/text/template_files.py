"""Finds chat templates in a model's files, and prepares them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import msgspec
import openvino_genai

from fastovms.errors import ConfigurationError, RequestError
from fastovms.system.disk import DiskCache, key_of
from fastovms.text.budget import FULL, Budget, Limits
from fastovms.text.sandbox import Sandbox, make_environment
from fastovms.text.template import ChatTemplate, PreparedTemplate
from fastovms.text.template_forms import TRIED_TOOL, find_form
from fastovms.text.template_messages import ProbedForm

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"

_SPECIAL_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_END_TOKENS: Final = ("eos_token", "eot_token")
_TOKENIZER_XML: Final = "openvino_tokenizer.xml"


def find_templates(model_dir: Path) -> dict[str, str]:
    """Returns the sources by name, including `DEFAULT` if there is one. Searches like transformers,
    then in openvino_tokenizer.xml, like OpenVINO GenAI. Separate template files take precedence
    over JSON files. Raises ConfigurationError if a file is broken."""
    templates = _named(_runtime_info(model_dir).get("chat_template"))
    # Later files take precedence: the tokenizer's template over that of the image processor.
    for name in ("processor_config.json", "chat_template.json", "tokenizer_config.json"):
        templates |= _named(read_json(model_dir / name).get("chat_template"))
    if (path := model_dir / "chat_template.jinja").is_file():
        templates[DEFAULT] = read_text(path)
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path)
    return templates


def _named(value: object) -> dict[str, str]:
    """Returns sources by name. `chat_template` is one source, or several named ones as a list of
    objects or an object."""
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
    """Returns the values of `bos_token` and the other tokens in templates. tokenizer_config.json
    takes precedence over special_tokens_map.json, and that over the ids in
    openvino_tokenizer.xml."""
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
    """Returns the ids of the tokens that the tokenizer's files name as the end of text or of a
    turn. Raises ConfigurationError if a file is broken."""
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
    """Returns token ids by text, including the wanted ones if a file has them. Large files are read
    only if the small ones lack some."""

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
    """Returns the entries of `rt_info` in openvino_tokenizer.xml; empty for a corrupt file, which
    is refused when the tokenizer is loaded."""
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
    """Returns a token's text. `value` is the text or an object that contains it; None = neither."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_text(path: Path) -> str:
    """Reads a UTF-8 file. Raises ConfigurationError if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object; empty if the file does not exist. Raises ConfigurationError if the file
    cannot be read or is not an object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must be a JSON object")
    return value


_MAX_REPLACED: Final = 8
"""The maximum number of clients' templates whose forms are cached in memory."""

_MAX_SOURCE: Final = 256 * 1024
"""The maximum number of characters of a client's template: several times those of models'
templates."""

_PROBES: Final = Limits(1_000_000, 64_000_000)
"""The limits of renderings for finding the form of a model's template."""

_FORMS_VERSION: Final = 1
"""A hash of the matrix's rows and the form's fields, for cache keys."""

_FORMS_FILE: Final = "forms.json"


def load_template(
    model_dir: Path,
    override: Path | str | None = None,
    *,
    content_format: str = "auto",
    now: Callable[[], datetime] = datetime.now,
    cache: DiskCache | None = None,
) -> ChatTemplate | None:
    """Returns the model's templates, or `override`, a file or a template itself; None = the model
    has none. Raises ConfigurationError if a file is broken or a template malformed."""
    templates = find_templates(model_dir)
    if override is not None:
        source = override if isinstance(override, str) else read_text(override)
        templates = {DEFAULT: source}
    if not any(templates.values()):
        return None
    tokens = special_tokens(model_dir)
    return make_template(templates, tokens, content_format=content_format, now=now, cache=cache)


def make_template(
    templates: Mapping[str, str],
    tokens: Mapping[str, Any],
    *,
    content_format: str = "auto",
    now: Callable[[], datetime] = datetime.now,
    cache: DiskCache | None = None,
    budget: Budget | None = None,
    is_foreign: bool = False,
) -> ChatTemplate:
    """Returns the templates of one model. Raises ConfigurationError if a template is malformed.

    Args:
        templates: sources by name; at least one.
        tokens: the values of `bos_token` and other special tokens.
        content_format: the type of messages' `content`: "string", or "openai" for a list of parts;
            "auto" = as the template expects it.
        now: returns the local time.
        cache: stores the analysis of each template on disk; None = not stored.
        budget: the budget that renderings spend; None = a new one.
        is_foreign: whether the template comes from a request.
    """
    budget = budget or Budget()
    environment = None if is_foreign else make_environment(budget, now)

    def prepared(source: str) -> PreparedTemplate:
        compiled = None if environment is None else _compiled(environment, source)
        return PreparedTemplate(source, compiled, budget, tokens=tokens, now=now)

    @lru_cache(_MAX_REPLACED)
    def replaced(source: str) -> ChatTemplate:
        if len(source) > _MAX_SOURCE:
            raise RequestError(
                f"chat_template must have at most {_MAX_SOURCE} characters, not {len(source)}",
                param="chat_template",
            )
        return make_template(
            {DEFAULT: source},
            tokens,
            content_format=content_format,
            now=now,
            budget=budget,
            is_foreign=True,
        )

    source = templates.get(DEFAULT) or next(iter(templates.values()))
    tool_source = templates.get(TOOL_USE) or source
    plain = with_tools = prepared(source)
    if tool_source != source:
        with_tools = prepared(tool_source)
    key = key_of(_FORMS_VERSION, source, tool_source, tokens)
    forms = _forms(plain, with_tools, budget, cache or DiskCache(None), key)
    if content_format != "auto":
        has_parts = content_format == "openai"
        forms = [replace(f, form=replace(f.form, content_parts=has_parts)) for f in forms]
    return ChatTemplate(plain, with_tools, forms, tokens, budget, replaced, is_foreign=is_foreign)


def compile_template(source: str) -> Callable[[Mapping[str, Any]], str]:
    """Returns a function that renders a template, given its variables, within the limits of a
    prompt. Raises ConfigurationError if the template is malformed."""
    budget = Budget()
    render = _compiled(make_environment(budget, datetime.now), source)

    def render_within(variables: Mapping[str, Any]) -> str:
        with budget.of(FULL):
            return render(variables)

    return render_within


def _compiled(environment: Sandbox, source: str) -> Callable[[Mapping[str, Any]], str]:
    try:
        return partial(environment.render, environment.from_string(source))
    except Exception as error:  # Jinja's compiler may raise any exception
        raise ConfigurationError(f"the chat template is malformed: {error}") from error


def _forms(
    plain: PreparedTemplate,
    with_tools: PreparedTemplate,
    budget: Budget,
    cache: DiskCache,
    key: str,
) -> Sequence[ProbedForm]:
    """Returns the message forms of the templates without and with tools, from the cache if
    possible."""
    entry = cache.find("template", key)
    if entry is not None:
        try:
            data = (entry / _FORMS_FILE).read_bytes()
            return msgspec.json.decode(data, type=tuple[ProbedForm, ProbedForm])
        except (OSError, msgspec.DecodeError):
            cache.discard(entry)
    with budget.of(_PROBES):
        found = (
            find_form(plain.source, plain.render, ()),
            find_form(with_tools.source, with_tools.render, (TRIED_TOOL,)),
        )
    data = json.dumps([asdict(form) for form in found]).encode()
    cache.put("template", key, lambda entry: _write(entry / _FORMS_FILE, data))
    return found


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)

"""The features that OpenVINO GenAI supports: request fields, grammars and drafts."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from fastovms import grammar_tree as tree
from fastovms.config import EngineConfig
from fastovms.errors import FieldFault, InvalidField, RequestError
from fastovms.grammar.json_schema import normal_schema
from fastovms.grammar_tree import Node
from fastovms.params import MAX_DRAFT_TOKENS, Grammar, GrammarKind, SamplingFields, SamplingParams
from fastovms.parts.drafts.draft_model import DEFAULT_NUM_ASSISTANT_TOKENS
from fastovms.parts.genai.xgrammar.json_rules import json_rules
from fastovms.request_fields import GenaiUse, rows_of

logger = logging.getLogger(__name__)


Format = dict[str, Any]
"""A format of XGrammar's structural tags."""

MAX_REPEATS: Final = 8
MAX_OPTIONAL: Final = 100
"""The maximum number of optional arguments before a required one. Any of them may be the first
argument, and each case needs another copy of the rest of the format."""

_NOTHING: Final[Format] = {"type": "regex", "pattern": "()"}
_ANY: Final[Format] = {"type": "any_text"}


class UnsupportedGrammarPart(ValueError):
    """Raised if a grammar has a part that structural tags cannot express."""


WriteJson = Callable[[Any, bool], Format]
"""Returns the format of a JSON schema's values; the flag allows a space after colons and commas."""


def rules_of_json(schema: Any, has_blanks: bool) -> Format:
    """Returns the format of a JSON schema's values, which accepts the same texts as llguidance;
    XGrammar's own `json_schema` format does not. Raises the exceptions of `json_rules`."""
    return {"type": "grammar", "grammar": json_rules(schema, has_blanks=has_blanks)}


def structural_tag(grammar: Grammar, *, write_json: WriteJson = rules_of_json) -> str:
    """Returns the structural tag of a grammar, as JSON. Raises UnsupportedGrammarPart if structural
    tags cannot express a part of the grammar; AttributeError, KeyError, TypeError or ValueError if
    the grammar is malformed.

    Structural tags are the only format in which OpenVINO GenAI accepts nested grammars. They have
    no empty text, no repetition, and no text that must not match a regular expression. So
    repetitions are expanded up to `MAX_REPEATS`. Text that must not contain a tag becomes any text
    up to that tag; other such text is rejected.
    """
    found = _format(grammar.tree or tree.Answer(), grammar, write_json)
    return json.dumps({"type": "structural_tag", "format": found})


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text} if text else _NOTHING


def _regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def _until(tag: str) -> Format:
    return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": tag}


def _text_without(texts: Sequence[str]) -> Format:
    return {"type": "any_text", "excludes": list(texts)}


def _answer(grammar: Grammar, write_json: WriteJson) -> Format:
    source = grammar.source
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return write_json(json.loads(source), False)
        case GrammarKind.JSON_OBJECT:
            return write_json({"type": "object"}, False)
        case GrammarKind.REGEX:
            return _regex(source)
        case GrammarKind.GRAMMAR:
            return {"type": "grammar", "grammar": source}
        case GrammarKind.CHOICE:
            return _either([_const(text) for text in json.loads(source)])
        case GrammarKind.STRUCTURAL_TAG:
            format_: Format = _with_rules(json.loads(source), write_json)
            return format_
        case GrammarKind.CALLS:
            raise ValueError("calls have no answer")


_PARTS: Final = ("elements", "tags", "content")
"""The members of formats that contain other formats."""


def _with_rules(value: Any, write_json: WriteJson) -> Any:
    """Returns a client's format with its schemas replaced by rules. Schemas of tool arguments
    written as XML elements allow no additional properties."""
    if isinstance(value, list):
        return [_with_rules(item, write_json) for item in value]
    if not isinstance(value, dict):
        return value
    is_json = value.get("type") == "json_schema"
    if is_json and value.get("style", "json") == "json":
        return write_json(value["json_schema"], False)
    if is_json or value.get("type") == "qwen_xml_parameter":
        return {**value, "json_schema": normal_schema(value["json_schema"])}
    parts = {key: _with_rules(value[key], write_json) for key in _PARTS if key in value}
    return {**value, **parts}


def _format(node: Node, grammar: Grammar, write_json: WriteJson) -> Format:
    match node:
        case tree.Literal(text) | tree.Tag(text):
            return _const(text)
        case tree.Until(tag):
            return _until(tag)
        case tree.FirstTag(cases, must_come):
            rests = [_format(rest, grammar, write_json) for _, rest in cases]
            last: Format = rests[0].get("elements", rests)[-1]
            if not must_come and last["type"] == "triggered_tags":
                # A choice cannot contain both this format and free text. This format already allows
                # free text before the tags, so it replaces the whole choice.
                return last
            found = [
                _joined([_until(tag), rest]) for (tag, _), rest in zip(cases, rests, strict=True)
            ]
            without = [] if must_come else [_text_without([tag for tag, _ in cases])]
            return _either([*found, *without])
        case tree.TriggeredTag(tag, rest, once):
            return _triggered(tag, _format(rest, grammar, write_json), stop_after_first=once)
        case tree.Regex(pattern, (), ()):
            return _regex(pattern)
        case tree.Regex():
            raise UnsupportedGrammarPart("text that must not match a regular expression")
        case tree.OtherText(begins, tags):
            return _text_without([*begins, *tags])
        case tree.TextBefore(tag, tree.Regex(pattern, (), _), gap):
            is_any = pattern == tree.ANY_TEXT.pattern
            body = [_until(gap + tag)] if is_any else [_regex(pattern), _const(gap + tag)]
            return _joined(body)
        case tree.TextBefore():
            raise UnsupportedGrammarPart("text that must match several regular expressions")
        case tree.Json(schema):
            return write_json(json.loads(schema), True)
        case tree.Answer():
            return _answer(grammar, write_json)
        case tree.InOrder(items):
            return _joined([_format(item, grammar, write_json) for item in items])
        case tree.OneOf(items):
            return _either([_format(item, grammar, write_json) for item in items])
        case tree.Repeat(item):
            return _repeated(_format(item, grammar, write_json))
        case tree.Several(item, separator):
            first = _format(item, grammar, write_json)
            return _joined(
                [first, _repeated(_joined([_format(separator, grammar, write_json), first]))]
            )
        case tree.OtherTag(before, patterns, after, _):
            name = patterns[-1]
            return _regex(f"{re.escape(before)}({name}){re.escape(after)}")
        case tree.Separated(items, separator, more):
            if more is not None:
                items = (*items, *[(more, False)] * MAX_REPEATS)
            formats = [_format(item, grammar, write_json) for item, _ in items]
            return _separated(formats, [is_required for _, is_required in items], separator)


def _separated(items: Sequence[Format], is_required: Sequence[bool], separator: str) -> Format:
    num_optional = (*is_required, True).index(True)
    if num_optional > MAX_OPTIONAL:
        raise UnsupportedGrammarPart(
            f"more than {MAX_OPTIONAL} optional arguments before a required one"
        )
    rests = [_joined([_const(separator), item]) for item in items]
    rests = [
        rest if is_needed else _either([rest, _NOTHING])
        for rest, is_needed in zip(rests, is_required, strict=True)
    ]
    firsts = items[: num_optional + 1]
    choices = [_joined([item, *rests[i + 1 :]]) for i, item in enumerate(firsts)]
    return _either(choices if num_optional < len(items) else [*choices, _NOTHING])


def _either(formats: Sequence[Format]) -> Format:
    """Returns a choice between the formats. If one of them may end with free text, free text is
    allowed after the others too."""
    elements = list(formats)
    if any(map(_is_open, elements)):
        elements = [item if _is_open(item) else _joined([item, _ANY]) for item in elements]
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def _is_open(format_: Format) -> bool:
    """Returns whether XGrammar treats a format as unbounded."""
    if "elements" in format_:
        return _is_open(format_["elements"][-1])
    return bool(format_["type"] == "triggered_tags") or format_ == _ANY


def _joined(formats: Sequence[Format]) -> Format:
    elements: list[Format] = []
    for item in formats:
        elements += item["elements"] if item["type"] == "sequence" else [item]
    elements = [item for item in elements if item != _NOTHING] or [_NOTHING]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _repeated(item: Format) -> Format:
    """Returns a format of zero to `MAX_REPEATS` items."""
    found = _NOTHING
    for _ in range(MAX_REPEATS):
        found = _either([_joined([item, found]), _NOTHING])
    return found


def _triggered(tag: str, content: Format, *, stop_after_first: bool) -> Format:
    elements = content["elements"] if content["type"] == "sequence" else [content]
    end = ""
    if elements[-1]["type"] == "const_string" and len(elements) > 1:
        end, elements = elements[-1]["value"], elements[:-1]
    return {
        "type": "triggered_tags",
        "triggers": [tag],
        "tags": [{"begin": tag, "content": _joined(elements), "end": end}],
        "at_least_one": False,
        "stop_after_first": stop_after_first,
    }


@dataclass(frozen=True, slots=True)
class DraftSource:
    """The source of draft tokens: none, earlier text, or a smaller model. The source is fixed when
    the pipeline is loaded, and applies to every request."""

    prompt_lookup: bool = False
    draft_model: bool = False

    @classmethod
    def of(cls, config: EngineConfig) -> DraftSource:
        """Returns the source of drafts in the operator's settings."""
        return cls(
            prompt_lookup=config.enable_prompt_lookup is True,
            draft_model=config.draft_model is not None,
        )

    def __bool__(self) -> bool:
        return self.prompt_lookup or self.draft_model


def num_assistant_tokens(params: SamplingParams) -> int:
    """Returns the number of tokens that are drafted at a time."""
    return params.num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS


def token_budget(config: EngineConfig) -> int:
    """Returns the maximum number of tokens of a step: at least enough for one sequence with its
    draft tokens."""
    if DraftSource.of(config).prompt_lookup:
        return max(config.token_budget, MAX_DRAFT_TOKENS + 1)
    return config.token_budget


def has_prefix_cache(config: EngineConfig) -> bool:
    """Returns whether the pipeline has a prefix cache. It has none with a draft model, because a
    cache hit of a sampled sequence would crash the pipeline."""
    return config.enable_prefix_caching and not DraftSource.of(config).draft_model


def check_supported(params: SamplingParams, assistance: DraftSource, max_num_seqs: int) -> None:
    """Raises RequestError for parameters that the pipeline does not support or would silently
    ignore."""
    check_fields(params)
    if params.grammar is not None:
        check_grammar(params.grammar)
        if params.beam_search is not None:
            raise InvalidField.about(params.grammar.param, f"with beam search {NOT_SUPPORTED}")
    if params.beam_search is None:
        return
    if assistance:
        raise InvalidField(
            f"beam search with drafts {NOT_SUPPORTED}", param=params.beam_search.param
        )
    width = params.beam_search.num_beams
    if width > max_num_seqs:
        raise RequestError(
            f"a search with {width} beams cannot run: --max-num-seqs allows "
            f"{max_num_seqs} sequences at once",
            param=params.beam_search.param,
        )


def check_grammar(grammar: Grammar) -> None:
    """Raises InvalidField for kinds of grammars that the pipeline does not support. Errors in the
    grammar itself are found when it is compiled."""
    if grammar.tree is None:
        return
    try:
        # For a schema, the trial finds unsupported parts.
        structural_tag(grammar, write_json=lambda *_: {"type": "json_schema"})
    except UnsupportedGrammarPart as error:
        raise InvalidField.about(
            grammar.param, f"{NOT_SUPPORTED}: the grammar needs {error}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.debug("genai: the grammar of %s is malformed", grammar.param)


def check_salt(cache_salt: str | None, *, enable_prefix_caching: bool) -> None:
    """Raises InvalidField for a `cache_salt` if the prefix cache is on, because the pipeline does
    not separate cached prompts by salt."""
    if cache_salt is not None and enable_prefix_caching:
        raise InvalidField.about("cache_salt", f"{NOT_SUPPORTED}, with its prefix cache on")


NOT_SUPPORTED: Final = "is not supported by the genai backend, which runs this model"


class Limit(NamedTuple):
    """Values of a field that the pipeline does not support, or would silently ignore.

    Attributes:
        param: the field's name in requests.
        is_wanted: returns whether a request has such a value.
        words: the end of the error message after the field's name, such as " above 1".
    """

    param: str
    is_wanted: Callable[[SamplingParams], bool]
    words: str = ""


_BEAMS: Final = " with beam search"


def _differs(params: SamplingParams, name: str, default: object) -> bool:
    return bool(getattr(params, name) != default)


_LIMITS: Final = (
    *(
        Limit(name, partial(_differs, name=name, default=getattr(SamplingParams(), name)))
        for name, row in rows_of(SamplingFields).items()
        if row.field.is_param and row.field.genai is GenaiUse.REFUSED
    ),
    Limit("logprobs", lambda p: p.logprobs not in (None, 0, 1), " above 1"),
    Limit("logprob_token_ids", lambda p: bool(p.logprob_token_ids)),
    Limit("prompt_logprobs", lambda p: p.prompt_logprobs is not None),
    Limit("logit_bias", lambda p: bool(p.logit_bias)),
    Limit("allowed_token_ids", lambda p: p.allowed_token_ids is not None),
    Limit("bad_words", lambda p: bool(p.bad_words_token_ids)),
    Limit(
        # The pipeline's beam search uses the request's stop tokens instead of the end tokens.
        "ignore_eos",
        lambda p: p.beam_search is not None and p.ignore_eos and not p.stop_token_ids,
        f"{_BEAMS} and no stop_token_ids",
    ),
    Limit(
        "frequency_penalty",
        lambda p: p.beam_search is not None and p.frequency_penalty != 0,
        _BEAMS,
    ),
    Limit(
        "presence_penalty", lambda p: p.beam_search is not None and p.presence_penalty != 0, _BEAMS
    ),
    Limit(
        "repetition_penalty",
        lambda p: p.beam_search is not None and p.repetition_penalty != 1,
        _BEAMS,
    ),
    Limit("thinking_token_budget", lambda p: p.reasoning_budget is not None),
    Limit("repetition_detection", lambda p: p.repetition_detection is not None),
)
"""The unsupported values of fields. `generation_config` passes other values to the pipeline, and
`PipelineEngine` handles `max_tokens`, `seed` and `n`. A test fails if a field is in none of
these."""


def check_fields(params: SamplingParams) -> None:
    """Raises FieldFault for a field's value that the pipeline does not support."""
    for limit in _LIMITS:
        if limit.is_wanted(params):
            raise FieldFault(limit.param, f"{limit.words} {NOT_SUPPORTED}")

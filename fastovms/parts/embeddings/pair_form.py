"""The prompt format of decoder-based rerankers: an instruction, a query and a document."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError

from fastovms.backends.model_task import LOGIT_SCORE
from fastovms.errors import InvalidField
from fastovms.text.template_files import (
    compile_template,
    find_templates,
    read_json,
    read_text,
    special_tokens,
)

logger = logging.getLogger(__name__)

_QUERY, _DOCUMENT = "\ue000", "\ue001"
"""Private-use characters that stand for the query and the document while a template is rendered."""

_START: Final = 12
"""The number of characters by which a query that is already a complete prompt is recognized."""

_QWEN3: Final = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ (messages | selectattr("role", "eq", "system") | first).content if \
messages[0].role == "system" else \
"Given a web search query, retrieve relevant passages that answer the query" }}
<Query>: {{ (messages | selectattr("role", "eq", "query") | first).content }}
<Document>: {{ (messages | selectattr("role", "eq", "document") | first).content }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""
"""The prompt format in the model card of Qwen3-Reranker, whose own template is for chats."""


class FixedTexts(NamedTuple):
    """The fixed texts of a prompt: before the query, between query and document, and after the
    document."""

    before: str
    between: str
    after: str


@dataclass(frozen=True)
class PairForm:
    """Renders the fixed texts of a reranker's prompt.

    Attributes:
        render: renders the template with the given variables.
        tokens: the values of `bos_token` and other special tokens.
        instruct: the instruction for requests without one; None = the template's default.
    """

    render: Callable[[Mapping[str, Any]], str]
    tokens: Mapping[str, Any]
    instruct: str | None = None

    def fixed_texts(self, instruct: str | None = None) -> FixedTexts:
        """Returns the texts around the query and the document. Raises InvalidField if the
        instruction contains a placeholder character, or the template rejects it."""
        return self._default if instruct is None else self._rendered(instruct)

    @cached_property
    def _default(self) -> FixedTexts:
        return self._rendered(self.instruct)

    def _rendered(self, instruct: str | None) -> FixedTexts:
        given = {"system": instruct, "query": _QUERY, "document": _DOCUMENT}
        messages = [
            {"role": role, "content": text} for role, text in given.items() if text is not None
        ]
        try:
            prompt = self.render(
                {**self.tokens, "messages": messages, "tools": None, "add_generation_prompt": True}
            )
        except TemplateError as error:
            raise InvalidField(
                f"instruct cannot be used with the template of the model: {error}", param="instruct"
            ) from error
        before, *rest = prompt.split(_QUERY)
        between, *last = rest[0].split(_DOCUMENT) if len(rest) == 1 else [""]
        if len(last) != 1:
            raise InvalidField(
                "instruct must not have private characters of Unicode, U+E000 and U+E001",
                param="instruct",
            )
        return FixedTexts(before, between, last[0])

    def is_written(self, queries: Iterable[str]) -> bool:
        """Returns whether every query is already a complete prompt, written by the client or the
        operator."""
        start = self.fixed_texts().before[:_START]
        return bool(start) and all(query.startswith(start) for query in queries)


def find_pair_form(
    model_dir: Path, config: Mapping[str, Any], override: Path | str | None
) -> PairForm | None:
    """Returns the prompt format of a reranker; None = unknown. Raises ConfigurationError if a file
    is broken.

    The format comes from `override` (a chat template or the path of one), from a template of the
    model with query and document roles, or from the model card of Qwen3-Reranker. An `override`
    without query and document is ignored, since it is meant for other, chatting models.

    Args:
        config: the content of config.json.
    """
    sources = [source for source in find_templates(model_dir).values() if _has_roles(source)]
    if not sources and config.get("model_type") == "qwen3":
        sources = [_QWEN3]
    if override is not None:
        sources.insert(0, override if isinstance(override, str) else read_text(override))
    tokens, prompt = special_tokens(model_dir), _prompt(model_dir)
    for source in sources:
        form = PairForm(compile_template(source), tokens, prompt)
        with suppress(InvalidField):
            form.fixed_texts()
            return form
    logger.warning(
        "%s has no template with the roles query and document: a query and its document are "
        "joined as they are; --chat-template gives a template",
        model_dir,
    )
    return None


def _has_roles(source: str) -> bool:
    return all(f'"{role}"' in source or f"'{role}'" in source for role in ("query", "document"))


def _prompt(model_dir: Path) -> str | None:
    """Returns the default prompt in the model's settings for sentence_transformers."""
    settings = read_json(model_dir / "config_sentence_transformers.json")
    prompts, name = settings.get("prompts"), settings.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    return prompt if isinstance(prompt, str) else None


def answer_ids(model_dir: Path) -> Mapping[bytes, int]:
    """Returns the ids of the tokens whose logits are the score, from the model's settings for
    sentence_transformers; empty = not given."""
    found = read_json(model_dir / LOGIT_SCORE)
    no, yes = found.get("false_token_id"), found.get("true_token_id")
    return {b"no": no, b"yes": yes} if isinstance(no, int) and isinstance(yes, int) else {}

"""Says how one model chats: its template, and the formats in which it writes calls and thoughts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fastovms.config.api_config import ChatConfig
from fastovms.errors import ConfigurationError
from fastovms.system.disk_cache import DiskCache
from fastovms.text.output_parser import check_formats, kept_tags
from fastovms.text.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from fastovms.text.templating.chat_template import ChatTemplate
from fastovms.text.tools import PLAIN_JSON, TOOL_FORMATS, ToolFormat, detect_tool_format

logger = logging.getLogger(__name__)

Format = TypeVar("Format")


@dataclass(frozen=True, slots=True)
class ChatModel:
    """How one model chats.

    Attributes:
        template: None = the model cannot chat, for the reason that `missing` gives.
        tool_format: None = the model makes no calls.
    """

    template: ChatTemplate | None = None
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    config: ChatConfig = field(default_factory=ChatConfig)
    missing: str = "has no chat template"

    @property
    def template_calls(self) -> bool:
        """Whether the template, if it shows tools, teaches the format of calls; else the messages
        have to."""
        return self.tool_format is not PLAIN_JSON

    @property
    def tags(self) -> frozenset[str]:
        """What must stay in the text, though it may be special tokens."""
        return kept_tags(self.tool_format, self.reasoning_format)

    @classmethod
    def load(cls, model_dir: Path, config: ChatConfig, cache: DiskCache | None = None) -> ChatModel:
        """Reads how a model chats. A broken template of the model's own leaves it without one.

        Args:
            cache: keeps what is found out about templates; None = nothing is kept.

        Raises:
            ConfigurationError: the operator's template is broken, or a parser unknown, or the
                parsers do not go together.
        """
        missing = "has no chat template"
        try:
            template = ChatTemplate.load(
                model_dir,
                config.chat_template,
                content_format=config.chat_template_content_format,
                cache=cache,
            )
        except ConfigurationError as error:
            if config.chat_template is not None:
                raise
            logger.warning("%s: chats are refused: %s", model_dir, error)
            template, missing = None, f"has no usable chat template: {error}"
        source = "" if template is None else template.tool_source
        detected = detect_tool_format(source), detect_reasoning_format(source)
        told = PLAIN_JSON if template is not None else None
        tool_format = _find(config.tool_parser, "tool", TOOL_FORMATS, detected[0] or told)
        reasoning_format = _find(
            config.reasoning_parser, "reasoning", REASONING_FORMATS, detected[1]
        )
        check_formats(tool_format, reasoning_format)
        return cls(template, tool_format, reasoning_format, config, missing)


def _find(
    name: str, kind: str, formats: Mapping[str, Format], detected: Format | None
) -> Format | None:
    if name == "auto":
        return detected
    if name == "none":
        return None
    if name not in formats:
        known = ", ".join(["auto", "none", *formats])
        raise ConfigurationError(f"the {kind} parser must be one of {known}, not {name!r}")
    return formats[name]

"""Loads a model's chat features, and runs work that renders its chat templates: at once, or in a
process if it takes more than a usual chat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from fastovms.api import offload
from fastovms.api.body import FairThread
from fastovms.api.served import ChatModel
from fastovms.backends.template_renderer import TemplateRenderer
from fastovms.config import ChatConfig
from fastovms.errors import ConfigurationError
from fastovms.system.disk import DiskCache
from fastovms.text.budget import FULL, Budget, Limits, NeedsProcess
from fastovms.text.output import check_formats
from fastovms.text.reasoning import REASONING_FORMATS, detect_reasoning_format
from fastovms.text.template_files import load_template
from fastovms.text.tools import PLAIN_JSON, TOOL_FORMATS, detect_tool_format

logger = logging.getLogger(__name__)

_AT_ONCE: Final = Limits(100_000, 16_000_000)
"""The limits of a request in the server's own process, whose other threads wait for it. Long chats
need a fraction of them."""

Format = TypeVar("Format")
Result = TypeVar("Result")


class TemplateRuns:
    """Runs the renderings of one model. All renderings of a request share one budget. Used on one
    event loop.

    Args:
        budget: the budget of the model's template.

    Attributes:
        num_outside: the number of runs in the process.
    """

    def __init__(self, budget: Budget) -> None:
        self.num_outside = 0
        self._budget = budget
        self._process = TemplateRenderer()
        self._thread: FairThread[Any] = FairThread("chat templates", per_client=16, total=64)

    async def run(self, client: str, work: Callable[[], Result], cost: int) -> Result:
        """Returns the result of work that renders templates. Work that takes long, or renders a
        client's template, is restarted in a thread that renders in a process; clients take turns.
        Raises Overloaded if too many wait, and the errors of the work.

        Args:
            client: the sender.
            cost: the cost of the work; see `offload.run`.
        """
        try:
            return await offload.run(partial(self._run_inline, work), cost)
        except NeedsProcess:
            self.num_outside += 1
        result: Result = await self._thread.run(client, partial(self._run_in_process, work))
        return result

    def close(self) -> None:
        """Ends the process, and refuses waiting work."""
        self._thread.close()
        self._process.close()

    def _run_inline(self, work: Callable[[], Result]) -> Result:
        with self._budget.of(_AT_ONCE, is_small=True):
            return work()

    def _run_in_process(self, work: Callable[[], Result]) -> Result:
        with self._budget.of(FULL, outside=self._process.render):
            return work()


def load_chat(model_dir: Path, config: ChatConfig, cache: DiskCache | None = None) -> ChatModel:
    """Returns the chat features of a model. A broken template of the model's own counts as none.
    Raises ConfigurationError if the operator's template is broken, a parser is unknown, or the
    parsers are incompatible. `cache` stores the results of template analysis; None = not stored."""
    missing = "has no chat template"
    try:
        template = load_template(
            model_dir,
            config.chat_template,
            content_format=config.chat_template_content_format,
            cache=cache,
        )
    except ConfigurationError as error:
        if config.chat_template is not None:
            raise
        logger.warning("model %s: chats are refused: %s", model_dir, error)
        template, missing = None, f"has no usable chat template: {error}"
    source = "" if template is None else template.tool_source
    detected = detect_tool_format(source), detect_reasoning_format(source)
    fallback = TOOL_FORMATS[PLAIN_JSON] if template is not None else None
    tool_format = _find(config.tool_parser, "tool", TOOL_FORMATS, detected[0] or fallback)
    reasoning_format = _find(config.reasoning_parser, "reasoning", REASONING_FORMATS, detected[1])
    check_formats(tool_format, reasoning_format)
    model = ChatModel(template, tool_format, reasoning_format, config, missing)
    if template is None:
        return model
    runs = TemplateRuns(template.budget)
    return replace(model, run=runs.run, close=runs.close)


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

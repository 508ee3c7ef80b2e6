"""Makes the generation of a request with a single prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastovms.api.generation.generate import BeginSpan, TextGeneration
from fastovms.api.request.generation_options import GenerationOptions
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompt_task import PromptTask
from fastovms.text.scanning.output import OutputParser


class Job(Protocol):
    """A request with a single prompt that is ready to run, whatever its dialect."""

    @property
    def preparation(self) -> Preparation[Any]: ...

    @property
    def options(self) -> GenerationOptions: ...

    @property
    def task(self) -> PromptTask: ...

    @property
    def new_parser(self) -> Callable[[], OutputParser] | None: ...


def generation_of(
    job: Job,
    *,
    request_id: str,
    log_fields: dict[str, object],
    begin_span: BeginSpan | None = None,
) -> TextGeneration:
    """Returns the generation of a job. The offsets of its tokens count characters.

    Args:
        request_id, log_fields, begin_span: see `TextGeneration`.
    """
    return TextGeneration(
        job.preparation.model,
        [job.task],
        job.options,
        request_id=request_id,
        log_fields=log_fields,
        measure=len,
        new_parser=job.new_parser,
        begin_span=begin_span,
    )

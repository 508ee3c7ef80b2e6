"""Prepares prompts of models that take images: texts in which tags stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from msgspec import Struct

from fastovms.api.request.field_path import place_of
from fastovms.api.request.generation_options import GenerationOptions
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompt_task import PromptTask
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.media.image_tags import ForbiddenTag, forbidden_tag, renumbered
from fastovms.media.loader import ImageSource
from fastovms.params import TextPrompt


@contextmanager
def tags_named(body: Struct) -> Iterator[None]:
    """Names, where a client wrote a tag that stands for an image, the part that it is in."""
    try:
        yield
    except ForbiddenTag as error:
        place = place_of(error.tag, body)
        if place is None:
            raise
        raise forbidden_tag(error.tag, place) from None


async def with_images(
    request: Preparation[GenerationFields],
    options: GenerationOptions,
    task: PromptTask,
    text: str | None,
    sources: Sequence[ImageSource],
) -> PromptTask:
    """Returns the task with its prompt as a model that takes images reads it. They are loaded now.

    Args:
        text: the prompt's, whole, though its tokens may have been truncated.

    Raises:
        InvalidField: one cannot be had.
        Overloaded: there is no memory for them.
    """
    images, name = request.model.images, request.names.prompt
    if images is None or text is None:
        return task
    if not sources:
        whole = TextPrompt(text, name=name)
        return task if options.truncation is not None else task._replace(prompt=whole)
    loaded = await images.load(sources)
    # Only a sample that the backend ends itself tells how many tokens the images were.
    if not task.params.min_tokens:  # `min_tokens` would not let end tokens pass
        params = replace(task.params, stop_strings=options.stopping.strings)
        task = task._replace(params=params)
    names = [source.name for source in sources]
    return task._replace(prompt=TextPrompt(text, loaded, name, names))


def kept_images(prompt: Prompt, sources: Sequence[ImageSource]) -> tuple[Prompt, list[ImageSource]]:
    """Returns, where messages were dropped, the prompt with tags that count only the images that
    are left, and these."""
    text, kept = renumbered(prompt.text or "", len(sources))
    return replace(prompt, text=text), [sources[index] for index in kept]

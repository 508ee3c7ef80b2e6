"""Prompts of models that take images: texts in which tags stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from msgspec import Struct

from fastovms.api.request.field_path import place_of
from fastovms.api.request.prompt_task import PromptTask
from fastovms.api.request.prompts import Prompt, Truncation
from fastovms.api.serving.images import ImageInput
from fastovms.errors import InvalidField
from fastovms.media.loader import ImageSource
from fastovms.media.tags import (
    ForbiddenTag,
    check_tags,
    forbidden_tag,
    image_tag,
    without_tags,
)
from fastovms.params import TextPrompt


def check_images(
    text: str,
    num_images: int,
    name: str,
    images: ImageInput | None,
    truncation: Truncation | None = None,
    *,
    loses_images: bool = False,
) -> str:
    """What of a prompt's text is text, the tags of its images being left out.

    Args:
        name: of the field that the prompt comes from.
        images: None = the model takes none, and all is text.

    Raises InvalidField: what a client wrote would be taken for an image, one has got lost, or
    tokens are to be cut from a prompt with images.
    """
    if images is None:
        return text
    check_tags(text, num_images, name, images.reserved, needs_all=not loses_images)
    if num_images and truncation is not None:
        raise InvalidField(
            "truncate_prompt_tokens cannot be used with images", param="truncate_prompt_tokens"
        )
    return without_tags(text, num_images)


@contextmanager
def tags_named(body: Struct) -> Iterator[None]:
    """Where a client wrote what stands for an image, the part that it is in is named."""
    try:
        yield
    except ForbiddenTag as error:
        place = place_of(error.tag, body)
        if place is None:
            raise
        raise forbidden_tag(error.tag, place) from None


async def with_images(
    task: PromptTask,
    prompt: Prompt,
    sources: Sequence[ImageSource],
    images: ImageInput | None,
    truncation: Truncation | None,
    *,
    name: str,
    stop_strings: Sequence[str],
) -> PromptTask:
    """The task with its prompt as a model that takes images reads it. They are loaded now.

    Args:
        truncation: has been applied to the tokens; the text is whole.
        name: of the field that the prompt comes from.

    Raises:
        InvalidField: one cannot be had.
        Overloaded: there is no memory for them.
    """
    if images is None or prompt.text is None:
        return task
    if not sources:
        whole = TextPrompt(prompt.text, name=name)
        return task if truncation is not None else task._replace(prompt=whole)
    loaded = await images.loader.load(sources)
    # Only a sample that the backend ends itself tells how many tokens the images were.
    if not task.params.min_tokens:  # it would not let them pass
        task = task._replace(params=replace(task.params, stop_strings=tuple(stop_strings)))
    names = [source.name for source in sources]
    return task._replace(prompt=TextPrompt(prompt.text, loaded, name, names))


def kept_images(prompt: Prompt, sources: Sequence[ImageSource]) -> tuple[Prompt, list[ImageSource]]:
    """Where messages were dropped: the prompt with tags that count only the images that are left,
    and those."""
    text = prompt.text or ""
    kept = [index for index in range(len(sources)) if image_tag(index) in text]
    for position, index in enumerate(kept):
        text = text.replace(image_tag(index), image_tag(position))
    return replace(prompt, text=text), [sources[index] for index in kept]

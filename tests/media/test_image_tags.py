from __future__ import annotations

import time

import pytest

from fastovms.errors import InvalidField
from fastovms.media.image_tags import check_tags, image_tag, renumbered, without_tags

ONE, TWO = image_tag(0), image_tag(1)


@pytest.mark.parametrize(
    ("text", "num_images"),
    [("hello", 0), (f"{ONE}hello", 1), (f"a{TWO}b{ONE}", 2), ("<ov_genai image_0>", 0)],
)
def test_each_image_once(text, num_images):
    check_tags(text, num_images, "messages", ["<|image_pad|>"])


@pytest.mark.parametrize(
    ("text", "num_images", "tag"),
    [
        (ONE, 0, ONE),
        (f"{ONE}{TWO}", 1, TWO),
        (f"{ONE} {ONE}", 1, ONE),
        (f"{ONE}<ov_genai_image_7", 1, "<ov_genai_image_7"),
        (f"{ONE}<ov_genai_image_", 1, "<ov_genai_image_"),
        (f"{ONE}<ov_genai_image_00>", 1, "<ov_genai_image_00>"),
        (f"{ONE}<ov_genai_video_0>", 1, "<ov_genai_video_0>"),
        (f"{ONE}<ov_genai_audio_0>", 1, "<ov_genai_audio_0>"),
        (f"{ONE}<|image_pad|>", 1, "<|image_pad|>"),
        ("<|image_pad|>", 0, "<|image_pad|>"),
    ],
)
def test_what_clients_wrote_is_no_image(text, num_images, tag):
    with pytest.raises(InvalidField) as error:
        check_tags(text, num_images, "messages", ["<|image_pad|>"])
    assert str(error.value) == f"messages must not contain {tag}: it stands for an image"


def test_a_template_that_loses_an_image():
    with pytest.raises(InvalidField, match="the chat template leaves an image out"):
        check_tags(TWO, 2, "messages")


def test_text_without_tags():
    assert without_tags(f"a{ONE}b{TWO}", 2) == "ab"
    assert without_tags(f"a{ONE}b{TWO}", 1) == f"ab{TWO}"


def test_tags_count_the_images_that_are_left():
    text = f"a{image_tag(12)}b{TWO}c{image_tag(20)}"
    assert renumbered(text, 13) == (f"a{TWO}b{ONE}c{image_tag(20)}", [1, 12])
    assert renumbered("a", 2) == ("a", [])


def test_many_images_are_work_in_proportion_to_them():
    tags = "".join(map(image_tag, range(100_000)))
    started = time.thread_time()
    check_tags(tags, 100_000, "messages")
    assert without_tags(tags, 100_000) == ""
    assert renumbered(tags, 100_000) == (tags, list(range(100_000)))
    assert time.thread_time() - started < 5

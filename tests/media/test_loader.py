"""Tests of `fastovms/parts/media/loader.py`."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image as pillow

from fastovms.api.image_parts import (
    ImageSource,
    RequestImages,
    check_tags,
    image_tag,
    renumbered,
    without_tags,
)
from fastovms.errors import ConfigurationError, InvalidField, Overloaded
from fastovms.params import Image
from fastovms.parts.media.decode import PixelBound, decode_image
from fastovms.parts.media.fetch import Fetcher, decode_data_url
from fastovms.parts.media.loader import ImageLoader, LocalFiles, MemoryBudget
from fastovms.server_config import MediaConfig
from tests.media.pictures import BLUE, RED, encode, png

# The memory of decoded images: reserved before decoding, released with the last reference.


def test_memory_beyond_the_budget_is_refused() -> None:
    budget = MemoryBudget(10)
    budget.take(10)
    with pytest.raises(Overloaded):
        budget.take(1)
    assert budget.used == 10
    budget.give_back(4)
    budget.take(4)


# Only regular files below the directory, for any path to them.


NAME = "messages[0].content[0].image_url.url"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "media"
    (root / "sub dir").mkdir(parents=True)
    (root / "a.png").write_bytes(b"inside")
    (root / "sub dir" / "b.png").write_bytes(b"below")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "c.png").write_bytes(b"beside")
    return root


def read(root: Path | None, url: str, max_bytes: int = 100) -> bytes:
    return LocalFiles(root).read(url, NAME, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("root_name", "url", "content"),
    [
        ("media", "{root}/a.png", b"inside"),
        ("media", "{root}/sub dir/b.png", b"below"),
        ("media", "file://{root}/sub%20dir/b.png", b"below"),
        ("media", "file://localhost{root}/a.png", b"inside"),
        ("media", "{root}//./a.png", b"inside"),
        ("media", "{root}/inner.png", b"below"),
        ("link", "{outside}/link/a.png", b"inside"),
        ("link", "{root}/a.png", b"inside"),
    ],
)
def test_path_or_file_url_below_the_root_is_read(root, tmp_path, root_name, url, content):
    (root / "inner.png").symlink_to(root / "sub dir" / "b.png")
    (tmp_path / "link").symlink_to(root)
    assert read(tmp_path / root_name, url.format(root=root, outside=tmp_path)) == content


@pytest.mark.parametrize(
    "path",
    [
        "{outside}/secret.png",
        "{outside}/media-too/c.png",
        "{outside}/nothing-here.png",
        "{root}/nothing-here.png",
        "{root}",
        "{root}/sub dir",
        "{root}/a.png/b.png",
        "{root}/link.png",
        "{root}/linked/secret.png",
        "{root}/loop",
        "{root}/pipe",
        "{root}/device",
        "{root}/a.png\0",
        "{root}/" + "x" * 5000,
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
    ],
)
def test_unreadable_file_is_refused_with_the_same_message(root, tmp_path, path):
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "linked").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    (root / "device").symlink_to("/dev/zero")
    os.mkfifo(root / "pipe")
    for url in (
        path.format(root=root, outside=tmp_path),
        "file://" + quote(path.format(root=root, outside=tmp_path)),
    ):
        with pytest.raises(InvalidField) as error:
            read(root, url)
        assert str(error.value) == f"{NAME}: the file does not exist or cannot be read"
        assert error.value.param == NAME


@pytest.mark.parametrize(
    "url",
    [
        "{root}/../secret.png",
        "{root}/sub dir/../a.png",
        "file://{root}/%2e%2e/secret.png",
        "file://{root}/..%2fsecret.png",
        "file://elsewhere{root}/a.png",
        "file:a.png",
        "file://",
    ],
)
def test_relative_or_foreign_path_is_refused(root, url):
    with pytest.raises(InvalidField, match=r"must be the absolute path of a file, without \.\."):
        read(root, url.format(root=root))


def test_file_with_several_hard_links_is_refused(root, tmp_path):
    """One of its names may be outside the directory."""
    (root / "linked.png").hardlink_to(tmp_path / "secret.png")
    with pytest.raises(InvalidField, match="a file with several hard links is refused") as error:
        read(root, f"{root}/linked.png")
    assert error.value.param == NAME
    (tmp_path / "secret.png").unlink()
    assert read(root, f"{root}/linked.png") == b"secret"


def test_local_file_without_a_root_is_refused(root):
    with pytest.raises(InvalidField, match="this server does not read local files"):
        read(None, f"{root}/a.png")


def test_file_above_the_limit_is_refused(root):
    assert read(root, f"{root}/a.png", 6) == b"inside"
    with pytest.raises(InvalidField, match="at most 5 bytes"):
        read(root, f"{root}/a.png", 5)


def test_path_that_changes_while_it_is_opened_is_refused(root, tmp_path, monkeypatch):
    real_open = os.open

    def swap_and_open(path, *arguments):
        (root / "a.png").unlink()
        (root / "a.png").symlink_to(tmp_path / "secret.png")
        return real_open(path, *arguments)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(InvalidField, match="the file does not exist"):
        read(root, f"{root}/a.png")


def test_missing_root_directory_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere is not a directory"):
        LocalFiles(tmp_path / "nowhere")


ONE, TWO = image_tag(0), image_tag(1)


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
def test_image_tag_in_client_text_is_refused(text, num_images, tag):
    with pytest.raises(InvalidField) as error:
        check_tags(text, num_images, "messages", ["<|image_pad|>"])
    assert str(error.value) == f"messages must not contain {tag}: it stands for an image"


def test_template_that_omits_an_image_is_refused():
    check_tags(f"a{TWO}b{ONE}", 2, "messages", ["<|image_pad|>"])
    with pytest.raises(InvalidField, match="the chat template omits an image"):
        check_tags(TWO, 2, "messages")


def test_tags_are_removed_or_renumbered():
    assert without_tags(f"a{ONE}b{TWO}", 2) == "ab"
    assert without_tags(f"a{ONE}b{TWO}", 1) == f"ab{TWO}"
    text = f"a{image_tag(12)}b{TWO}c{image_tag(20)}"
    assert renumbered(text, 13) == (f"a{TWO}b{ONE}c{image_tag(20)}", [1, 12])
    assert renumbered("a", 2) == ("a", [])


@pytest.mark.slow
def test_work_is_proportional_to_the_number_of_images():
    tags = "".join(map(image_tag, range(100_000)))
    started = time.thread_time()
    check_tags(tags, 100_000, "messages")
    assert without_tags(tags, 100_000) == ""
    assert renumbered(tags, 100_000) == (tags, list(range(100_000)))
    assert time.thread_time() - started < 5


# The images of a request's parts.


BLUE_PICTURE = png(color=BLUE)


class FakeFetcher(Fetcher):
    """Sends `body` when `release` is set; counts concurrent calls."""

    def __init__(self, body: bytes = BLUE_PICTURE) -> None:
        super().__init__([], allow_redirects=False, allow_private=False, timeout=1)
        self.body = body
        self.release = asyncio.Event()
        self.num_waiting = 0
        self.most_waiting = 0
        self.waiting = asyncio.Event()

    async def fetch(self, url: str, name: str, *, max_bytes: int) -> bytes:
        self.num_waiting += 1
        self.most_waiting = max(self.most_waiting, self.num_waiting)
        self.waiting.set()
        try:
            await self.release.wait()
        finally:
            self.num_waiting -= 1
        return self.body


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def source(url: str, position: int = 0) -> ImageSource:
    return ImageSource(url, f"part[{position}]")


async def load(loader: ImageLoader, *urls: str) -> list[Image]:
    return await loader.load([source(url, position) for position, url in enumerate(urls)])


async def nothing_used(loader: ImageLoader) -> None:
    """Returns when no image is counted any more. An image of a finished request may still be in a
    thread, and the loop holds the future that resumed this task. No garbage collection is needed,
    which could run much later."""
    async with asyncio.timeout(60):
        while True:
            if not loader._budget.used:
                return
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_images_of_every_kind_of_source_come_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(width=7))
    fetcher = FakeFetcher()
    fetcher.release.set()
    loader = ImageLoader(MediaConfig(allowed_local_media_path=tmp_path), fetcher=fetcher)
    urls = [
        data_url(png()),
        f"{tmp_path}/a.png",
        f"file://{tmp_path}/a.png",
        "https://x/",
        "HTTP://x",
    ]
    images = await load(loader, *urls)
    assert [image.shape for image in images] == [
        (3, 4, 3),
        (3, 7, 3),
        (3, 7, 3),
        (3, 4, 3),
        (3, 4, 3),
    ]
    assert [image[0, 0].tolist() for image in images] == [
        list(c) for c in (RED, RED, RED, BLUE, BLUE)
    ]
    assert await load(loader) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must be a data URL, an http or https URL or the path of a file"),
        ("a.png", "must be a data URL"),
        ("../a.png", "must be a data URL"),
        ("ftp://x/a.png", "must be a data URL"),
        ("/etc/passwd", "does not read local files"),
        ("file:///etc/passwd", "does not read local files"),
        ("http://127.0.0.1/", "does not fetch images from 127.0.0.1"),
        ("https://example.com/a.png", r"does not fetch images from example\.com"),
        ("data:image/png;base64,AAAA", "must be an image in one of the formats"),
        (data_url(png()[:45]), "is corrupt|must be an image"),
        (data_url(png(200, 200)), "must have at most 10000 pixels"),
        (data_url(b"x" * 6000), "must be at most 5000 bytes"),
    ],
)
async def test_unusable_image_is_refused_by_its_part(url: str, message: str) -> None:
    config = MediaConfig(max_image_pixels=10_000, max_image_bytes=5000)
    with pytest.raises(InvalidField, match=message) as error:
        await load(ImageLoader(config), data_url(png()), url)
    assert error.value.param == "part[1]"


async def test_image_beyond_max_images_is_refused() -> None:
    loader = ImageLoader(MediaConfig(max_images=2))
    with pytest.raises(InvalidField, match="one image too many: a request may have 2") as error:
        await load(loader, *[data_url(png())] * 4)
    assert error.value.param == "part[2]"


def test_given_images_are_limited() -> None:
    sources = [ImageSource("x", f"part[{index}]") for index in range(3)]
    images = RequestImages(2)
    assert [images.add(source) for source in sources[:2]] == [image_tag(0), image_tag(1)]
    with pytest.raises(InvalidField, match="one image too many: a request may have 2") as error:
        images.add(sources[2])
    assert error.value.param == "part[2]"
    assert images.sources == sources[:2]
    unbounded = RequestImages(None)
    assert [unbounded.add(source) for source in sources][-1] == image_tag(2)


async def test_image_memory_counts_until_it_is_freed() -> None:
    size = 3 * 4 * 3
    loader = ImageLoader(MediaConfig(max_image_memory=2 * size))
    first = await load(loader, data_url(png()))
    second = await load(loader, data_url(png()))
    with pytest.raises(Overloaded):
        await load(loader, data_url(png()))
    assert (first[0] == second[0]).all()
    del first, second
    await nothing_used(loader)
    third = await load(loader, data_url(png()), data_url(png()))
    assert loader._budget.used == 2 * size
    del third
    await nothing_used(loader)


async def test_shrunk_image_counts_with_its_remaining_pixels() -> None:
    loader = ImageLoader(MediaConfig(max_image_memory=70_000, shrink_images_to=100))
    images = await load(loader, *[data_url(png(100, 100))] * 2)
    assert [image.shape for image in images] == [(10, 10, 3)] * 2
    assert loader._budget.used == 2 * 300
    (small,) = await loader.load([source(data_url(png(100, 100)), 0)], PixelBound(49, 7))
    assert small.shape == (7, 7, 3)
    with pytest.raises(InvalidField, match=r"part\[0\]: the images .* too large"):
        await load(loader, data_url(png(300, 100)))
    del images, small
    await nothing_used(loader)


@pytest.mark.parametrize(
    ("count", "sides"), [(1, (20, 20)), (2, (20, 20)), (3, (16, 16)), (8, (10, 10))]
)
async def test_images_of_a_request_share_their_pixels(count: int, sides: tuple[int, int]) -> None:
    loader = ImageLoader(MediaConfig(shrink_images_to=400))
    images = await load(loader, *[data_url(png(50, 50))] * count)
    assert {image.shape[:2] for image in images} == {sides}


async def test_images_too_large_together_are_refused() -> None:
    loader = ImageLoader(MediaConfig(max_image_memory=80))
    with pytest.raises(InvalidField, match=r"part\[2\]: the images .* too large together"):
        await load(loader, *[data_url(png())] * 3)
    await nothing_used(loader)


async def test_damaged_image_returns_its_memory() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    loader = ImageLoader(MediaConfig())
    whole = encode(pillow.fromarray(noise), "PNG")
    with pytest.raises(InvalidField, match="is corrupt"):
        await load(loader, data_url(whole[: len(whole) // 2]))
    await nothing_used(loader)


async def test_image_of_a_failed_request_returns_its_memory() -> None:
    fetcher = FakeFetcher(b"nothing")
    loader = ImageLoader(MediaConfig(max_image_bytes=1000), fetcher=fetcher)
    loading = asyncio.ensure_future(load(loader, "http://x/", data_url(png())))
    async with asyncio.timeout(60):
        while loader._budget.used != 1000 + 3 * 4 * 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    fetcher.release.set()
    with pytest.raises(InvalidField, match=r"part\[0\]"):
        await loading
    del loading
    await nothing_used(loader)


async def test_fetches_at_once_are_limited() -> None:
    fetcher = FakeFetcher()
    loader = ImageLoader(MediaConfig(), fetcher=fetcher)
    loading = asyncio.ensure_future(load(loader, *["http://x/"] * 12))
    await fetcher.waiting.wait()
    fetcher.release.set()
    assert len(await loading) == 12
    assert fetcher.most_waiting <= 4


async def test_cancelled_request_stops_its_fetches_and_frees_the_budget() -> None:
    fetcher = FakeFetcher()
    loader = ImageLoader(MediaConfig(), fetcher=fetcher)
    loading = asyncio.ensure_future(load(loader, "http://x/", "http://y/"))
    await fetcher.waiting.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await asyncio.sleep(0)
    assert (fetcher.num_waiting, loader._budget.used) == (0, 0)


async def test_decoding_happens_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def seen(function: Callable[..., object]) -> Callable[..., Any]:
        def call(*arguments: object, **options: object) -> object:
            threads.append(threading.current_thread())
            return function(*arguments, **options)

        return call

    monkeypatch.setattr("fastovms.parts.media.loader.decode_data_url", seen(decode_data_url))
    await load(ImageLoader(MediaConfig(), decode=seen(decode_image)), data_url(png()))
    assert len(threads) == 2
    assert threading.main_thread() not in threads

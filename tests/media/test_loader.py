"""From the parts of a request to its images."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as pillow

from fastovms.config.api_config import MediaConfig
from fastovms.errors import InvalidField, Overloaded
from fastovms.media.data_url import decode_data_url
from fastovms.media.decode import PixelBound, decode_image
from fastovms.media.fetch import Fetcher
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import GivenImages, ImageLoader, ImageSource
from fastovms.params import Image
from tests.media.pictures import BLUE, RED, encode, png

BLUE_PICTURE = png(color=BLUE)


class FakeFetcher(Fetcher):
    """Sends `body`, when `release` is set; counts who waits at once."""

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
    """Returns when no image counts any more. That of a request which has ended may be in a thread
    yet, and the loop has the future that it woke us with. The collector is not needed: it may come
    much later."""
    async with asyncio.timeout(5):
        while True:
            if not loader._budget.used:
                return
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_every_kind_of_source_in_order(tmp_path: Path) -> None:
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
        ("/etc/passwd", "reads no local files"),
        ("file:///etc/passwd", "reads no local files"),
        ("http://127.0.0.1/", "fetches nothing from 127.0.0.1"),
        ("https://example.com/a.png", r"fetches nothing from example\.com"),
        ("data:image/png;base64,AAAA", "must be an image in one of the formats"),
        (data_url(png()[:45]), "is damaged|must be an image"),
        (data_url(png(200, 200)), "must have at most 10000 pixels"),
        (data_url(b"x" * 6000), "must be at most 5000 bytes"),
    ],
)
async def test_faults_name_the_part(url: str, message: str) -> None:
    config = MediaConfig(max_image_pixels=10_000, max_image_bytes=5000)
    with pytest.raises(InvalidField, match=message) as error:
        await load(ImageLoader(config), data_url(png()), url)
    assert error.value.param == "part[1]"


async def test_too_many() -> None:
    loader = ImageLoader(MediaConfig(max_images=2))
    with pytest.raises(InvalidField, match="one image too many: a request may have 2") as error:
        await load(loader, *[data_url(png())] * 4)
    assert error.value.param == "part[2]"


def test_images_are_counted_as_they_are_read() -> None:
    sources = [ImageSource("x", f"part[{index}]") for index in range(3)]
    images = GivenImages(2)
    assert [images.add(source) for source in sources[:2]] == [image_tag(0), image_tag(1)]
    with pytest.raises(InvalidField, match="one image too many: a request may have 2") as error:
        images.add(sources[2])
    assert error.value.param == "part[2]"
    assert images.sources == sources[:2]
    unbounded = GivenImages(None)
    assert [unbounded.add(source) for source in sources][-1] == image_tag(2)


async def test_images_count_until_nobody_has_them() -> None:
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


async def test_a_shrunk_image_counts_with_what_is_left_of_it() -> None:
    loader = ImageLoader(MediaConfig(max_image_memory=70_000, shrink_images_to=100))
    images = await load(loader, *[data_url(png(100, 100))] * 2)
    assert [image.shape for image in images] == [(10, 10, 3)] * 2
    assert loader._budget.used == 2 * 300
    (small,) = await loader.load([source(data_url(png(100, 100)), 0)], PixelBound(49, 7))
    assert small.shape == (7, 7, 3)
    with pytest.raises(InvalidField, match=r"part\[0\] makes the images .* too large"):
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


async def test_a_file_alone_always_has_room() -> None:
    fetcher = FakeFetcher()
    fetcher.release.set()
    loader = ImageLoader(MediaConfig(max_image_memory=40), fetcher=fetcher)
    assert len(await load(loader, "http://x/")) == 1


async def test_images_that_can_never_be_in_memory_together() -> None:
    loader = ImageLoader(MediaConfig(max_image_memory=80))
    with pytest.raises(InvalidField, match=r"part\[2\] makes the images .* too large together"):
        await load(loader, *[data_url(png())] * 3)
    await nothing_used(loader)


async def test_what_is_damaged_counts_no_longer() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    loader = ImageLoader(MediaConfig())
    whole = encode(pillow.fromarray(noise), "PNG")
    with pytest.raises(InvalidField, match="is damaged"):
        await load(loader, data_url(whole[: len(whole) // 2]))
    await nothing_used(loader)


async def test_an_image_whose_neighbour_fails_counts_no_longer() -> None:
    fetcher = FakeFetcher(b"nothing")
    loader = ImageLoader(MediaConfig(max_image_bytes=1000), fetcher=fetcher)
    loading = asyncio.ensure_future(load(loader, "http://x/", data_url(png())))
    async with asyncio.timeout(5):
        while loader._budget.used != 1000 + 3 * 4 * 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    fetcher.release.set()
    with pytest.raises(InvalidField, match=r"part\[0\]"):
        await loading
    del loading
    await nothing_used(loader)


async def test_a_few_at_once() -> None:
    fetcher = FakeFetcher()
    loader = ImageLoader(MediaConfig(), fetcher=fetcher)
    loading = asyncio.ensure_future(load(loader, *["http://x/"] * 12))
    await fetcher.waiting.wait()
    fetcher.release.set()
    assert len(await loading) == 12
    assert fetcher.most_waiting <= 4


async def test_a_request_that_is_gone_fetches_nothing_more() -> None:
    fetcher = FakeFetcher()
    loader = ImageLoader(MediaConfig(), fetcher=fetcher)
    loading = asyncio.ensure_future(load(loader, "http://x/", "http://y/"))
    await fetcher.waiting.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await asyncio.sleep(0)
    assert (fetcher.num_waiting, loader._budget.used) == (0, 0)


async def test_the_first_fault_ends_the_others() -> None:
    fetcher = FakeFetcher()
    loader = ImageLoader(MediaConfig(), fetcher=fetcher)
    with pytest.raises(InvalidField, match=r"part\[1\]"):
        await load(loader, "http://x/", "nonsense")
    await asyncio.sleep(0)
    assert fetcher.num_waiting == 0


async def test_decoding_happens_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def seen(function: Callable[..., object]) -> Callable[..., Any]:
        def call(*arguments: object, **options: object) -> object:
            threads.append(threading.current_thread())
            return function(*arguments, **options)

        return call

    monkeypatch.setattr("fastovms.media.loader.decode_data_url", seen(decode_data_url))
    await load(ImageLoader(MediaConfig(), decode=seen(decode_image)), data_url(png()))
    assert len(threads) == 2
    assert threading.main_thread() not in threads
